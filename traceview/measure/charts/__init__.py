"""Figures that only the page's charts show (docs/definitions.md "Charts"). They are measured when a page is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from traceview.measure.charts.device import (
    copy_groups,
    copy_totals,
    gap_lengths,
    gap_totals,
    stream_pairs,
    streams_at_once,
)
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
from traceview.measure.places.locate import Places
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.charts import Charts, DeviceCharts, StackTree, iteration_bars
from traceview.model.devices import DeviceUse
from traceview.model.trace import Trace


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
