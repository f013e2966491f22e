"""NVTX range names and the GPU work launched inside them (docs/definitions.md "NVTX projected on the GPU")."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import BEFORE_ALL, Times, index_ranges, sorted_unique
from traceview.measure.activity import KERNEL, overlaps_window
from traceview.measure.base import CaptureInput, Measure
from traceview.measure.nvtx import Projection, phase_names
from traceview.measure.sums import UnionIndex, batches, sums_by_owner
from traceview.model.analysis import NotMeasured
from traceview.model.columns import Table, field_names
from traceview.model.program import capture_advice
from traceview.model.rows import RangeUse
from traceview.model.trace import Trace, Window

MAX_NAMES = 1_000  # rows; a real program has hundreds of names, and 100,000 rows are 20 MB of JSON


def range_uses(given: CaptureInput) -> tuple[RangeUse, ...] | NotMeasured:
    """Return a row for each name and domain, the busiest on the GPU first; one row for all beyond MAX_NAMES.

    With Trace.window, a name counts if one of its ranges overlaps the window. Ranges and operations are clipped to it
    independently, because an operation may run in the window and be launched before it.
    """
    trace = given.trace
    if trace.ranges.is_empty():
        return NotMeasured(capture_advice(trace.info.profiler, trace.program)["no_ranges"])
    rows = _range_rows(trace, given.projection)
    return rows or NotMeasured("no range overlaps the chosen window")


def phase_uses(given: CaptureInput) -> tuple[RangeUse, ...]:
    """Return a row for each phase; none without ranges, which the rows of RANGES explain."""
    ranges = given.trace.ranges
    if ranges.is_empty():
        return ()
    phases = ranges.with_columns(phase_names(ranges).alias("name"))
    return _range_rows(replace(given.trace, ranges=phases), given.projection)


def _range_rows(trace: Trace, projection: Projection) -> tuple[RangeUse, ...]:
    names = trace.ranges.select("name", "domain").unique(maintain_order=True).with_row_index("group")
    ranges = trace.ranges.join(names, on=["name", "domain"], how="left", maintain_order="left")
    figures = _figures(trace, projection, ranges.select("start", "end", "group"), len(names))
    ordered = (
        figures.join(names.with_columns(pl.col("name", "domain").cast(pl.String)), on="group")
        .sort(["gpu_busy_ns", "host_ns", "name", "domain"], descending=[True, True, False, False])
        .select("group", *field_names(RangeUse))
    )
    uses, others = ordered[:MAX_NAMES], ordered["group"][MAX_NAMES:]
    if len(others):  # they are measured again as one, because their work overlaps
        part = np.ones(len(names), np.uint32)
        part[others.to_numpy()] = 0
        both = ranges.select("start", "end", group=part[ranges["group"].to_numpy()])
        rest = _figures(trace, projection, both, 2).filter(pl.col("group") == 0)
        name = pl.lit(f"({len(others)} other ranges)")
        uses = pl.concat([uses, rest.with_columns(name.alias("name"), pl.lit("").alias("domain")).select(uses.columns)])
    return tuple(RangeUse(*row) for _, *row in uses.iter_rows())


def _figures(trace: Trace, projection: Projection, ranges: pl.DataFrame, groups: int) -> pl.DataFrame:
    """Return the figures of each group of ranges (start, end, group) that has ranges in the window."""
    work = _measure_groups(trace, projection, ranges["group"].to_numpy().astype(np.int64), groups)
    host = _host_figures(ranges, trace.window)
    return host.with_columns(pl.Series(name, values)[host["group"]] for name, values in work.items())


def _host_figures(ranges: pl.DataFrame, window: Window | None) -> pl.DataFrame:
    """Return the count and the host time of each group with ranges in the window, clipped to it."""
    if window is not None:
        inside = overlaps_window(ranges["start"].to_numpy(), ranges["end"].to_numpy(), window)
        ranges = ranges.filter(pl.Series(inside)).with_columns(pl.col("start", "end").clip(window.start, window.end))
    return ranges.group_by("group").agg(
        pl.len().cast(pl.Int64).alias("count"), (pl.col("end") - pl.col("start")).sum().alias("host_ns")
    )


def _measure_groups(trace: Trace, projection: Projection, group: Times, groups: int) -> dict[str, Times]:
    """Measure the work in the window that belongs to each group; `group` is the group of each range.

    Returns one value per group, 0 where it has no work; times in ns.
    """
    work, stretches = _ClippedWork.from_trace(trace, projection), len(projection.stretches.first)
    overlapping = np.flatnonzero(work.overlaps_other())
    stretch_work = _measure_stretches(trace, work, overlapping, stretches)
    used = np.flatnonzero(stretch_work.operations[1:]) + 1
    index, range_row = projection.stretches.open_ranges(used)
    low, high = _first_and_last(range_row, stretch_work.first[used[index]], stretch_work.last[used[index]], len(group))
    # Nested ranges of the same group contribute a stretch once.
    owner, stretch = np.divmod(sorted_unique(group[range_row] * stretches + used[index]), stretches)
    first, last = _first_and_last(owner, stretch_work.first[stretch], stretch_work.last[stretch], groups)
    kernels, operations, via, alone = (sums_by_owner(owner, values[stretch], groups) for values in stretch_work[2:])
    return {
        "gpu_busy_ns": alone + _overlapping_busy_time(work, overlapping, owner, stretch, groups),
        "gpu_span_ns": np.maximum(last - first, 0),
        "gpu_span_each_ns": sums_by_owner(group, np.maximum(high - low, 0), groups),
        "kernel_count": kernels,
        "operation_count": operations,
        "via_process_count": via,
    }


class _ClippedWork(NamedTuple):
    """All operations, clipped to the window, and their runs as in Projection; stretch 0 for runs outside the window."""

    start: Times
    end: Times
    begin: Times
    stretch: Times
    via: NDArray[np.bool_]

    @classmethod
    def from_trace(cls, trace: Trace, projection: Projection) -> _ClippedWork:
        start, end = trace.operations["start"].to_numpy(), trace.operations["end"].to_numpy()
        begin, stretch, via, window = projection.begin, projection.stretch, projection.via_process, trace.window
        if window is None:
            return cls(start, end, begin, stretch, via)
        inside = overlaps_window(start, end, window)
        cut = sorted_unique(np.append(begin, np.flatnonzero(inside[1:] != inside[:-1]) + 1))
        run = np.searchsorted(begin, cut, side="right") - 1
        start, end = (np.clip(times, window.start, window.end) for times in (start, end))
        return cls(start, end, cut, np.where(inside[cut], stretch[run], 0), via[run])

    def overlaps_other(self) -> NDArray[np.bool_]:
        """Return a mask of the operations that overlap another operation."""
        meets = self.start[1:] < np.maximum.accumulate(self.end)[:-1]
        overlaps = np.zeros(len(self.start), np.bool_)
        overlaps[1:] = meets
        overlaps[:-1] |= meets
        return overlaps


class _StretchWork(NamedTuple):
    """One value per stretch: first start, last end, counts, and the ns in which one operation runs alone."""

    first: Times
    last: Times
    kernels: Times
    operations: Times
    via: Times
    alone: Times


def _measure_stretches(trace: Trace, work: _ClippedWork, overlapping: Times, stretches: int) -> _StretchWork:
    if len(work.begin) == 0:
        return _StretchWork(*np.zeros((6, stretches), np.int64))
    alone = work.end - work.start
    alone[overlapping] = 0
    kernel = trace.operations["source"].to_physical().to_numpy() == KERNEL
    operations = np.diff(work.begin, append=len(alone))
    # Sum by run first: operations of a stretch mostly follow each other.
    run_sums = (
        np.add.reduceat(kernel, work.begin, dtype=np.int64),
        operations,
        operations * work.via,
        np.add.reduceat(alone, work.begin),
    )
    ends = _first_and_last(work.stretch, work.start[work.begin], np.maximum.reduceat(work.end, work.begin), stretches)
    return _StretchWork(*ends, *(sums_by_owner(work.stretch, values, stretches) for values in run_sums))


def _first_and_last(owner: Times, first: Times, last: Times, count: int) -> tuple[Times, Times]:
    """Return each owner's first start and last end; for an owner without any, the start is after the end."""
    low, high = np.full(count, -BEFORE_ALL), np.full(count, BEFORE_ALL)
    np.minimum.at(low, owner, first)
    np.maximum.at(high, owner, last)
    return low, high


