"""Figures that only the page's charts show (docs/definitions.md "Charts"). They are measured when a page is written.

Here are a device's charts: streams that are busy together, gaps by length, copies by size.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import EMPTY, Coverage, Times
from traceview.measure.activity import overlaps_window
from traceview.measure.charts.kernels import KernelSums, kernel_groupings, launch_shapes, sum_kernels
from traceview.measure.charts.trees import place_trees, stack_tree
from traceview.measure.host import HostIdle
from traceview.measure.places import Places
from traceview.model.analysis import CAUSES, Analysis, DeviceUse, NotMeasured
from traceview.model.charts import Charts, CopyGroup, DeviceCharts, GapLengths, StackTree, StreamsAtOnce, iteration_bars
from traceview.model.trace import MEMORIES, Trace, Window

MAX_STREAMS = 16
COPY_SUMS = ("count", "sum_bytes", "sum_ns")
MAX_COPY_GROUPS = 1000
STEPS_PER_DOUBLING = (8, 4, 2, 1)  # steps of size or duration; the first that gives at most MAX_COPY_GROUPS is used
# 1, 2, 5, 10, 20, 50, ... ns
LENGTH_EDGES = np.array([step * 10**power for power in range(18) for step in (1, 2, 5)], np.int64)


def measure_charts(analysis: Analysis, places: Places, host_idle: HostIdle | None) -> Charts:
    """Return all charts of an analysis; `host_idle` is what its lines of the program come from."""
    kernels = {device.device: sum_kernels(analysis.trace, device, places) for device in analysis.devices}
    iterations = analysis.iterations
    return Charts(
        devices=tuple(device_charts(analysis, device, places, kernels[device.device]) for device in analysis.devices),
        iterations=() if isinstance(iterations, NotMeasured) else iteration_bars(iterations.per_iteration),
        shapes=launch_shapes(tuple(kernels.values()), analysis.trace.shapes),
        stacks=StackTree() if host_idle is None else _stacks(analysis, host_idle),
    )


def _stacks(analysis: Analysis, host_idle: HostIdle) -> StackTree:
    covered = [analysis.covered(device) for device in analysis.devices]
    times = host_idle.stack_times([each.gaps.frame for each in covered], [each.window for each in covered])
    return stack_tree(analysis.trace.evidence, times)


def device_charts(analysis: Analysis, device: DeviceUse, places: Places, kernels: KernelSums) -> DeviceCharts:
    """Return the charts of a device; `kernels` are its kernels."""
    trace, whole = analysis.trace, analysis.whole
    copies, left_out = copy_groups(trace, device.device)
    by_place, by_range = place_trees(trace, device.device, analysis.covered(device).window, places)
    same = device.window == device.steady.window
    return DeviceCharts(
        device=device.device,
        streams=streams_at_once(trace, device),
        gaps=gap_lengths(device.gaps.frame),
        copies=copies,
        copies_left_out=left_out,
        kernels=kernel_groupings(kernels, steady=not whole),
        other_kernels=() if same else kernel_groupings(kernels, steady=whole),
        places=by_place,
        ranges=by_range,
    )


def streams_at_once(trace: Trace, device: DeviceUse, limit: int = MAX_STREAMS) -> StreamsAtOnce:
    """Return how long each pair of a device's `limit` busiest streams was busy at the same time."""
    busiest = sorted(device.streams, key=lambda use: (-use.busy_ns, use.stream))[:limit]
    streams, window = [use.stream for use in busiest], device.window
    operations = trace.operations.lazy().filter(
        pl.col("stream").is_in(streams), pl.col("end") >= window.start, pl.col("start") < window.end
    )
    unions = dict.fromkeys(streams, EMPTY)
    for work in operations.select("stream", "start", "end").collect().partition_by("stream"):
        union = intervals.union(work["start"].to_numpy(), work["end"].to_numpy(), ordered=True)
        unions[int(work["stream"][0])] = intervals.clip(union, window.start, window.end)
    coverages = {stream: Coverage.from_union(union) for stream, union in unions.items()}
    together = {(stream, stream): intervals.length(union) for stream, union in unions.items()}
    for pair in combinations(streams, 2):
        # Look up the stream with fewer intervals in the other one.
        few, many = sorted(pair, key=lambda stream: len(unions[stream].start))
        both = int(coverages[many].length_between(unions[few].start, unions[few].end).sum())
        together[pair] = together[pair[::-1]] = both
    return StreamsAtOnce(
        streams=tuple(streams),
        together_ns=tuple(tuple(together[first, second] for second in streams) for first in streams),
        left_out=len(device.streams) - len(streams),
    )


