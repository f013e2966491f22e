"""Names that a capture refers to and does not hold are counted, with what they may change."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.captures import analyzed, sample
from traceview.model.trace import Note
from traceview.pipeline import analyze, open_trace
from traceview.report.analysis.brief import render
from traceview.slices.traces import SliceSource

STRINGS_OF = {
    "kernel": "SELECT shortName FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON shortName = id "
    "WHERE value LIKE 'nccl%'",
    "CUDA API call": "SELECT nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON nameId = id "
    "WHERE value LIKE 'cudaStreamSynchronize%'",
    "NVTX range": "SELECT textId FROM NVTX_EVENTS WHERE textId IS NOT NULL AND eventType IN (59, 60)",
}


def without_names(folder: Path, what: str) -> tuple[Path, int]:
    """Return a copy of a real capture of two ranks without some strings, and the number of rows that refer to them."""
    path = folder / "nameless.sqlite"
    shutil.copy(sample("ddp2.sqlite"), path)
    path.chmod(0o644)
    with sqlite3.connect(path) as connection:
        rows = len(connection.execute(STRINGS_OF[what]).fetchall())
        connection.execute(f"DELETE FROM StringIds WHERE id IN ({STRINGS_OF[what]})")
    return path, rows


def notes_of(health: tuple[Note, ...]) -> list[Note]:
    return [note for note in health if note.id == "missing_names"]


@pytest.mark.parametrize("what", STRINGS_OF)
def test_missing_names_are_counted_in_memory_and_in_slices(tmp_path: Path, what: str) -> None:
    path, rows = without_names(tmp_path, what)
    assert rows
    (note,) = notes_of(open_trace(path).info.health)
    assert note.text.startswith(f"the names of {rows:,} of ") and f" {what}s (" in note.text
    assert note.affects
    assert notes_of(SliceSource.open(path, pages_per_part=16).resident.info.health) == [note]


def test_findings_on_missing_kernel_names_are_in_doubt_and_the_summary_says_so(tmp_path: Path) -> None:
    path, _ = without_names(tmp_path, "kernel")
    analysis, complete = analyze(path), analyzed(sample("ddp2.sqlite"))
    assert all(device.communication_ns == 0 for device in analysis.devices)
    assert all(device.communication_ns > 0 for device in complete.devices)
    assert "are missing from the capture" in " ".join(render(analysis).split())
    assert any("names of" in (finding.unsure_because or "") for finding in analysis.findings)


@pytest.mark.parametrize("name", ["dual.sqlite", "ddp2.sqlite", "cudagraph.sqlite"])
def test_no_note_on_a_complete_capture(name: str) -> None:
    assert notes_of(open_trace(sample(name)).info.health) == []
