"""Tests of `instrument.memory`."""

from __future__ import annotations

from instrument.memory import format_bytes


def test_sizes_are_formatted_as_bytes() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1 << 20, 3 << 29, 1 << 50)] == [
        "0 bytes",
        "1023 bytes",
        "1 MiB",
        "1.5 GiB",
        "1024 TiB",
    ]
