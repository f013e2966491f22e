"""Tests of `instrument.memory`."""

from __future__ import annotations

from pathlib import Path

import pytest

from instrument import memory
from instrument.errors import ConfigError, InstrumentError
from instrument.memory import PinnedBudget, available_bytes, format_bytes

KIB = 1024


def test_budget_limit() -> None:
    budget = PinnedBudget(100)
    budget.take(60)
    assert not budget.try_take(41)
    with pytest.raises(InstrumentError, match="41 bytes more exceed the budget of 100 bytes, of which 60 bytes"):
        budget.take(41)
    assert budget.used_bytes == 60
    budget.give(60)
    budget.take(100)
    assert budget.used_bytes == 100


def test_empty_budget() -> None:
    with pytest.raises(ConfigError, match="invalid pinned budget of 0 bytes"):
        PinnedBudget(0)


def test_budget_beyond_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 50)
    budget = PinnedBudget(100)
    with pytest.raises(
        InstrumentError, match="60 bytes more fit into the budget of 100 bytes, but the machine has only 50 bytes"
    ):
        budget.take(60)
    assert budget.used_bytes == 0


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
