"""What the charts show, as plain values for the script: read when a person comes near them, not before."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from traceview.model.analysis import Analysis, DeviceUse, Iteration, Iterations, StreamUse
from traceview.model.charts import Charts, CopyGroup, DeviceCharts, GapLengths, IterationBar
from traceview.report.timeline.bands import COPY_CLASSES

Json = dict[str, Any]
MOST_ITERATIONS = 2000  # in the table: of more, the slowest; the bars hold them all
# What an iteration was made of, in the order in which the bars and the table show it.
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


def charts(analysis: Analysis, zero: int) -> Json:
    """Return the figures of every chart; times count from `zero`, rows are named as the timeline names them."""
    measured = analysis.charts() if analysis.charts is not None else Charts()
    used = {device.device: device for device in analysis.devices}
    return {
        "devices": [_device(analysis, used[one.device], one, zero) for one in measured.devices],
        "iterations": _iterations(analysis, measured.iterations, zero),
    }


def _device(analysis: Analysis, device: DeviceUse, measured: DeviceCharts, zero: int) -> Json:
    names = {use.stream: _stream(device, use) for use in device.streams}
    return {
        "id": device.id,
        "streams": [names[row] for row in measured.streams.streams],
        "together": measured.streams.together_ns,
        "streams_left_out": measured.streams.left_out,
        "gaps": [_gaps(one, zero) for one in measured.gaps],
        "copies": [_copies(one, names[one.stream], zero) for one in measured.copies],
        "copies_left_out": measured.copies_left_out,
    }


def _stream(device: DeviceUse, use: StreamUse) -> str:
    return f"{use.label}, process {use.process_id}" if len(device.process_ids) > 1 else use.label


def _gaps(one: GapLengths, zero: int) -> Json:
    return {
        "from": one.from_ns,
        "to": one.to_ns,
        "count": one.count,
        "causes": dict(one.causes),
        "start": one.longest.start - zero,
        "end": one.longest.end - zero,
    }


def _copies(one: CopyGroup, stream: str, zero: int) -> Json:
    return {
        "kind": one.kind,
        "memory": one.memory,
        "look": COPY_CLASSES.get(one.kind, "copy"),
        "count": one.count,
        "bytes": one.bytes,
        "ns": one.duration_ns,
        "stream": stream,
        "row": f"s:{one.stream}",
        "start": one.slowest.start - zero,
        "end": one.slowest.end - zero,
    }


def _iterations(analysis: Analysis, bars: Sequence[IterationBar], zero: int) -> Json | None:
    if not isinstance(analysis.iterations, Iterations):
        return None
    each = analysis.iterations.per_iteration
    slowest = sorted(range(len(each)), key=lambda at: (-each[at].wall_ns, at))[:MOST_ITERATIONS]
    return {
        "bars": [_bar(each, bar, zero) for bar in bars],
        "fields": FIELDS,
        "causes": [cause for cause in (each[0].idle if each else ()) if any(one.idle[cause] for one in each)],
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


def _place(one: Iteration, zero: int) -> Json:
    return {"name": one.name, "start": one.start_ns - zero, "end": one.end_ns - zero}


def _iteration(one: Iteration, zero: int) -> Json:
    return {
        **_place(one, zero),
        "skipped": one.skipped,
        "ns": NS(one),
        "idle": {cause: ns for cause, ns in one.idle.items() if ns},
        "kernels": one.kernel_count,
    }
