"""The memory that an analysis may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import SAMPLES
from traceview.engine import memory
from traceview.errors import ReportError
from traceview.pipeline import open_trace

REPORT = SAMPLES / "dual.sqlite"


def test_small_export_fits() -> None:
    assert memory.fits_memory(REPORT, 1 << 30)
    assert not memory.fits_memory(REPORT, 1 << 20)


def test_capture_that_needs_more_than_is_free_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    memory.check_fits(REPORT)
    monkeypatch.setattr("resource.getrlimit", lambda _: (1, 1))
    with pytest.raises(ReportError, match=r"^dual.sqlite: .* about 2\d\d MB of memory, and 0 B are free; use a"):
        open_trace(REPORT)
    memory.check_fits(SAMPLES)  # another reader knows what a folder needs


@pytest.mark.parametrize(("limit", "expected"), [("max", 3072), ("5000", 2000), ("9000", 3072), (None, 3072)])
def test_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, expected: int) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:    9 kB\nMemFree:   1 kB\nMemAvailable:   3 kB\n")
    if limit:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("3000\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    assert memory.free_memory() == expected
