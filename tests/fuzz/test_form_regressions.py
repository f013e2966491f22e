"""Regressions from fuzzing folders of tables and fleets, and in the checks, with case numbers."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.captures import change
from tests.fuzz import corpus
from tests.fuzz.counted import kernels_in
from tests.fuzz.ended import run
from tests.fuzz.forms import as_tables
from tests.oracle import figures
from tests.oracle.differences import differences
from traceview.captures.redact import redact
from traceview.pipeline import analyze
from traceview.report.analysis import document


def odd_folder(report: Path, table: str, column: str) -> Path:
    """Return a folder of tables with a column of lists, which nsys never writes and SQLite does not support."""
    folder = report.with_name("report_tables")
    as_tables(report, folder, "parquet")
    path = folder / f"{table}.parquet"
    pl.read_parquet(path).with_columns(pl.col(column).reshape((-1, 1)).arr.to_list()).write_parquet(path)
    return folder


@pytest.mark.parametrize(
    ("table", "column"), [("CUPTI_ACTIVITY_KIND_MEMSET", "start"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId")]
)
def test_redacted_copy_keeps_columns_of_foreign_types(report: Path, table: str, column: str) -> None:
    """Seeds 28000148 and 19000793: the copy lacked the column, and could not be analyzed."""
    folder, copy = odd_folder(report, table, column), report.with_name("copy.sqlite")
    redacted = redact(folder, copy)
    before, after = analyze(folder), analyze(copy)
    told, again = ({note.text for note in each.notes if table in note.text} for each in (before, after))
    assert told and told == again | {note for note in redacted.notes if table in note}
    assert list(differences(document(before)["host"], document(after)["host"])) == []


def test_info_names_the_unreadable_folder(report: Path) -> None:
    """Seed 22001273: the error named capture.sqlite, an internal file."""
    assert run(("info", str(odd_folder(report, "StringIds", "id"))), report.parent).code == 0
    path = report.with_name("report_tables") / "StringIds.parquet"
    pl.read_parquet(path).drop("id").write_parquet(path)
    ended = run(("info", str(path.parent)), report.parent)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("traceview: error: report_tables: the table StringIds has no column 'id'; ")


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
