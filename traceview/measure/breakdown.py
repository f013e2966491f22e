"""What stretches of time were made of, on the GPUs of one process: any number of stretches at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.measure.activity import Activity, activity
from traceview.measure.host import Host
from traceview.measure.idle import attribute, device_gaps, idle_of
from traceview.model import CAUSES, KINDS, SOURCES, Gaps, Trace

KERNEL = SOURCES.index("kernel")
BLOCKED = "blocked_ns"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One value a stretch: `figures` by the field names of model.Iteration, `idle` by cause.

    `idle` has the shape (len(CAUSES), stretches); all is in ns, but kernel_count.
    """

    figures: Mapping[str, Times]
    idle: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured before: the devices to look at, and the gaps of each by row of Trace.devices."""

    activities: Sequence[Activity]
    gaps: Mapping[int, Gaps]

    @classmethod
    def of(cls, trace: Trace, of: Host) -> Measured:
        """Measure every device of a trace."""
        found = [work for row in range(len(trace.devices)) if (work := activity(trace, row)) is not None]
        return cls(found, {work.device: device_gaps(trace, of, idle_of(trace, of, work)) for work in found})

    def left_out(self, trace: Trace) -> list[int]:
        """Return the processes whose every GPU is left out: a question about one GPU is not about them."""
        processes = trace.devices["processes"].to_list()
        used = {one for device in self.activities for one in processes[device.device]}
        return sorted({one for every in processes for one in every} - used)


def breakdown(trace: Trace, of: Host, measured: Measured, process: int, start: Times, end: Times) -> Breakdown:
    """Clip the work of the process's GPUs to each [start, end), which may overlap; GPUs are summed."""
    names = ("compute_ns", "communication_ns", "exposed_h2d_ns", "exposed_d2h_ns", "exposed_communication_ns")
    figures = {name: np.zeros(len(start), np.int64) for name in (*names, "kernel_count")}
    idle = np.zeros((len(CAUSES), len(start)), np.int64)
    processes = trace.devices["processes"].to_list()
    for device in measured.activities:
        if process not in processes[device.device]:
            continue
        for name, union in zip(names, _unions(trace, device), strict=True):
            figures[name] += intervals.covered(union, start, end)
        figures["kernel_count"] += _kernels(trace, device, start, end)
        idle += _idle(trace, of, device, measured.gaps[device.device], start, end)
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


def _idle(trace: Trace, of: Host, device: Activity, gaps: Gaps, start: Times, end: Times) -> NDArray[np.int64]:
    """Return the ns of each cause inside each stretch: whole gaps are summed, cut ones attributed anew."""
    window = device.window
    # Before its first and after its last operation the device is idle too.
    ends = np.array([window.start, max(int(end.max()), window.end)], np.int64)
    starts = np.array([min(int(start.min()), window.start), window.end], np.int64)
    operation = device.next_operation(ends)
    around = attribute(trace, of, starts, ends, operation)
    starts, ends = _within(starts, gaps.frame["start"]), _within(ends, gaps.frame["end"])
    operation = _within(operation, gaps.frame["operation"].fill_null(-1))

    def begun(at: Times) -> tuple[Times, NDArray[np.int64]]:
        place = np.maximum(np.searchsorted(starts, at, side="right") - 1, 0)
        stop = np.clip(at, starts[place], ends[place])
        return place, attribute(trace, of, starts[place], stop, operation[place])

    (first, before_first), (last, before_last) = begun(start), begun(end)
    idle = before_last - before_first
    for code, cause in enumerate(CAUSES):
        running = np.cumsum(_within(around[code], gaps.frame[cause]))
        idle[code] += np.where(last > 0, running[last - 1], 0) - np.where(first > 0, running[first - 1], 0)
    return idle


def _within(around: Times, gaps: pl.Series) -> Times:
    """Put the values of a device's gaps between those before its first and after its last operation."""
    return np.concatenate([around[:1], gaps.to_numpy(), around[1:]])


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
    total: Times = count * (at - base) - running[count]
    return total
