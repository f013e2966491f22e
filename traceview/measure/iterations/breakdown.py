"""What stretches of time were made of, on the GPUs of one process: any number of stretches at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import EMPTY, Times, distinct
from traceview.measure.activity import KERNEL, Activity, activity
from traceview.measure.copies import Copies
from traceview.measure.gaps.causes import attribute, device_gaps, idle_of
from traceview.measure.host import Host
from traceview.measure.sums import covered, sums_between
from traceview.model.analysis import CAUSES, Gaps
from traceview.model.trace import KINDS, ROLES, Trace

SYNC = ROLES.index("sync")
BLOCKED = "blocked_ns"

Some = TypeVar("Some", bound=np.signedinteger)


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
    names = ("compute", "communication", "exposed_h2d", "exposed_d2h", "exposed_communication")
    figures = {name: np.zeros(len(start), np.int64) for name in (*(f"{name}_ns" for name in names), "kernel_count")}
    idle = np.zeros((len(CAUSES), len(start)), np.int64)
    processes = trace.devices["processes"].to_list()
    for device in measured.activities:
        if process not in processes[device.device]:
            continue
        for name, ns in _covered(trace, device, start, end):
            figures[f"{name}_ns"] += ns
        figures["kernel_count"] += _kernels(trace, device, start, end)
        idle += _idle(trace, of, device, measured.gaps[device.device], start, end)
    figures[BLOCKED] = _blocked(trace, process, start, end)
    return Breakdown(figures, idle)


def _covered(trace: Trace, device: Activity, start: Times, end: Times) -> Iterator[tuple[str, Times]]:
    """Yield how much compute and communication cover of each stretch, and how much copies and they do alone."""
    copies = Copies.of(trace, device)
    beside = {"communication": device.communication}
    for kind in ("h2d", "d2h"):
        members = copies.at[copies.kind == KINDS.index(kind)]
        beside[kind] = intervals.union(device.start[members], device.end[members], ordered=True)
    yield "compute", covered(device.compute, start, end)
    yield "communication", covered(device.communication, start, end)
    for name, union in beside.items():
        parts = intervals.pieces(union, start, end)
        exposed = np.zeros(len(start), np.int64)
        np.add.at(exposed, parts.owner, parts.end - parts.start - covered(device.compute, parts.start, parts.end))
        yield f"exposed_{name}", exposed


def _kernels(trace: Trace, device: Activity, start: Times, end: Times) -> Times:
    kernel = device.of(trace.operations["source"].to_physical().to_numpy()) == KERNEL
    # Not device.start: a kernel that began before the window did not start inside it.
    starts = device.of(trace.operations["start"].to_numpy())
    first, last = (np.searchsorted(starts, at, side="left") for at in (start, end))
    return sums_between(kernel, first, last)


def _idle(trace: Trace, of: Host, device: Activity, gaps: Gaps, start: Times, end: Times) -> NDArray[np.int64]:
    """Return the ns of each cause inside each stretch: whole gaps are summed, cut ones attributed anew."""
    window = device.window
    # Before its first and after its last operation the device is idle too.
    ends = np.array([window.start, max(int(end.max()), window.end)], np.int64)
    starts = np.array([min(int(start.min()), window.start), window.end], np.int64)
    operation = device.next_operation(ends)
    around = attribute(trace, of, starts, ends, operation)
    rows = _cut_gaps(gaps, start, end)
    starts = _within(starts, gaps.frame["start"].to_numpy()[rows])
    ends = _within(ends, gaps.frame["end"].to_numpy()[rows])
    operation = _within(operation, gaps.frame["operation"].gather(rows).fill_null(-1).to_numpy())
    # In order of time, so that what is looked up for one is near what was for the one before.
    at = np.stack([start, end], axis=1).ravel()
    place = np.maximum(np.searchsorted(starts, at, side="right") - 1, 0)
    begun = attribute(trace, of, starts[place], np.clip(at, starts[place], ends[place]), operation[place])
    first, last = place[::2], place[1::2]
    idle = begun[:, 1::2] - begun[:, ::2]
    for code, cause in enumerate(CAUSES):
        # Of each gap that is cut and those up to the next one.
        sums = np.add.reduceat(gaps.frame[cause].to_numpy(), rows) if gaps.causes[cause] else np.zeros_like(rows)
        running = np.cumsum(_within(around[code], sums))
        idle[code] += np.where(last > 0, running[last - 1], 0) - np.where(first > 0, running[first - 1], 0)
    return idle


def _cut_gaps(gaps: Gaps, start: Times, end: Times) -> Times:
    """Return the rows of the first gap and of those in or after which a stretch starts or ends."""
    row = np.searchsorted(gaps.frame["start"].to_numpy(), np.concatenate([start, end]), side="right") - 1
    return distinct(np.append(np.maximum(row, 0), 0)) if gaps.count else EMPTY.start


def _within(around: NDArray[Some], gaps: NDArray[Some]) -> NDArray[Some]:
    """Put the values of a device's gaps between those before its first and after its last operation."""
    return np.concatenate([around[:1], gaps, around[1:]])


def _blocked(trace: Trace, process: int, start: Times, end: Times) -> Times:
    """Return the time that the process's threads spent in blocking calls, added up call by call."""
    rows = np.flatnonzero(trace.api["role"].to_physical().to_numpy() == SYNC)
    rows = rows[(trace.api.select("process")[rows]["process"] == process).to_numpy()]
    if len(rows) == 0:
        return np.zeros(len(start), np.int64)
    began, ended = trace.api["start"].to_numpy()[rows], np.sort(trace.api["end"].to_numpy()[rows])
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
