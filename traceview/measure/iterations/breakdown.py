"""The work and the idle time of the GPUs of one process in periods of time, for many periods at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import EMPTY, Times, sorted_unique
from traceview.measure.activity import KERNEL, Activity
from traceview.measure.gaps.causes import attribute
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.overlap import Copies
from traceview.measure.sums import covered_length_few_queries, sums_between
from traceview.model.devices import CAUSES, Gaps
from traceview.model.trace import KINDS, ROLES, Trace

SYNC = ROLES.index("sync")
BLOCKED = "blocked_ns"

Integer = TypeVar("Integer", bound=np.signedinteger)


class Breakdown(NamedTuple):
    """One value per period: `figures` by the field names of model.Iteration, `idle` by cause.

    `idle` has the shape (len(CAUSES), periods). All values are in ns, except kernel_count.
    """

    figures: Mapping[str, Times]
    idle: NDArray[np.int64]


class MeasuredDevices(NamedTuple):
    """The devices that count, and the gaps of each by its row of Trace.devices."""

    activities: Sequence[Activity]
    gaps: Mapping[int, Gaps]

    @property
    def devices(self) -> list[int]:
        """The devices that count, rows of Trace.devices."""
        return [work.device for work in self.activities]


def unmeasured_processes(trace: Trace, devices: Collection[int]) -> list[int]:
    """Return the processes that use GPUs, but none of `devices` (rows of Trace.devices)."""
    processes = trace.devices["processes"].to_list()
    used = {process for device in devices for process in processes[device]}
    return sorted({process for users in processes for process in users} - used)


def breakdown(
    trace: Trace, threads: ThreadStates, measured: MeasuredDevices, process: int, start: Times, end: Times
) -> Breakdown:
    """Clip the work of the process's GPUs to each [start, end), and add up the GPUs. Periods may overlap."""
    names = ("compute", "communication", "exposed_h2d", "exposed_d2h", "exposed_communication")
    figures = {name: np.zeros(len(start), np.int64) for name in (*(f"{name}_ns" for name in names), "kernel_count")}
    idle = np.zeros((len(CAUSES), len(start)), np.int64)
    processes = trace.devices["processes"].to_list()
    for device in measured.activities:
        if process not in processes[device.device]:
            continue
        for name, ns in _work_lengths(trace, device, start, end):
            figures[f"{name}_ns"] += ns
        figures["kernel_count"] += _kernel_counts(trace, device, start, end)
        idle += _idle_by_cause(trace, threads, device, measured.gaps[device.device], start, end)
    figures[BLOCKED] = _blocked_time(trace, process, start, end)
    return Breakdown(figures, idle)


def _work_lengths(trace: Trace, device: Activity, start: Times, end: Times) -> Iterator[tuple[str, Times]]:
    """Yield the ns of compute and communication in each period, and of communication and copies without compute."""
    copies = Copies.from_activity(trace, device)
    overlappable = {"communication": device.communication}
    for kind in ("h2d", "d2h"):
        members = copies.members[copies.kind == KINDS.index(kind)]
        overlappable[kind] = intervals.union(device.start[members], device.end[members], ordered=True)
    yield "compute", covered_length_few_queries(device.compute, start, end)
    yield "communication", covered_length_few_queries(device.communication, start, end)
    for name, union in overlappable.items():
        parts = intervals.parts_in_queries(union, start, end)
        hidden = covered_length_few_queries(device.compute, parts.start, parts.end)
        exposed = np.zeros(len(start), np.int64)
        np.add.at(exposed, parts.query, parts.end - parts.start - hidden)
        yield f"exposed_{name}", exposed


def _kernel_counts(trace: Trace, device: Activity, start: Times, end: Times) -> Times:
    kernel = device.select(trace.operations["source"].to_physical().to_numpy()) == KERNEL
    # Unclipped starts: a kernel that began before the window did not start inside it.
    starts = device.select(trace.operations["start"].to_numpy())
    first, last = (np.searchsorted(starts, moments, side="left") for moments in (start, end))
    return sums_between(kernel, first, last)


def _idle_by_cause(
    trace: Trace, threads: ThreadStates, device: Activity, gaps: Gaps, start: Times, end: Times
) -> NDArray[np.int64]:
    """Return the ns of each cause in each period: add up complete gaps, and attribute cut gaps again."""
    window = device.window
    # The device is also idle before its first and after its last operation.
    outer_end = np.array([window.start, max(int(end.max()), window.end)], np.int64)
    outer_start = np.array([min(int(start.min()), window.start), window.end], np.int64)
    outer_operation = device.next_operation(outer_end)
    outer_causes = attribute(trace, threads, outer_start, outer_end, outer_operation)
    rows = _cut_gap_rows(gaps, start, end)
    starts = _insert_between(outer_start, gaps.frame["start"].to_numpy()[rows])
    ends = _insert_between(outer_end, gaps.frame["end"].to_numpy()[rows])
    operation = _insert_between(outer_operation, gaps.frame["operation"].gather(rows).fill_null(-1).to_numpy())
    # Order the borders by period, so that consecutive look-ups are near each other.
    borders = np.stack([start, end], axis=1).ravel()
    place = np.maximum(np.searchsorted(starts, borders, side="right") - 1, 0)
    cut_end = np.clip(borders, starts[place], ends[place])
    before_border = attribute(trace, threads, starts[place], cut_end, operation[place])
    first, last = place[::2], place[1::2]
    idle = before_border[:, 1::2] - before_border[:, ::2]
    for code, cause in enumerate(CAUSES):
        # Each sum has a gap that is cut and the complete gaps up to the next cut one.
        sums = np.add.reduceat(gaps.frame[cause].to_numpy(), rows) if gaps.causes[cause] else np.zeros_like(rows)
        running = np.cumsum(_insert_between(outer_causes[code], sums))
        idle[code] += np.where(last > 0, running[last - 1], 0) - np.where(first > 0, running[first - 1], 0)
    return idle


def _cut_gap_rows(gaps: Gaps, start: Times, end: Times) -> Times:
    """Return the row of the first gap, and of each gap at or after which a period starts or ends."""
    row = np.searchsorted(gaps.frame["start"].to_numpy(), np.concatenate([start, end]), side="right") - 1
    return sorted_unique(np.append(np.maximum(row, 0), 0)) if gaps.count else EMPTY.start


def _insert_between(outer: NDArray[Integer], inner: NDArray[Integer]) -> NDArray[Integer]:
    """Return outer[0], all of `inner`, and outer[1]."""
    return np.concatenate([outer[:1], inner, outer[1:]])


def _blocked_time(trace: Trace, process: int, start: Times, end: Times) -> Times:
    """Return the time of the process's threads in explicit synchronizations, added up call by call."""
    rows = np.flatnonzero(trace.api["role"].to_physical().to_numpy() == SYNC)
    rows = rows[(trace.api.select("process")[rows]["process"] == process).to_numpy()]
    if len(rows) == 0:
        return np.zeros(len(start), np.int64)
    call_start, call_end = trace.api["start"].to_numpy()[rows], np.sort(trace.api["end"].to_numpy()[rows])
    base = int(call_start[0])

    def time_before(moments: Times) -> Times:
        return _elapsed_since(call_start, moments, base) - _elapsed_since(call_end, moments, base)

    return time_before(end) - time_before(start)


def _elapsed_since(events: Times, moments: Times, base: int) -> Times:
    """Return, for each moment, the sum of (moment - event) over all earlier events. `events` ascend."""
    count = np.searchsorted(events, moments, side="left")
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(events - base)])
    total: Times = count * (moments - base) - running[count]
    return total
