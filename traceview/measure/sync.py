"""Calls that block the host, and the GPU idle time that they cause (docs/definitions.md "Synchronization")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Times
from traceview.measure.activity import Activity, overlaps_window
from traceview.measure.base import CaptureMeasure
from traceview.measure.sums import covered_length_few_queries
from traceview.model.analysis import HostUse, SyncUse
from traceview.model.columns import Table
from traceview.model.rows import ApiTotal
from traceview.model.trace import ROLES, Trace, Window

TOTALS = ("blocked", "waited", "starved", "refill")


def measure_host(trace: Trace, activities: Sequence[Activity]) -> HostUse:
    """Measure explicit synchronizations, and separately the calls that synchronize implicitly."""
    busy = _busy_by_process(trace, activities)
    explicit = trace.api["role"].to_physical().to_numpy() == ROLES.index("sync")
    implicit = trace.api["implicit"].arg_true().to_numpy().astype(np.int64)
    return HostUse(
        sync=_measure_calls(trace, np.flatnonzero(explicit), busy),
        implicit_sync=_measure_calls(trace, implicit[~explicit[implicit]], busy),
    )


def _busy_by_process(trace: Trace, activities: Sequence[Activity]) -> dict[int, Intervals]:
    """Return, for each process, when any GPU that it uses was busy."""
    used: dict[int, list[Intervals]] = {}
    for device in activities:
        for process in trace.devices["processes"][device.device]:
            used.setdefault(process, []).append(device.busy)
    return {process: _merge(unions) for process, unions in used.items()}


def _merge(unions: list[Intervals]) -> Intervals:
    if len(unions) == 1:
        return unions[0]
    return intervals.union(
        np.concatenate([union.start for union in unions]), np.concatenate([union.end for union in unions])
    )


def _measure_calls(trace: Trace, rows: Times, busy: dict[int, Intervals]) -> SyncUse:
    """Measure the calls in `rows` of Trace.api; `busy` has the GPU work of each process."""
    start, end = trace.api["start"].to_numpy()[rows], trace.api["end"].to_numpy()[rows]
    if trace.window is not None:
        rows, start, end = _clip_calls(rows, start, end, trace.window)
    process = trace.api.select("process")[rows]["process"].to_numpy()
    waited = np.zeros(len(rows), np.int64)
    refill = np.zeros(len(rows), np.int64)
    for process_id in np.unique(process):
        chosen = process == process_id
        work = busy.get(int(process_id), EMPTY)
        waited[chosen] = covered_length_few_queries(work, start[chosen], end[chosen])
        refill[chosen] = _restart_gaps(work, end[chosen])
    frame = trace.api.select("name", "thread", "process")[rows].with_columns(
        pl.Series("start", start),
        pl.Series("end", end),
        pl.Series("api", rows, dtype=pl.Int64),
        pl.Series("blocked", end - start),
        pl.Series("waited", waited),
        pl.Series("starved", end - start - waited),
        pl.Series("refill", refill),
    )
    return _sum_calls(frame)


def _clip_calls(rows: Times, start: Times, end: Times, window: Window) -> tuple[Times, Times, Times]:
    inside = overlaps_window(start, end, window)
    start, end = start[inside], end[inside]
    return rows[inside], np.maximum(start, window.start), np.minimum(end, window.end)


def _restart_gaps(busy: Intervals, end: Times) -> Times:
    """Return the GPU idle time after each call returned; 0 if the GPU was busy then, or had no more work."""
    if len(busy.start) == 0:
        return np.zeros(len(end), np.int64)
    after = np.searchsorted(busy.start, end, side="right")
    working = (after > 0) & (busy.end[np.maximum(after - 1, 0)] > end)
    resumes = busy.start[np.minimum(after, len(busy.start) - 1)]
    return np.where(working | (after == len(busy.start)), 0, resumes - end)


def _sum_calls(frame: pl.DataFrame) -> SyncUse:
    sums = [pl.col(name).sum() for name in TOTALS]
    calls = (
        frame.group_by(pl.col("name").cast(pl.String))
        .agg(pl.len().alias("count"), *sums)
        .sort(["blocked", "name"], descending=[True, False])
    )
    total = {name: int(frame[name].sum()) for name in TOTALS}
    return SyncUse(
        count=len(frame),
        blocked_ns=total["blocked"],
        waited_ns=total["waited"],
        starved_ns=total["starved"],
        refill_ns=total["refill"],
        calls=tuple(ApiTotal(*row) for row in calls.iter_rows()),
        frame=frame,
    )


def _calls_table(name: str, title: str, note: str) -> Table:
    shown = ("api", "count", "blocked_ns", "starved_ns", "refill_ns", "cost_ns", "waited_ns")
    return Table(name=name, title=title, note=note, row_type=ApiTotal, shown=shown, in_json=False)


SYNC_CALLS = CaptureMeasure(
    _calls_table("sync_calls", "Synchronizations", "Only the time in which the GPU is idle counts as cost."),
    lambda given: given.host.sync.calls,
)
IMPLICIT_CALLS = CaptureMeasure(
    _calls_table(
        "implicit_sync_calls", "Implicitly synchronizing calls", "Copies with pageable memory, allocation and free."
    ),
    lambda given: given.host.implicit_sync.calls,
)
