"""Figures that only the page's charts show (docs/definitions.md "Charts"). They are measured when a page is written."""

from __future__ import annotations

from collections.abc import Sequence

from traceview.measure.charts.device import copy_groups, gap_lengths, streams_at_once
from traceview.measure.charts.iterations import iteration_bars
from traceview.measure.charts.kernels import kernel_groupings
from traceview.measure.charts.launches import launch_shapes
from traceview.measure.charts.places import place_trees
from traceview.measure.charts.stacks import stack_tree
from traceview.measure.host import HostIdle
from traceview.measure.places.locate import Places
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.charts import Charts, DeviceCharts, StackTree
from traceview.model.devices import DevicePart, DeviceUse
from traceview.model.trace import Trace


def measure_charts(
    trace: Trace,
    devices: Sequence[DeviceUse],
    iterations: Iterations | NotMeasured,
    places: Places,
    host_idle: HostIdle | None,
    *,
    whole: bool = False,
) -> Charts:
    """Return the figures of the charts of every device, of the iterations and of the stacks.

    The stacks are those of the steady part, or of the window if `whole`. The kernels are those of both.
    """
    parts: Sequence[DevicePart] = devices if whole else [device.steady for device in devices]
    return Charts(
        devices=tuple(_device_charts(trace, device, places, whole) for device in devices),
        iterations=() if isinstance(iterations, NotMeasured) else iteration_bars(iterations.per_iteration),
        shapes=launch_shapes(trace),
        stacks=StackTree() if host_idle is None else _stacks(host_idle, parts),
    )


def _stacks(host_idle: HostIdle, parts: Sequence[DevicePart]) -> StackTree:
    times = host_idle.stack_times([part.gaps.frame for part in parts], [part.window for part in parts])
    return stack_tree(host_idle.trace.evidence, times)


def _device_charts(trace: Trace, device: DeviceUse, places: Places, whole: bool) -> DeviceCharts:
    part, other = (device, device.steady) if whole else (device.steady, device)
    copies, left_out = copy_groups(trace, device)
    place_tree, range_tree = place_trees(trace, device.device, part.window, places)
    return DeviceCharts(
        device=device.device,
        streams=streams_at_once(trace, device),
        gaps=gap_lengths(device),
        copies=copies,
        copies_left_out=left_out,
        kernels=kernel_groupings(trace, device.device, part.window, places),
        other_kernels=()
        if other.window == part.window
        else kernel_groupings(trace, device.device, other.window, places),
        places=place_tree,
        ranges=range_tree,
    )
