"""The figures of the charts as plain values. The page unpacks them when the charts scroll into view."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from traceview.model.analysis import Analysis, Iteration, Iterations
from traceview.model.charts import (
    CopyGroup,
    DeviceCharts,
    GapLengths,
    IterationBar,
    LaunchShape,
    PlaceNode,
    RangeNode,
    StackNode,
)
from traceview.model.devices import DeviceUse
from traceview.model.rows import StreamUse, size_text
from traceview.report.analysis.kernels import kernel_section
from traceview.report.format import plain
from traceview.timeline.events import PageInputs
from traceview.timeline.groups import SampleStacks
from traceview.timeline.rows import COPY_CLASSES

Json = dict[str, Any]
MAX_PLACE_NAME = 120
MAX_FULL_NAME = 600
MAX_LISTED_ITERATIONS = 2000  # rows of the table; of more iterations it lists the slowest, and the bars show all
# The figures of an iteration, in the order of the bars and the table.
FIELDS = (
    "wall",
    "compute",
    "communication",
    "exposed_communication",
    "exposed_h2d",
    "exposed_d2h",
    "idle",
    "blocked",
)

NS = attrgetter(*(f"{field}_ns" for field in FIELDS))


def charts(inputs: PageInputs) -> Json:
    """Return the figures of every chart; times count from the start of the timeline, rows have its ids."""
    analysis, measured, zero = inputs.analysis, inputs.charts, inputs.events.span.start
    used, evidence = {device.device: device for device in analysis.devices}, analysis.trace.evidence
    return {
        "devices": [_device(inputs.parts, used[device.device], device, zero) for device in measured.devices],
        "iterations": _iterations(analysis, measured.iterations, zero),
        "stacks": {"exact": measured.stacks.exact, "nodes": [_stack(node) for node in measured.stacks.nodes]},
        "shapes": [_shape(shape) for shape in measured.shapes],
        "samples": SampleStacks.from_evidence(evidence).json(evidence),
    }


def _device(parts: Sequence[Analysis], device: DeviceUse, measured: DeviceCharts, zero: int) -> Json:
    names = {use.stream: _stream(device, use) for use in device.streams}
    return {
        "id": device.id,
        "streams": [names[row] for row in measured.streams.streams],
        "together": measured.streams.together_ns,
        "streams_left_out": measured.streams.left_out,
        "gaps": [_gaps(bucket, zero) for bucket in measured.gaps],
        "copies": [_copies(group, names[group.stream], zero) for group in measured.copies],
        "copies_left_out": measured.copies_left_out,
        "places": [_place_node(node) for node in measured.places],
        "ranges": [[*_place_node(node), node.own_ns] for node in measured.ranges],
        "kernels": [
            kernel_section(analysis, device, groupings, zero)
            for analysis, groupings in zip(parts, (measured.kernels, measured.other_kernels), strict=False)
        ],
    }


def _place_node(node: PlaceNode | RangeNode) -> list[Any]:
    return [plain(node.name, MAX_PLACE_NAME), node.parent, node.count, node.total_ns]


def _shape(shape: LaunchShape) -> list[Any]:
    """Return a shape in the order that the panel of the timeline reads (assets/timeline/launch.js)."""
    full = plain(shape.demangled or "", MAX_FULL_NAME)
    sizes = (size_text(shape.grid), size_text(shape.block), shape.registers, shape.shared_bytes)
    names = (plain(shape.name, MAX_FULL_NAME), "" if full == shape.name else full, shape.family)
    return [shape.shape, *names, *sizes, shape.count, shape.total_ns, shape.median_ns]


def _stack(node: StackNode) -> Json:
    return {
        **{name: getattr(node, name) for name in ("library", "parent", "calls")},
        **{name: plain(getattr(node, name), MAX_PLACE_NAME) for name in ("function", "place", "inner")},
        "idle": [node.idle_ns, node.idle_samples],
        "thread": [node.thread_ns, node.thread_samples],
    }


def _stream(device: DeviceUse, use: StreamUse) -> str:
    return f"{use.label}, process {use.process_id}" if len(device.process_ids) > 1 else use.label


def _gaps(bucket: GapLengths, zero: int) -> Json:
    return {
        "from": bucket.from_ns,
        "to": bucket.to_ns,
        "count": bucket.count,
        "causes": dict(bucket.causes),
        "start": bucket.longest.start - zero,
        "end": bucket.longest.end - zero,
    }


def _copies(group: CopyGroup, stream: str, zero: int) -> Json:
    return {
        "kind": group.kind,
        "memory": group.memory,
        "look": COPY_CLASSES.get(group.kind, "copy"),
        "count": group.count,
        "bytes": group.bytes,
        "ns": group.duration_ns,
        "stream": stream,
        "row": f"s:{group.stream}",
        "start": group.slowest.start - zero,
        "end": group.slowest.end - zero,
    }


def _iterations(analysis: Analysis, bars: Sequence[IterationBar], zero: int) -> Json | None:
    if not isinstance(analysis.iterations, Iterations):
        return None
    each = analysis.iterations.per_iteration
    slowest = sorted(range(len(each)), key=lambda at: (-each[at].wall_ns, at))[:MAX_LISTED_ITERATIONS]
    return {
        "bars": [_bar(each, bar, zero) for bar in bars],
        "fields": FIELDS,
        "causes": [
            cause for cause in (each[0].idle if each else ()) if any(iteration.idle[cause] for iteration in each)
        ],
        "each": [_iteration(each[at], zero) for at in sorted(slowest)],
    }


def _bar(each: Sequence[Iteration], bar: IterationBar, zero: int) -> Json:
    return {
        "at": bar.first,
        "first": each[bar.first].name,
        "last": each[bar.first + bar.count - 1].name,
        "count": bar.count,
        "skipped": bar.skipped,
        "wall": bar.wall_ns,
        "parts": dict(bar.parts),
        "slowest": _place(each[bar.slowest], zero),
    }


def _place(iteration: Iteration, zero: int) -> Json:
    return {"name": iteration.name, "start": iteration.start_ns - zero, "end": iteration.end_ns - zero}


def _iteration(iteration: Iteration, zero: int) -> Json:
    return {
        **_place(iteration, zero),
        "skipped": iteration.skipped,
        "ns": NS(iteration),
        "idle": {cause: ns for cause, ns in iteration.idle.items() if ns},
        "kernels": iteration.kernel_count,
    }
