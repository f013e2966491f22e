"""Figures that only the page's charts show (docs/definitions.md "Charts"). They are measured when a page is written.

Here are a device's charts: streams that are busy together, gaps by length, copies by size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times
from traceview.measure.activity import overlaps_window
from traceview.measure.charts.kernels import (
    KernelTotals,
    kernel_groupings,
    launch_shapes,
    merge_kernels,
    sum_kernels,
    sums_of_part,
)
from traceview.measure.charts.trees import place_trees, stack_tree, tree_totals
from traceview.measure.host import HostIdle
from traceview.measure.places import Places
from traceview.model.analysis import CAUSES, DeviceUse, Iterations, NotMeasured
from traceview.model.charts import Charts, CopyGroup, DeviceCharts, GapLengths, StackTree, StreamsAtOnce, iteration_bars
from traceview.model.trace import MEMORIES, Trace, Window

MAX_STREAMS = 16
COPY_SUMS = ("count", "sum_bytes", "sum_ns")
MAX_COPY_GROUPS = 1000
STEPS_PER_DOUBLING = (8, 4, 2, 1)  # steps of size or duration; the first that gives at most MAX_COPY_GROUPS is used
# 1, 2, 5, 10, 20, 50, ... ns
LENGTH_EDGES = np.array([step * 10**power for power in range(18) for step in (1, 2, 5)], np.int64)


def stream_pairs(trace: Trace, device: int, window: Window, streams: Sequence[int] | None = None) -> pl.DataFrame:
    """Measure how long each pair of streams was busy at the same time inside `window`: left, right, ns; these add up.

    `streams` are rows of Trace.streams; None stands for all.
    """
    operations = trace.operations.lazy().filter(pl.col("device") == device, pl.col("end") >= window.start)
    frame = operations.filter(pl.col("start") < window.end).select("stream", "start", "end").collect()
    unions: dict[int, Intervals] = {}
    for own in frame.partition_by("stream"):
        row = int(own["stream"][0])
        if streams is None or row in streams:
            union = intervals.union(own["start"].to_numpy(), own["end"].to_numpy(), ordered=True)
            unions[row] = intervals.clip(union, window.start, window.end)
    coverages = {row: Coverage.from_union(union) for row, union in unions.items()}
    rows = [(row, row, intervals.length(union)) for row, union in unions.items()]
    for left, right in combinations(sorted(unions), 2):
        # Look up the stream with fewer intervals in the other one.
        few, many = sorted((left, right), key=lambda row: len(unions[row].start))
        rows.append((left, right, int(coverages[many].length_between(unions[few].start, unions[few].end).sum())))
    return pl.DataFrame(rows, schema=dict.fromkeys(("left", "right", "ns"), pl.Int64), orient="row")


def busiest_streams(device: DeviceUse, limit: int = MAX_STREAMS) -> list[int]:
    """Return the streams of a device (rows of Trace.streams) with the most busy time."""
    return [use.stream for use in sorted(device.streams, key=lambda use: (-use.busy_ns, use.stream))[:limit]]


def streams_at_once(device: DeviceUse, pairs: pl.DataFrame, limit: int = MAX_STREAMS) -> StreamsAtOnce:
    """Return the time of each pair of a device's `limit` busiest streams; `pairs` add up to stream_pairs."""
    chosen = busiest_streams(device, limit)
    sums = pairs.group_by("left", "right").agg(pl.col("ns").sum())
    known = {(left, right): ns for left, right, ns in sums.select("left", "right", "ns").iter_rows()}
    return StreamsAtOnce(
        streams=tuple(chosen),
        together_ns=tuple(
            tuple(known.get((min(left, right), max(left, right)), 0) for right in chosen) for left in chosen
        ),
        left_out=len(device.streams) - len(chosen),
    )


def gap_totals(gaps: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each length (a place in LENGTH_EDGES) of gaps: count, the longest one, and ns by cause.

    Gaps are in the order of time.
    """
    length = (gaps["end"] - gaps["start"]).to_numpy()
    place = pl.Series("place", np.searchsorted(LENGTH_EDGES, length, side="right") - 1, pl.Int64)
    columns = gaps.select("start", "end", *CAUSES, pl.lit(1).cast(pl.Int64).alias("count"), place)
    return added_gaps(columns)


def added_gaps(totals: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each length from several, which are in the order of time.

    The first of equally long gaps is the longest.
    """
    longest = (pl.col("end") - pl.col("start")).arg_max()
    sums = pl.col("count", *CAUSES).sum()
    return totals.group_by("place").agg(pl.col("start", "end").get(longest), sums).sort("place")


def gap_lengths(totals: pl.DataFrame) -> tuple[GapLengths, ...]:
    """Return gaps by length, shortest first, without the lengths that no gap has; `totals` add up (added_gaps)."""
    return tuple(
        GapLengths(
            from_ns=int(LENGTH_EDGES[row["place"]]),
            to_ns=int(LENGTH_EDGES[row["place"] + 1]),
            count=row["count"],
            causes={cause: row[cause] for cause in CAUSES if row[cause]},
            longest=Window(row["start"], row["end"]),
        )
        for row in added_gaps(totals.sort("start")).iter_rows(named=True)
    )


def copy_groups(copies: pl.DataFrame, limit: int = MAX_COPY_GROUPS) -> tuple[CopyGroup, ...]:
    """Return a device's copies by size and duration; `copies` are those of copy_totals, also of several parts.

    Up to `limit` copies form a group each. Otherwise, copies of the same kind and memory form a group if their sizes
    and durations fall into the same steps; a doubling has 8 steps, or fewer until there are at most `limit` groups.
    """
    if int(copies["count"].sum()) > limit:
        for steps in STEPS_PER_DOUBLING:
            groups = _grouped(copies, _group_numbers(copies, steps))
            if len(groups) <= limit:
                break
        copies = groups
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
        for row in copies.iter_rows(named=True)
    )