def gap_lengths(gaps: pl.DataFrame) -> tuple[GapLengths, ...]:
    """Return gaps, which are in the order of time, by length, shortest first, without the lengths that no gap has.

    The first of equally long gaps is the longest.
    """
    length = (gaps["end"] - gaps["start"]).to_numpy()
    place = pl.Series("place", np.searchsorted(LENGTH_EDGES, length, side="right") - 1, pl.Int64)
    longest = pl.col("start", "end").get((pl.col("end") - pl.col("start")).arg_max())
    figures = (pl.len().alias("count"), pl.col(CAUSES).sum(), longest)
    return tuple(
        GapLengths(
            from_ns=int(LENGTH_EDGES[row["place"]]),
            to_ns=int(LENGTH_EDGES[row["place"] + 1]),
            count=row["count"],
            causes={cause: row[cause] for cause in CAUSES if row[cause]},
            longest=Window(row["start"], row["end"]),
        )
        for row in gaps.group_by(place).agg(*figures).sort("place").iter_rows(named=True)
    )


def copy_groups(trace: Trace, device: int, limit: int = MAX_COPY_GROUPS) -> tuple[tuple[CopyGroup, ...], int]:
    """Return a device's copies by size and duration, and the number of those without bytes or length.

    Up to `limit` copies form a group each. Otherwise, copies of the same kind and memory form a group if their sizes
    and durations fall into the same steps; a doubling has 8 steps, or fewer until there are at most `limit` groups.
    With Trace.window, copies that overlap the window count in full.
    """
    copies = _device_copies(trace, device)
    measurable = (copies["bytes"].to_numpy() > 0) & (copies["end"].to_numpy() > copies["start"].to_numpy())
    groups = copies.filter(pl.Series(measurable)).with_columns(
        pl.lit(1).cast(pl.Int64).alias("count"),
        pl.col("bytes").cast(pl.Int64).alias("sum_bytes"),
        (pl.col("end") - pl.col("start")).alias("sum_ns"),
    )
    for steps in STEPS_PER_DOUBLING:
        if len(groups) <= limit:
            break
        # Coarser steps join finer ones, so the groups of the step before are enough.
        groups = _grouped(groups, _group_numbers(groups, steps))
    return tuple(
        CopyGroup(
            kind=row["kind"],
            memory=row["memory"],
            count=row["count"],
            bytes=row["sum_bytes"],
            duration_ns=row["sum_ns"],
            slowest=Window(row["start"], row["end"]),
            stream=row["stream"],
        )
        for row in groups.iter_rows(named=True)
    ), int(np.count_nonzero(~measurable))


def _device_copies(trace: Trace, device: int) -> pl.DataFrame:
    columns = ("start", "end", "kind", "memory", "bytes", "stream")
    chosen = trace.operations.lazy().filter(pl.col("kind").is_not_null(), pl.col("device") == device)
    copies = chosen.select(columns).collect()
    if trace.window is None:
        return copies
    inside = overlaps_window(copies["start"].to_numpy(), copies["end"].to_numpy(), trace.window)
    return copies.filter(pl.Series(inside))


def _group_numbers(copies: pl.DataFrame, steps: int) -> Times:
    """Number the groups in the order of kind, memory, size and duration."""
    # Integer edges: the rounding of a logarithm would move copies between groups.
    edges = np.unique(np.array([round(2 ** (step / steps)) for step in range(62 * steps)], np.int64))
    size = np.searchsorted(edges, copies["bytes"].to_numpy(), side="right")
    length = np.searchsorted(edges, (copies["end"] - copies["start"]).to_numpy(), side="right")
    pair = copies["kind"].to_physical().to_numpy().astype(np.int64) * len(MEMORIES)
    pair = pair + copies["memory"].to_physical().to_numpy()
    key = (pair * (len(edges) + 1) + size) * (len(edges) + 1) + length
    number: Times = np.unique(key, return_inverse=True)[1]
    return number


def _grouped(copies: pl.DataFrame, number: Times) -> pl.DataFrame:
    """Return one row for each group, with its slowest copy; the first of equally slow ones."""
    rate = (pl.col("bytes") / (pl.col("end") - pl.col("start"))).alias("rate")
    ordered = copies.with_columns(rate, pl.Series("number", number)).sort("number", "rate", "start")
    first = [name for name in copies.columns if name not in COPY_SUMS]
    groups = ordered.group_by("number", maintain_order=True).agg(pl.col(first).first(), pl.col(COPY_SUMS).sum())
    return groups.select(copies.columns)
