"""The memory that an analysis may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceview.read import stretch as memory


@pytest.mark.parametrize(("limit", "expected"), [("max", 3072), ("5000", 2000), ("9000", 3072), (None, 3072)])
def test_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, expected: int) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:    9 kB\nMemFree:   1 kB\nMemAvailable:   3 kB\n")
    if limit:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("3000\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    assert memory.free_memory() == expected
