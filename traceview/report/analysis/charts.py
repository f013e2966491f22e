"""The figures of the charts and of the table of kernels. The page unpacks them when the charts scroll into view."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from traceview.model.analysis import Analysis, DeviceUse, Iteration, Iterations, NotMeasured
from traceview.model.charts import (
    CopyGroup,
    DeviceCharts,
    GapLengths,
    IterationBar,
    KernelGrouping,
    KernelInstance,
    LaunchShape,
    PlaceNode,
    RangeNode,
    SimilarKernels,
    StackNode,
)
from traceview.model.columns import Column, columns
from traceview.model.rows import KernelUse, StreamUse, size_text
from traceview.model.units import plain
from traceview.report.analysis.answer import covered
from traceview.report.json import values_of
from traceview.report.timeline.inputs import PageInputs
from traceview.report.timeline.rows import SampleStacks
from traceview.report.timeline.work import COPY_CLASSES

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
KERNEL_FIGURES = ("share", "total_ns", "per_iteration_ns", "count", "mean_ns")  # the figures of every row
KERNEL_SHAPE = (
    "family",
    "precision",
    "tensor_core",
    "waves",
    "occupancy",
    "grid_text",
    "occupancy_limit",
    "registers",
    "shared_bytes",
)
KERNEL_PLACE = ("range", "module", "op", "inner_op", "line", "direction")
PER_ITERATION = Column("per_iteration_ns", "ns", "per iteration", "Total over the number of iterations.")
MAX_KERNEL_NAME = 300


def charts(inputs: PageInputs) -> Json:
    """Return the figures of every chart; times count from the start of the timeline, rows have its ids."""
    analysis, measured, zero = inputs.analysis, inputs.charts, inputs.span.start
    used, evidence = {device.device: device for device in analysis.devices}, analysis.trace.evidence
    return {
        "devices": [_device(inputs.analyses, used[device.device], device, zero) for device in measured.devices],
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
            _kernels(analysis, device, groupings, zero)
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
        **values_of(node, "library", "parent", "calls"),
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
        **values_of(group, "kind", "memory"),
        "look": COPY_CLASSES.get(group.kind, "copy"),
        **values_of(group, "count", "bytes"),
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


def _kernels(analysis: Analysis, device: DeviceUse, groupings: tuple[KernelGrouping, ...], zero: int) -> Json:
    """Return the kernels of the part of a device's window that findings cover; times count from `zero`."""
    part = analysis.covered(device)
    total = sum(group.total_ns for group in groupings[0].groups) if groupings else 0
    times = _iteration_count(analysis)
    declared = {column.name: column for column in (*columns(KernelUse), PER_ITERATION)}
    figures = [name for name in KERNEL_FIGURES if times or name != "per_iteration_ns"]

    def values(count: int, ns: int) -> list[float | int]:
        each = {"share": ns / total if total else 0.0, "per_iteration_ns": ns // (times or 1), "mean_ns": ns // count}
        return [(each | {"count": count, "total_ns": ns})[name] for name in figures]

    def row(group: SimilarKernels, use: KernelUse | None) -> Json:
        return {
            "name": plain((use.label if use else group.name) or "", MAX_KERNEL_NAME),
            "full": plain(use.demangled or "", MAX_FULL_NAME) if use else "",
            "values": values(group.count, group.total_ns) + [getattr(use, name) for name in KERNEL_SHAPE if use],
            "instances": [_instance(each, zero) for each in (group.median, group.longest, group.first)],
        }

    def rows(grouping: KernelGrouping) -> list[Json]:
        uses: tuple[KernelUse | None, ...] = (None,) * len(grouping.groups)
        if grouping.by == "shape":
            uses = part.tables["kernels"].rows
        return [row(group, use) for group, use in zip(grouping.groups, uses, strict=True)]

    return {
        "device": device.id,
        "covers": covered(analysis, device),
        "columns": [values_of(declared[name], "name", "title", "unit") for name in (*figures, *KERNEL_SHAPE)],
        "figures": len(figures),
        "groupings": [{"by": grouping.by, "rows": rows(grouping)} for grouping in groupings],
        "places": [
            {
                "name": plain(place.kernel, MAX_KERNEL_NAME),
                "full": "",
                "values": values(place.count, place.total_ns),
                "instances": [],
                "place": {
                    name: plain(text, MAX_KERNEL_NAME)
                    for name in KERNEL_PLACE
                    if (text := getattr(place, name)) is not None
                },
            }
            for place in part.tables["kernel_places"].rows
        ],
    }


def _iteration_count(analysis: Analysis) -> int | None:
    iterations = analysis.iterations
    if isinstance(iterations, NotMeasured):
        return None
    return iterations.count if analysis.whole else iterations.count - iterations.skipped


def _instance(instance: KernelInstance, zero: int) -> tuple[int, int, int]:
    return instance.start - zero, instance.end - instance.start, instance.stream
