"""A capture repeated N times has N times the events and the work, and every kernel keeps its launch."""

from __future__ import annotations

import runpy
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.captures import ROOT, sample

MODULE: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "repeat_capture.py"), run_name="repeat")
repeat_capture: Callable[[Path, int, Path], None] = MODULE["repeat_capture"]
SCAN: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "plain_scan.py"), run_name="scan")
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"


def row(path: Path, query: str) -> tuple[Any, ...]:
    export = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        found: tuple[Any, ...] = export.execute(query).fetchone()
        return found
    finally:
        export.close()


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("repeated") / "three.sqlite"
    repeat_capture(sample("dual.sqlite"), 3, out)
    return out


@pytest.mark.parametrize("table", [KERNELS, CALLS, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"])
def test_three_repetitions_triple_events_and_times(repeated: Path, table: str) -> None:
    query = f"SELECT count(*), sum(end - start), count(DISTINCT correlationId) FROM {table}"
    assert row(repeated, query) == tuple(3 * figure for figure in row(sample("dual.sqlite"), query))


def test_every_kernel_keeps_its_launch(repeated: Path) -> None:
    matched = f"SELECT count(*), sum(k.start - r.start) FROM {KERNELS} k JOIN {CALLS} r USING (correlationId)"
    assert row(repeated, matched) == tuple(3 * figure for figure in row(sample("dual.sqlite"), matched))


def test_repetitions_do_not_overlap(repeated: Path) -> None:
    ends = f"SELECT min(start), max(end) FROM {KERNELS}"
    start, end = row(sample("dual.sqlite"), ends)
    first, last = row(repeated, ends)
    assert first == start
    assert last > end + 2 * (end - start)
    inside = f"SELECT count(*) FROM {KERNELS} WHERE start < {end}"
    assert row(repeated, inside) == row(sample("dual.sqlite"), f"SELECT count(*) FROM {KERNELS}")


def test_ranges_repeat_but_domains_do_not(repeated: Path) -> None:
    ranges = "SELECT count(*), sum(end - start) FROM NVTX_EVENTS WHERE eventType = 59"
    assert row(repeated, ranges) == tuple(3 * figure for figure in row(sample("dual.sqlite"), ranges))
    domains = "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 75"
    assert row(repeated, domains) == row(sample("dual.sqlite"), domains)


def test_one_repetition_equals_the_capture(tmp_path: Path) -> None:
    out = tmp_path / "once.sqlite"
    repeat_capture(sample("cudagraph.sqlite"), 1, out)
    graphs = "SELECT count(*), min(start), max(end) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    assert row(out, graphs) == row(sample("cudagraph.sqlite"), graphs)


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    export = sqlite3.connect(tmp_path / "empty.sqlite")
    export.execute("CREATE TABLE StringIds (id INT, value TEXT)")
    export.close()
    with pytest.raises(ValueError, match="no events"):
        repeat_capture(tmp_path / "empty.sqlite", 2, tmp_path / "never.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.sqlite"]


def test_plain_scan_reads_every_row() -> None:
    capture = sample("dual.sqlite")
    rows = sum(row(capture, f"SELECT count(*) FROM {table}")[0] for table in SCAN["COLUMNS"] if "GRAPH" not in table)
    assert SCAN["scan"](capture) == rows
