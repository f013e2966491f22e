"""NVTX ranges projected on the GPU (METRICS.md "NVTX projected on the GPU")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.capturing import capturing
from traceview.intervals import Times
from traceview.measure.activity import within
from traceview.measure.groups import Unions, batches
from traceview.measure.stretches import Stretches
from traceview.model import SOURCES, NotMeasured, RangeUse, Trace, Window

KERNEL = SOURCES.index("kernel")


@dataclass(frozen=True, slots=True)
class Projection:
    """Which ranges each GPU operation belongs to: those open in the stretch of its launch.

    `stretch` has one entry for each row of Trace.operations, 0 where it belongs to nothing.
    `via_process` says that its launching thread had no range open, and the annotating thread had.
    """

    stretches: Stretches
    stretch: NDArray[np.int32]
    via_process: NDArray[np.bool_]

    def innermost(self) -> Times:
        """Return the row of the innermost range that each operation belongs to, or -1."""
        return self.stretches.innermost()[self.stretch]

    def pairs(self) -> tuple[Times, Times]:
        """Return every pair of (row of Trace.operations, row of Trace.ranges that it belongs to)."""
        return self.stretches.open_ranges(self.stretch)


def project(trace: Trace) -> Projection:
    """Find the ranges of every operation; one without a launch in the capture belongs to nothing."""
    ranges, launch = trace.ranges, trace.operations["launch"].fill_null(-1).to_numpy()
    stretches = Stretches.of(*(ranges[name].to_numpy() for name in ("start", "end", "thread")))
    rows = np.flatnonzero(launch >= 0)
    stretch = np.zeros(len(launch), np.int32)
    via_process = np.zeros(len(launch), np.bool_)
    if len(rows) == 0 or ranges.is_empty():
        return Projection(stretches, stretch, via_process)
    at = trace.api["start"].to_numpy()[launch[rows]]
    stretch[rows] = stretches.at(trace.api["thread"].to_numpy()[launch[rows]], at)
    lost = np.flatnonzero(stretch[rows] == 0)
    process = trace.operations["process"].to_numpy()[rows[lost]]
    stretch[rows[lost]] = stretches.at(_annotating_threads(ranges, process), at[lost])
    via_process[rows[lost]] = stretch[rows[lost]] > 0
    return Projection(stretches, stretch, via_process)


def _annotating_threads(ranges: pl.DataFrame, process: NDArray[np.int32]) -> Times:
    """Return each process's annotating thread, the one with the most range time; -1 for none."""
    totals = (
        ranges.group_by("process", "thread")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread"], descending=[True, False])
        .unique("process", keep="first", maintain_order=True)
    )
    thread = np.full(len(process), -1, np.int64)
    for one, of, _ in totals.iter_rows():
        thread[process == one] = of
    return thread


def measure_ranges(trace: Trace, projection: Projection | None = None) -> tuple[RangeUse, ...] | NotMeasured:
    """Return one RangeUse for each (name, domain), the busiest on the GPU first.

    In a narrowed trace, a name counts when one of its ranges overlaps the window; ranges and operations
    are clipped to it, each by itself (an operation may run in the window and be launched before it).
    `projection` is the trace's own, where it is known already.
    """
    if trace.ranges.is_empty():
        return NotMeasured(capturing(trace.info.profiler).no_ranges)
    names = trace.ranges.select("name", "domain").unique(maintain_order=True).with_row_index("group")
    ranges = trace.ranges.join(names, on=["name", "domain"], how="left", maintain_order="left")
    host = _on_host(ranges, trace.window)
    if host.is_empty():
        return NotMeasured("no NVTX range overlaps the chosen window")
    projection = projection or project(trace)
    work = _on_gpu(trace, projection, ranges["group"].to_numpy().astype(np.int64), len(names))
    uses = (
        names.with_columns(pl.col("name", "domain").cast(pl.String))
        .join(host, on="group")
        .join(work, on="group", how="left")
        .fill_null(0)
        .sort(["busy", "host", "name", "domain"], descending=[True, True, False, False])
    )
    columns = ("name", "domain", "count", "host", "busy", "span", "span_each", "kernels", "operations", "via")
    return tuple(RangeUse(*row) for row in uses.select(columns).iter_rows())


