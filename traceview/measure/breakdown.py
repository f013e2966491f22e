"""What stretches of time were made of, on the GPUs of one process: any number of stretches at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.measure.activity import Activity, activity
from traceview.measure.groups import sums_by
from traceview.measure.host import Host
from traceview.measure.idle import attribute
from traceview.model import CAUSES, KINDS, SOURCES, Trace

KERNEL = SOURCES.index("kernel")
BLOCKED = "blocked_ns"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One value a stretch: `figures` by the field names of model.Iteration, `idle` of shape (stretches, len(CAUSES))."""

    figures: Mapping[str, Times]
    idle: NDArray[np.int64]


def breakdown(trace: Trace, of: Host, process: int, start: Times, end: Times) -> Breakdown:
    """Clip the work of the process's GPUs to each [start, end), which may overlap; GPUs are summed."""
    names = ("compute_ns", "communication_ns", "exposed_h2d_ns", "exposed_d2h_ns", "exposed_communication_ns")
    figures = {name: np.zeros(len(start), np.int64) for name in (*names, "kernel_count")}
    idle = np.zeros((len(start), len(CAUSES)), np.int64)
    for index, processes in enumerate(trace.devices["processes"].to_list()):
        device = activity(trace, index) if process in processes else None
        if device is None:
            continue
        for name, union in zip(names, _unions(trace, device), strict=True):
            figures[name] += intervals.covered(union, start, end)
        figures["kernel_count"] += _kernels(trace, device, start, end)
        idle += _idle(trace, of, device, start, end)
    figures[BLOCKED] = _blocked(trace, process, start, end)
    return Breakdown(figures, idle)


def _unions(trace: Trace, device: Activity) -> tuple[Intervals, ...]:
    kind = trace.operations["kind"].to_physical().fill_null(len(KINDS)).to_numpy()[device.rows]
    copies = (
        intervals.union(device.start[kind == code], device.end[kind == code], ordered=True)
        for code in (KINDS.index("h2d"), KINDS.index("d2h"))
    )
    exposed = (intervals.subtract(union, device.compute) for union in (*copies, device.communication))
    return (device.compute, device.communication, *exposed)


def _kernels(trace: Trace, device: Activity, start: Times, end: Times) -> Times:
    source = trace.operations["source"].to_physical().to_numpy()[device.rows]
    # Not device.start: a kernel that began before the window did not start inside it.
    starts = trace.operations["start"].to_numpy()[device.rows[source == KERNEL]]
    return np.searchsorted(starts, end, side="left") - np.searchsorted(starts, start, side="left")


def _idle(trace: Trace, of: Host, device: Activity, start: Times, end: Times) -> NDArray[np.int64]:
    free = intervals.complement(device.busy, int(start.min()), int(end.max()))
    parts = intervals.pieces(free, start, end)
    causes = attribute(trace, of, parts.start, parts.end, device.next_operation(parts.end))
    return np.stack([sums_by(parts.owner, column, len(start)) for column in causes.T], axis=1)


def _blocked(trace: Trace, process: int, start: Times, end: Times) -> Times:
    """Return the time that the process's threads spent in blocking calls, added up call by call."""
    calls = trace.api.filter((pl.col("role") == "sync") & (pl.col("process") == process))
    if calls.is_empty():
        return np.zeros(len(start), np.int64)
    began, ended = calls["start"].to_numpy(), np.sort(calls["end"].to_numpy())
    base = int(began[0])

    def spent(at: Times) -> Times:
        return _sum_before(began, at, base) - _sum_before(ended, at, base)

    return spent(end) - spent(start)


def _sum_before(ordered: Times, at: Times, base: int) -> Times:
    """Return the sum of (at - moment) over all moments before `at`."""
    count = np.searchsorted(ordered, at, side="left")
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(ordered - base)])
    return count * (at - base) - running[count]
