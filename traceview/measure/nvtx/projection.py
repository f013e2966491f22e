"""The NVTX ranges that each GPU operation belongs to (docs/definitions.md "NVTX projected on the GPU")."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, sorted_unique
from traceview.measure.activity import overlaps_window
from traceview.measure.nvtx.nesting import Stretches
from traceview.measure.per_frame import launch_rows, once_per_frame
from traceview.model.sizes import empty_frame
from traceview.model.trace import PROJECTED, Trace


class Projection(NamedTuple):
    """The ranges of each GPU operation, which are the ranges open at its launch.

    A run is a sequence of operations that belong to the same stretch. `begin` is the first row of Trace.operations of
    each run. `stretch` is a run's stretch, 0 where it belongs to no range. `via_process` marks runs whose launching
    thread has no open range, while the annotating thread of its process has.
    """

    stretches: Stretches
    operations: int
    begin: Times
    stretch: Times
    via_process: NDArray[np.bool_]


def project_operations(trace: Trace) -> Projection:
    """Find the ranges of every operation. An operation without a launch in the capture belongs to no range."""
    launch = launch_rows(trace.operations).astype(np.int64)  # int64 indexes without a conversion
    start, end, thread = (trace.ranges[name].to_numpy() for name in ("start", "end", "thread"))
    # A part of a capture has the ranges of the whole capture: only those that its calls need are cut.
    moments = np.concatenate([trace.api["start"].to_numpy(), trace.captures["start"].to_numpy()])
    stretches = Stretches.build(start, end, thread, moments)
    if trace.api.is_empty() or trace.ranges.is_empty():
        none = np.zeros(min(len(launch), 1), np.int64)
        return Projection(stretches, len(launch), none, none, none > 0)
    lookup, thread = stretches.lookup(trace.api["start"].to_numpy()), trace.api["thread"].to_numpy()
    begin = _run_starts(lookup.borders_passed()[launch], thread[launch])
    call = launch[begin]
    caller = np.where(call >= 0, thread[call], -1)
    stretch = lookup.stretch_at(caller, call)
    outside = np.flatnonzero(stretch == 0)
    stretch[outside] = lookup.stretch_at(annotating_threads(trace)[caller[outside]], call[outside])
    via_process = np.zeros(len(begin), np.bool_)
    via_process[outside] = stretch[outside] > 0
    return Projection(stretches, len(launch), begin, stretch, via_process)


def _run_starts(*columns: NDArray[np.int32]) -> Times:
    """Return the first row of each run of equal rows."""
    differs = np.ones(len(columns[0]), np.bool_)
    differs[1:] = False
    for values in columns:
        differs[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(differs)


def annotating_threads(trace: Trace) -> Times:
    """Return, for each thread, the thread of its process with the most range time; -1 for none.

    The last entry, -1, stands for an unknown thread.
    """
    process = trace.threads["process"].to_numpy()
    annotating = np.full(len(process) + 1, -1, np.int64)
    for process_id, thread in _busiest_threads(trace.ranges):
        annotating[:-1][process == process_id] = thread
    return annotating


@once_per_frame
def _busiest_threads(ranges: pl.DataFrame) -> list[tuple[int, int]]:
    """Return each process with ranges, and its thread with the most range time."""
    totals = (
        ranges.group_by("process", "thread")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread"], descending=[True, False])
        .unique("process", keep="first", maintain_order=True)
    )
    return list(totals.select("process", "thread").iter_rows())


def project_ranges(trace: Trace, projection: Projection | None = None) -> pl.DataFrame:
    """Return one row (see PROJECTED) for each range and device that has its work, by device and start.

    A row spans the first start to the last end of the work that the range launches. With Trace.window, only work that
    overlaps the window counts. `projection` is the result of project_operations, if it exists already.
    """
    projection = projection or project_operations(trace)
    work = _work_of_runs(trace, projection)
    if work.is_empty():
        return empty_frame(PROJECTED)
    merged = (pl.col("start").min(), pl.col("end").max(), pl.col("operations").sum())
    work = work.group_by("stretch", "device").agg(*merged)
    used = work["stretch"].unique().sort()
    index, range_row = projection.stretches.open_ranges(used.to_numpy())
    pairs = pl.DataFrame({"stretch": used.to_numpy()[index], "range": range_row.astype(np.int64)})
    return (
        pairs.join(work, on="stretch")
        .group_by("range", "device")
        .agg(*merged)
        .select(list(PROJECTED))
        .sort("device", "start", "end", "range", descending=[False, False, True, False])
    )


def _work_of_runs(trace: Trace, projection: Projection) -> pl.DataFrame:
    """Return the work of each run that belongs to a range: stretch, device, first start, last end, operations.

    Runs are cut where the device changes.
    """
    device, start, end = (trace.operations[name].to_numpy() for name in ("device", "start", "end"))
    begin = projection.begin
    if trace.window is not None:
        inside = np.flatnonzero(overlaps_window(start, end, trace.window))
        device, start, end = device[inside], start[inside], end[inside]
        begin = np.searchsorted(inside, begin)
    first = sorted_unique(np.concatenate([begin, np.flatnonzero(device[1:] != device[:-1]) + 1]))
    first = first[first < len(start)]
    # Of runs that begin at one place, only the last has work inside the window.
    stretch = projection.stretch[np.searchsorted(begin, first, side="right") - 1]
    if len(first) == 0 or not stretch.any():
        return pl.DataFrame(schema={"stretch": pl.Int64})
    work = pl.DataFrame(
        {
            "stretch": stretch,
            "device": device[first],
            "start": start[first],
            "end": np.maximum.reduceat(end, first),
            "operations": np.diff(first, append=len(start)),
        }
    )
    return work.filter(pl.col("stretch") > 0)