def _on_host(ranges: pl.DataFrame, window: Window | None) -> pl.DataFrame:
    """Return, for each group with ranges in the window: count and host, clipped to it."""
    if window is not None:
        inside = within(ranges["start"].to_numpy(), ranges["end"].to_numpy(), window)
        clipped = pl.col("start", "end").clip(window.start, window.end)
        ranges = ranges.filter(pl.Series(inside)).with_columns(clipped)
    return ranges.group_by("group").agg(
        pl.len().cast(pl.Int64).alias("count"), (pl.col("end") - pl.col("start")).sum().alias("host")
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """Operations of the window that belong to ranges, by (stretch, start).

    Those of the stretch `used[i]` are the `count[i]` entries of `operation` from `first[i]` on.
    `start` and `end` are all operations' own, clipped to the window.
    """

    used: Times
    first: Times
    count: Times
    operation: Times
    start: Times
    end: Times


def _work(trace: Trace, stretch: NDArray[np.int32]) -> _Work:
    start, end = trace.operations["start"].to_numpy(), trace.operations["end"].to_numpy()
    chosen = stretch > 0
    if trace.window is not None:
        chosen &= within(start, end, trace.window)
        start, end = (np.clip(times, trace.window.start, trace.window.end) for times in (start, end))
    rows = np.flatnonzero(chosen)
    operation = rows[np.argsort(stretch[rows], kind="stable")]
    count = np.bincount(stretch[rows])
    used = np.flatnonzero(count)
    count = count[used]
    return _Work(used, np.cumsum(count) - count, count, operation, start, end)


def _on_gpu(trace: Trace, projection: Projection, group: Times, groups: int) -> pl.DataFrame:
    """Return, for each group with operations: busy, span, span_each, kernels, operations, via.

    `group` gives the group of each row of Trace.ranges.
    """
    work = _work(trace, projection.stretch)
    index, owner = projection.stretches.open_ranges(work.used)
    pairs = pl.DataFrame({"index": index, "range": owner, "group": group[owner]})
    pairs = pairs.join(_by_stretch(trace, projection, work), on="index", how="left")
    last, first = pl.col("last").max(), pl.col("first").min()
    each = pairs.group_by("group", "range").agg((last - first).alias("span_each"))
    once = pairs.unique(["index", "group"])
    busy = _busy(once.sort("group", "index"), work, groups)
    return (
        once.group_by("group")
        .agg((last - first).alias("span"), pl.col("kernels", "operations", "via").sum())
        .join(each.group_by("group").agg(pl.col("span_each").sum()), on="group")
        .join(pl.DataFrame({"group": np.arange(groups), "busy": busy}), on="group")
        .with_columns(pl.col("group").cast(pl.UInt32))
    )


def _by_stretch(trace: Trace, projection: Projection, work: _Work) -> pl.DataFrame:
    """Return index, first, last, kernels, operations, via of each used stretch."""
    source = trace.operations["source"].to_physical().to_numpy()
    if len(work.used) == 0:
        names = ("index", "first", "last", "kernels", "operations", "via")
        return pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
    return pl.DataFrame(
        {
            "index": np.arange(len(work.used)),
            "first": np.minimum.reduceat(work.start[work.operation], work.first),
            "last": np.maximum.reduceat(work.end[work.operation], work.first),
            "kernels": np.add.reduceat((source == KERNEL)[work.operation].astype(np.int64), work.first),
            "operations": work.count,
            "via": np.add.reduceat(projection.via_process[work.operation].astype(np.int64), work.first),
        }
    )


def _busy(once: pl.DataFrame, work: _Work, groups: int) -> Times:
    """Return the busy time of each group from pairs of (group, stretch), by group."""
    index, group = once["index"].to_numpy(), once["group"].to_numpy()
    busy = np.zeros(groups, np.int64)
    unions = Unions.of(work.start, work.end)
    # All pairs of (group, operation) at once would be many times the operations, where ranges nest.
    for rows in batches(group, work.count[index]):
        first, last = int(group[rows][0]), int(group[rows][-1]) + 1
        owner, member = _expanded(index[rows], group[rows] - first, work)
        busy[first:last] = unions.lengths(owner, member, last - first)
    return busy


def _expanded(index: Times, group: Times, work: _Work) -> tuple[Times, Times]:
    """Return every pair of (group, operation) from pairs of (group, stretch)."""
    count = work.count[index]
    place = np.arange(int(count.sum())) + np.repeat(work.first[index] - (np.cumsum(count) - count), count)
    return np.repeat(group, count), work.operation[place]
