"""Captures larger than memory: the steady stretch that fits is read. Memory is made small, because samples fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import analyzed, change, sample
from traceview.errors import ReportError
from traceview.model.analysis import Iterations
from traceview.pipeline import analyze, open_trace
from traceview.read import raw, stretch
from traceview.read.raw import Wanted
from traceview.read.sqlite.database import open_export
from traceview.read.sqlite.decoder import table_decoder
from traceview.read.sqlite.reader import read_sqlite
from traceview.read.stretch import stretch_that_fits

DUAL = sample("dual.sqlite")  # 19,000 events in 273 ms


def small_memory(monkeypatch: pytest.MonkeyPatch, events: int) -> None:
    """Leave room for so many events."""
    free = int((events * stretch.BYTES_PER_EVENT + stretch.BYTES_PER_PROCESS) / stretch.SHARE_OF_FREE) + 1
    monkeypatch.setattr(stretch, "free_memory", lambda: free)


def test_capture_that_fits_is_read_whole() -> None:
    with open_export(DUAL) as export:
        assert stretch_that_fits(export) is None
    assert open_trace(DUAL).window is None


@pytest.mark.parametrize("events", [10_000, 13_000])
def test_steady_stretch_fits_and_has_the_figures_of_its_window(monkeypatch: pytest.MonkeyPatch, events: int) -> None:
    whole = analyzed(DUAL)
    monkeypatch.setattr(stretch, "MARGIN", 20_000_000)
    small_memory(monkeypatch, events)
    analysis = analyze(DUAL)
    window = analysis.trace.window
    assert window is not None and 0.9 * events > len(analysis.trace.operations) > 0.1 * events
    assert isinstance(analysis.iterations, Iterations) and analysis.iterations.source == "range"
    assert isinstance(whole.iterations, Iterations)
    assert analysis.iterations.time_ns == pytest.approx(whole.iterations.time_ns, rel=0.1)
    monkeypatch.undo()
    same = analyze(DUAL, window=window)
    for stretched, narrowed in zip(analysis.devices, same.devices, strict=True):
        assert stretched.window == narrowed.window
        assert (stretched.busy_ns, stretched.compute_ns, stretched.idle_ns, stretched.kernel_count) == (
            *(narrowed.busy_ns, narrowed.compute_ns, narrowed.idle_ns, narrowed.kernel_count),
        )
        assert stretched.gaps.causes == narrowed.gaps.causes


def test_answer_begins_with_the_stretch_and_a_note_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretch, "MARGIN", 20_000_000)
    small_memory(monkeypatch, 15_000)
    analysis = analyze(DUAL)
    assert analysis.answer.text.startswith("Of 273 ms, ")
    [note] = [note for note in analysis.notes if note.id == "stretch"]
    assert "were read; choose another stretch with --from, --to or --range" in note.text


def test_wanted_stretch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    first = analyzed(DUAL).devices[0].window.start
    monkeypatch.setattr(stretch, "MARGIN", 20_000_000)
    small_memory(monkeypatch, 15_000)
    trace = analyze(DUAL, window=("50ms", "100ms")).trace
    assert trace.window is not None
    assert (trace.window.start, trace.window.end) == (first + 50_000_000, first + 100_000_000)
    named = open_trace(DUAL, Wanted(range_name="iteration 7")).window
    assert named is not None and named.length < 20_000_000


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    small_memory(monkeypatch, 100)
    with pytest.raises(ReportError, match=r"^dual\.sqlite: .* of memory are free, which is too little"):
        open_trace(DUAL)


def test_rows_that_do_not_ascend_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "disorder.sqlite"
    path.write_bytes(DUAL.read_bytes())
    change(
        path,
        "CREATE TABLE reversed AS SELECT * FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start DESC",
        "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME",
        "ALTER TABLE reversed RENAME TO CUPTI_ACTIVITY_KIND_RUNTIME",
    )
    monkeypatch.setattr(stretch, "MARGIN", 20_000_000)
    small_memory(monkeypatch, 15_000)
    disordered, ordered = open_trace(path, Wanted("50ms", "100ms")), open_trace(DUAL, Wanted("50ms", "100ms"))
    assert disordered.api["start"].to_list() == ordered.api["start"].to_list()


@pytest.mark.parametrize("rows", [(1, 40), (700, 2_900), (5_990, 6_001), (1, 6_001)])
def test_decoded_rows_are_those_of_sqlite(rows: tuple[int, int]) -> None:
    columns = ["start", "end", "correlationId"]
    with open_export(DUAL) as export:
        decoder = table_decoder(DUAL, export.connection, raw.KERNEL, columns, ["gridX"], rows)
        decoded = None if decoder is None else decoder.decode()
        assert decoded is not None and decoded.groups is not None
        condition = f"WHERE _rowid_ >= {rows[0]} AND _rowid_ < {rows[1]}"
        expected = export.select('start, "end", correlationId, gridX', raw.KERNEL, condition).fetchall()
    grid = decoded.groups["gridX"].gather(decoded.columns[raw.SHAPE])
    assert decoded.columns.select(columns).with_columns(grid).rows() == expected


def test_missing_row_ids_are_left_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "gaps.sqlite"
    path.write_bytes(DUAL.read_bytes())
    change(path, f"DELETE FROM {raw.KERNEL} WHERE _rowid_ = 1000")
    with open_export(path) as export:
        decoder = table_decoder(path, export.connection, raw.KERNEL, ["start"], rows=(900, 1_100))
        assert decoder is not None and decoder.decode() is None
    assert "start" in read_sqlite(path).tables[raw.KERNEL].columns
