"""Tests of `instrument.memory`."""

from __future__ import annotations

from pathlib import Path

from instrument.memory import available_bytes, format_bytes

KIB = 1024


def test_available_bytes_of_machine_and_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 400 kB\nMemAvailable: 300 kB\nHugePages_Total: 0\n")
    assert available_bytes(meminfo, tmp_path) == 300 * KIB
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("0\n")
    assert available_bytes(meminfo, tmp_path) == 300 * KIB
    (tmp_path / "memory.max").write_text(f"{200 * KIB}\n")
    (tmp_path / "memory.current").write_text(f"{150 * KIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\nfile {50 * KIB}\n")
    assert available_bytes(meminfo, tmp_path) == 100 * KIB
    assert available_bytes(tmp_path / "none", tmp_path / "none") is None


def test_sizes_are_formatted_as_bytes() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1 << 20, 3 << 29, 1 << 50)] == [
        "0 bytes",
        "1023 bytes",
        "1 MiB",
        "1.5 GiB",
        "1024 TiB",
    ]