def copy_totals(trace: Trace, device: int, limit: int = MAX_COPY_GROUPS) -> tuple[pl.DataFrame, int]:
    """Return a device's copies, or groups if there are more than `limit`, and the number without bytes or length.

    A row has the slowest copy of a group, and the count, the bytes and the ns of all. The size and the duration of the
    slowest are in the steps of the group, also in coarser ones, so rows of several parts form the groups of all.
    With Trace.window, copies that overlap the window count in full.
    """
    copies = _device_copies(trace, device)
    measurable = (copies["bytes"].to_numpy() > 0) & (copies["end"].to_numpy() > copies["start"].to_numpy())
    left_out = int(np.count_nonzero(~measurable))
    copies = copies.filter(pl.Series(measurable)).with_columns(
        pl.lit(1).cast(pl.Int64).alias("count"),
        pl.col("bytes").cast(pl.Int64).alias("sum_bytes"),
        (pl.col("end") - pl.col("start")).alias("sum_ns"),
    )
    return (
        _grouped(copies, _group_numbers(copies, STEPS_PER_DOUBLING[0])) if len(copies) > limit else copies
    ), left_out


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


class ChartTotals(NamedTuple):
    """What charts of one device follow from; rows of several parts of a capture are those of the complete capture.

    `streams`, `gaps`, `copies`, `places` and `kernels` are the results of stream_pairs, gap_totals, copy_totals,
    tree_totals and sum_kernels.
    """

    streams: pl.DataFrame
    gaps: pl.DataFrame
    copies: pl.DataFrame
    copies_left_out: int
    places: pl.DataFrame
    kernels: KernelTotals


def chart_totals(
    trace: Trace,
    device: DeviceUse,
    gaps: pl.DataFrame,
    places: Places,
    *,
    whole: bool,
    streams: Sequence[int] | None,
    part_count: int = 1,
) -> ChartTotals:
    """Return the totals of a device in a capture, or in one of its `parts`.

    `gaps` are those of the device to count; `streams` are those of stream_pairs.
    """
    copies, left_out = copy_totals(trace, device.device)
    return ChartTotals(
        stream_pairs(trace, device.device, device.window, streams),
        gap_totals(gaps),
        copies,
        left_out,
        tree_totals(trace, device.device, (device if whole else device.steady).window, places),
        sum_kernels(trace, device, places, sums_of_part(part_count)),
    )


def device_charts(
    device: DeviceUse, totals: Sequence[ChartTotals], kernels: KernelTotals, *, whole: bool
) -> DeviceCharts:
    """Return the charts of a device from the totals of all parts; `kernels` are the merged ones."""
    tree = [part.places for part in totals if not part.places.is_empty()]
    places, ranges = place_trees(pl.concat(tree) if tree else pl.DataFrame())
    others = () if device.window == device.steady.window else kernel_groupings(kernels, steady=whole)
    return DeviceCharts(
        device=device.device,
        streams=streams_at_once(device, pl.concat([part.streams for part in totals])),
        gaps=gap_lengths(pl.concat([part.gaps for part in totals])),
        copies=copy_groups(pl.concat([part.copies for part in totals])),
        copies_left_out=sum(part.copies_left_out for part in totals),
        kernels=kernel_groupings(kernels, steady=not whole),
        other_kernels=others,
        places=places,
        ranges=ranges,
    )


def merged_charts(
    devices: Sequence[DeviceUse],
    iterations: Iterations | NotMeasured,
    totals: Mapping[int, Sequence[ChartTotals]],
    shapes: pl.DataFrame,
    host_idle: HostIdle | None,
    idle: pl.DataFrame,
    *,
    whole: bool = False,
) -> Charts:
    """Return all charts; `totals` has those of each device, one for each part, and `shapes` those of the timeline.

    `host_idle` may be that of the small tables of the capture; `idle` is the result of its line_sums for all parts.
    """
    windows = [(device if whole else device.steady).window for device in devices]
    stacks = StackTree()
    if host_idle is not None:
        stacks = stack_tree(host_idle.trace.evidence, host_idle.stack_times(idle, windows))
    kernels = {row: merge_kernels([part.kernels for part in parts]) for row, parts in totals.items()}
    return Charts(
        devices=tuple(
            device_charts(device, totals[device.device], kernels[device.device], whole=whole) for device in devices
        ),
        iterations=() if isinstance(iterations, NotMeasured) else iteration_bars(iterations.per_iteration),
        shapes=launch_shapes(tuple(kernels.values()), shapes),
        stacks=stacks,
    )
