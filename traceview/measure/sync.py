"""Calls that block the host, and the GPU idle time that they cause (docs/definitions.md "Synchronization")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.measure.activity import Activity, overlaps_window
from traceview.measure.base import CaptureMeasure
from traceview.measure.waits import BlockingCalls, measure_waits, number_waits
from traceview.model.analysis import HostUse, SyncUse
from traceview.model.columns import Table
from traceview.model.rows import ApiTotal
from traceview.model.trace import ROLES, Trace

TOTALS = ("blocked", "waited", "starved", "idle_in_wait", "refill", "cost")


def call_order(call: ApiTotal) -> tuple[int, str]:
    """Return the key by which calls are sorted: the time that they block, longest first."""
    return -call.blocked_ns, call.api


def measure_host(trace: Trace, activities: Sequence[Activity]) -> HostUse:
    """Measure explicit synchronizations, and separately the calls that synchronize implicitly."""
    explicit = trace.api["role"].to_physical().to_numpy() == ROLES.index("sync")
    rows = np.flatnonzero(explicit | trace.api["implicit"].to_numpy())
    frame = _measure_calls(trace, rows, activities)
    sync = pl.Series(explicit[frame["api"].to_numpy()], dtype=pl.Boolean)
    return HostUse(sync=_sum_calls(frame.filter(sync)), implicit_sync=_sum_calls(frame.filter(~sync)))


def _measure_calls(trace: Trace, rows: Times, activities: Sequence[Activity]) -> pl.DataFrame:
    """Measure the blocking calls in `rows` of Trace.api that overlap the window."""
    start, end = trace.api["start"].to_numpy()[rows], trace.api["end"].to_numpy()[rows]
    if trace.window is not None:
        inside = overlaps_window(start, end, trace.window)
        rows, start, end = rows[inside], start[inside], end[inside]
        clipped = np.maximum(start, trace.window.start), np.minimum(end, trace.window.end)
    else:
        clipped = start, end
    process = trace.api.select("process")[rows]["process"].to_numpy()
    blocked = clipped[1] - clipped[0]
    calls = BlockingCalls(process, *clipped, end, number_waits(trace, rows), blocked)
    costs = measure_waits(trace, activities, calls)
    return trace.api.select("name", "thread", "process")[rows].with_columns(
        pl.Series("start", calls.start),
        pl.Series("end", calls.end),
        pl.Series("api", rows, dtype=pl.Int64),
        pl.Series("blocked", blocked),
        pl.Series("waited", costs.waited),
        pl.Series("starved", blocked - costs.waited),
        pl.Series("wait", calls.wait),
        pl.Series("returned", costs.returned),
        pl.Series("idle_in_wait", costs.idle_in_wait),
        pl.Series("refill", costs.refill),
        pl.Series("cost", costs.cost),
    )


def _sum_calls(frame: pl.DataFrame) -> SyncUse:
    sums = [pl.col(name).sum() for name in TOTALS]
    calls = (
        frame.group_by(pl.col("name").cast(pl.String))
        .agg(pl.len().alias("count"), *sums)
        .sort(["blocked", "name"], descending=[True, False])
    )
    totals = {f"{name}_ns": int(frame[name].sum()) for name in TOTALS}
    return SyncUse(len(frame), **totals, calls=tuple(ApiTotal(*row) for row in calls.iter_rows()), frame=frame)


def _calls_table(name: str, title: str, note: str) -> Table:
    shown = ("api", "count", "blocked_ns", "starved_ns", "refill_ns", "cost_ns", "waited_ns")
    return Table(name=name, title=title, note=note, row_type=ApiTotal, shown=shown, in_json=False)


SYNC_CALLS = CaptureMeasure(
    _calls_table("sync_calls", "Synchronizations", "Only the time in which the GPU is idle counts as cost."),
    lambda given: given.host.sync.calls,
    order=call_order,
)
IMPLICIT_CALLS = CaptureMeasure(
    _calls_table(
        "implicit_sync_calls", "Implicitly synchronizing calls", "Copies with pageable memory, allocation and free."
    ),
    lambda given: given.host.implicit_sync.calls,
    order=call_order,
)
