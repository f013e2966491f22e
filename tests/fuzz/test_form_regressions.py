"""Regressions from fuzzing fleets, and in the checks, with case numbers."""

from __future__ import annotations

from pathlib import Path

from tests.captures import change
from tests.fuzz import corpus
from tests.fuzz.counted import kernels_in
from tests.fuzz.ended import run
from tests.oracle import figures
from tests.oracle.differences import differences
from traceview.pipeline import analyze
from traceview.report.analysis import document


def test_oracle_ignores_deeply_nested_ranges(report: Path) -> None:
    """Seed 29000579: it counted ranges that the analysis leaves out with a note."""
    change(report, 'UPDATE NVTX_EVENTS SET "end" = NULL WHERE eventType = 59')
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 130) SELECT"
    columns = "start, eventType, globalTid, text"
    change(
        report,
        f"INSERT INTO NVTX_EVENTS ({columns}) {rows} (SELECT min(start) FROM NVTX_EVENTS) - 200 + i, 59, "
        "(SELECT globalTid FROM NVTX_EVENTS WHERE eventType = 59), 'deep ' || i FROM n",
    )
    result = analyze(report)
    assert [note for note in result.notes if "more than 128 ranges are open at once" in note.text]
    assert list(differences(figures(report), document(result))) == []


def test_trace_that_begins_with_data(tmp_path: Path) -> None:
    """Seed 26000607: the check took it for nsys JSON lines."""
    event = '{"ph": "X", "cat": "kernel", "name": "f", "ts": 1, "dur": 2, "args": {}}'
    path = tmp_path / "trace.json"
    path.write_text(f'{{"data": "x", "traceEvents": [{event}, {event}]}}')
    assert kernels_in(path) == analyze(path).devices[0].kernel_count == 2


def test_skipped_report_is_named_once(tmp_path: Path) -> None:
    """Seed 22001244: an unprintable name was repeated before its reason."""
    for rank in range(2):
        corpus.thinned("dual", 24, tmp_path / f"rank{rank}.sqlite")
    (tmp_path / "e\u202e.sqlite").write_bytes(b"x")
    ended = run(("fleet", *map(str, sorted(tmp_path.iterdir())), "--json", str(tmp_path / "out.json")), tmp_path)
    assert ended.err == (
        "traceview: skipped e\ufffd.sqlite: not an SQLite file; "
        "export it again: nsys export --type sqlite REPORT.nsys-rep\n"
    )
