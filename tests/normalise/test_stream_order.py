"""Work that reaches into the next of its stream, and doubled rows, in operations made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tests.made_trace import made_trace
from traceview.normalise.lost_events import Mended, mended_work

US = 1_000


def _mended(rows: Sequence[tuple[int, int, int, int]], kind: str = "compute") -> tuple[pl.DataFrame, Mended]:
    """Mend (start, end, stream, correlation), the times in us."""
    work = made_trace([(start * US, end * US, kind, stream, None) for start, end, stream, _ in sorted(rows)]).operations
    correlation = pl.Series([row[3] for row in sorted(rows)], dtype=pl.UInt32)
    return mended_work(work.with_columns(correlation=correlation))


def test_work_ends_where_the_next_of_its_stream_begins() -> None:
    """Work of another stream cuts nothing, nor does an overlap of at most 100 us."""
    work, mended = _mended([(0, 900, 0, 1), (10, 500, 1, 2), (50, 60, 0, 3), (400, 560, 1, 4), (800, 950, 0, 5)])
    assert (work["end"] // US).to_list() == [50, 500, 60, 560, 950]
    assert mended.cut.rows() == [(0, 1, 50 * US, 850 * US)]
    assert mended.doubled == 0


def test_order_stays_by_start_and_end() -> None:
    """A cut may place work before other work of equal start."""
    work, _ = _mended([(0, 300, 0, 1), (0, 400, 1, 2), (20, 30, 1, 3)])
    assert (work["end"] // US).to_list() == [20, 300, 30]


def test_nodes_of_a_graph_that_run_side_by_side_are_whole() -> None:
    """They have one launch, and overlap in each replay; a single one of many that does is cut."""
    replays = [(1000 * n + 10 * side, 1000 * n + 10 * side + 500, 0, n + 1) for n in range(4) for side in range(2)]
    assert _mended(replays)[1].cut.is_empty()
    nodes = [(10 * n, 10 * n + 9, 0, 1) for n in range(40)]
    nodes[3] = (30, 380, 0, 1)
    assert (_mended(nodes)[1].cut["end"] // US).to_list() == [40]


def test_migrations_run_on_no_stream() -> None:
    """Copies of unified memory overlap each other."""
    work = made_trace([(0, 900 * US, "copy", 0, None), (10 * US, 800 * US, "copy", 0, None)]).operations
    migrations = work.with_columns(pl.lit("um_h2d").cast(work.schema["kind"]).alias("kind"))
    assert mended_work(migrations)[1].cut.is_empty()
    assert len(mended_work(work)[1].cut) == 1


def test_equal_rows_count_once() -> None:
    """A row that differs in stream, end or launch is another one; without a launch nothing says that it is the same."""
    rows = [(0, 9, 0, 1), (0, 9, 0, 1), (0, 9, 1, 1), (0, 9, 0, 2), (20, 29, 0, 3), (20, 28, 0, 3), (40, 49, 0, 0)]
    work, mended = _mended([*rows, (40, 49, 0, 0)])
    assert (len(work), mended.doubled, mended.total) == (7, 1, 7)


def test_nothing_to_mend() -> None:
    """No work, or one operation."""
    assert mended_work(made_trace().operations)[1].total == 0
    assert _mended([(0, 5, 0, 1)])[1].cut.is_empty()