def _overlapping_busy_time(work: _ClippedWork, overlapping: Times, group: Times, stretch: Times, groups: int) -> Times:
    """Return the length of the union of each group's overlapping operations, in ns.

    `group` and `stretch` are ascending pairs of a group and one of its stretches.
    """
    stretch_of = np.repeat(work.stretch, np.diff(work.begin, append=len(work.start)))[overlapping]
    order = np.argsort(stretch_of, kind="stable")
    ordered = stretch_of[order]
    first = np.searchsorted(ordered, stretch, side="left")
    count = np.searchsorted(ordered, stretch, side="right") - first
    unions = UnionIndex.build(work.start[overlapping], work.end[overlapping])
    busy = np.zeros(groups, np.int64)
    # Where ranges nest, all pairs of (group, operation) at once would be many times the operations.
    for rows in batches(group, count):
        low, high = int(group[rows][0]), int(group[rows][-1]) + 1
        owner, place = np.repeat(group[rows] - low, count[rows]), index_ranges(first[rows], count[rows])
        busy[low:high] = unions.lengths_by_owner(owner, order[place], high - low)
    return busy


RANGES = Measure(
    Table(
        name="nvtx",
        title="NVTX ranges (GPU projection)",
        note="Work belongs to the range that is open where it is launched, backward passes included.",
        row_type=RangeUse,
        listed=False,
    ),
    range_uses,
    "capture",
)
PHASES = Measure(
    replace(
        RANGES.table,
        name="nvtx_phases",
        note=f"{RANGES.table.note} Ranges that differ in a counter are one row: `iteration #`.",
        shown=("label", "count", "host_ns", "gpu_busy_ns", "gpu_span_ns", "kernel_count", "via_process_count"),
        listed=True,
    ),
    phase_uses,
    "capture",
)
