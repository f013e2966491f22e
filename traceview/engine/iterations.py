"""Iterations of a capture that is analysed in parts.

A light pass over the parts finds where the iterations are, and what they launch. Then each part measures its part of
each iteration, and the parts add up. An operation belongs to the part in which it starts.

Only the whole capture shows which ranges or launches are iterations. So a part adds up what is launched between any two
borders of ranges, or with each call if there are no ranges. A second pass is needed where iterations repeat in launches
beside ranges, or begin or end elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.engine.part import OverParts, PartTrace
from traceview.intervals import EMPTY, Times, sorted_unique
from traceview.measure.activity import Activity, device_activity
from traceview.measure.gaps import ThreadStates, device_gaps, find_idle_gaps
from traceview.measure.iterations import (
    IterationRanges,
    LaunchSource,
    busiest_first,
    choose_iterations,
    gpu_times,
    with_last_work,
)
from traceview.measure.iterations.candidates import LaunchSums
from traceview.measure.iterations.launches import LaunchPart, LaunchSequence, compute_counts, join_launches, launch_part
from traceview.measure.iterations.times import (
    Breakdown,
    IterationLaunches,
    LaunchIntervals,
    MeasuredDevices,
    breakdown,
    end_of_launches,
)
from traceview.measure.nvtx import project_operations
from traceview.measure.run import CallsTime, calls_time
from traceview.measure.shared_work import once_per_frame
from traceview.model.analysis import CAUSES, NotMeasured
from traceview.model.trace import Trace, Window


@dataclass(frozen=True, slots=True)
class PartLaunches:
    """What a part launches. `times` is the result of gpu_times, `counts` that of compute_counts, `calls` of calls_time.

    `ranges` are the rows of the ranges that launch; the sums that follow are those of LaunchSums for these rows, and
    `processes` is that of LaunchSums. `work` is what each process launches. `sequences` has the launches of each
    process in a capture without ranges, and whether they are its calls (see launch_part).
    """

    known: bool
    ranges: Times
    count: Times
    gpu_ns: Times
    own: Times
    processes: pl.DataFrame
    times: pl.DataFrame
    counts: dict[int, tuple[int, int]]
    calls: CallsTime | None
    work: dict[int, LaunchIntervals]
    sequences: dict[int, tuple[bool, LaunchPart]]


def own_operations(trace: Trace) -> Trace:
    """Return a part without the operations that belong to other parts; the same trace if there are none."""
    if trace.window is None or (rows := own_rows(trace)) == slice(0, len(trace.operations)):
        return trace
    return replace(trace, operations=trace.operations[rows])


def own_rows(trace: Trace) -> slice:
    """Return the rows of the operations that belong to a part."""
    window = trace.window
    assert window is not None, "a part has a window"
    return slice(*np.searchsorted(trace.operations["start"].to_numpy(), (window.start, window.end)).tolist())


def measure_launches(part: PartTrace, devices: Collection[int]) -> PartLaunches:
    """Return what a part launches; `devices` are the measured ones, rows of Trace.devices."""
    own = own_operations(part.trace)
    sums = LaunchSums.from_trace(own, part.projection if own is part.trace else project_operations(own))
    ranges, counts, sequences = np.flatnonzero(sums.count), compute_counts(own), {}
    borders = None if own.ranges.is_empty() else _borders(own.ranges)
    if borders is None:
        calling = {process: 2 * launched >= total for process, (launched, total) in counts.items()}
        sequences = {process: (calls, launch_part(own, process, calls)) for process, calls in calling.items()}
    return PartLaunches(
        known=own.operations["launch"].null_count() < len(own.operations),
        ranges=ranges,
        count=sums.count[ranges],
        gpu_ns=sums.gpu_ns[ranges],
        own=sums.own[ranges],
        processes=sums.processes,
        times=gpu_times(own, devices),
        counts=counts,
        calls=calls_time(part.trace),
        work={process: LaunchIntervals.from_trace(own, process, borders, devices) for process in counts},
        sequences=sequences,
    )


@once_per_frame
def _borders(ranges: pl.DataFrame) -> Times:
    """Return the moments at which ranges begin and end."""
    return sorted_unique(np.concatenate([ranges[name].to_numpy() for name in ("start", "end")]))


class _Launches:
    """What the parts launch together; parts are added as they arrive."""

    def __init__(self, resident: Trace) -> None:
        self.known = False
        self.count, self.gpu_ns, self.own = np.zeros((3, len(resident.ranges)), np.int64)
        self.processes: list[pl.DataFrame] = []
        self.times: list[pl.DataFrame] = []
        self.calls: list[CallsTime] = []
        self.counts: dict[int, tuple[int, int]] = {}
        self.work: dict[int, list[LaunchIntervals]] = defaultdict(list)
        self.sequences: dict[int, list[tuple[bool, LaunchPart]]] = defaultdict(list)

    def add(self, part: PartLaunches) -> None:
        """Add what a part launches."""
        self.known |= part.known
        self.count[part.ranges] += part.count
        self.gpu_ns[part.ranges] += part.gpu_ns
        self.own[part.ranges] += part.own
        self.processes.append(part.processes)
        self.times.append(part.times)
        self.calls += [] if part.calls is None else [part.calls]
        for process, (launched, total) in part.counts.items():
            before = self.counts.get(process, (0, 0))
            self.counts[process] = before[0] + launched, before[1] + total
            self.work[process].append(part.work[process])
        for process, sequence in part.sequences.items():
            self.sequences[process].append(sequence)

    def source(self, over_parts: OverParts, devices: Collection[int]) -> LaunchSource:
        """Return what is known of the launches. `sequence` collects launches beside ranges."""
        sums = LaunchSums(self.count, self.gpu_ns, self.own, _sums_by_process(self.processes))
        times = _sums_by_process(self.times)

        def sequence(process: int) -> LaunchSequence:
            launched, total = self.counts[process]
            calls = 2 * launched >= total
            known = self.sequences[process]
            if known and all(are_calls == calls for are_calls, _ in known):
                return join_launches([part for _, part in known])
            function = partial(_launches_of_process, process=process, calls=calls, devices=devices)
            parts, self.work[process] = map(list, zip(*over_parts(function), strict=True))
            return join_launches(parts)

        return LaunchSource(self.known, lambda: sums, lambda: busiest_first(times), sequence)

    def of_iterations(self, process: int, start: Times, until: int) -> IterationLaunches | None:
        """Return what the iterations of a process launch; None if another pass is needed."""
        total = IterationLaunches.nothing(len(start))
        for work in self.work[process]:
            if (part := work.by_iteration(start, until)) is None:
                return None
            total = total.merged(part)
        return total


def _sums_by_process(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return frames with the column `process` and sums, added by process."""
    every = pl.concat([frame.cast(dict.fromkeys(frame.columns[1:], pl.Int64)) for frame in frames])
    return every.group_by("process").agg(pl.exclude("process").sum())


class LocatedIterations(NamedTuple):
    """Where the iterations are, and what they launch, or why there are none; and the times of the calls of parts."""

    iterations: tuple[IterationRanges, IterationLaunches] | NotMeasured
    calls: Sequence[CallsTime]


def find_iterations_in_parts(
    resident: Trace,
    devices: Sequence[int],
    over_parts: OverParts,
    *,
    pattern: str | None = None,
    skip: int | None = None,
) -> LocatedIterations:
    """Return where the iterations are, and what they launch.

    `resident` has the ranges, devices, threads and the user's window, but no operations and calls. `devices` are the
    measured ones. The other parameters and errors are those of choose_iterations.
    """
    launches = _Launches(resident)
    for part in over_parts(partial(measure_launches, devices=devices)):
        launches.add(part)
    where = choose_iterations(resident, devices, launches.source(over_parts, devices), pattern=pattern, skip=skip)
    if isinstance(where, NotMeasured):
        return LocatedIterations(where, launches.calls)
    until = end_of_launches(where.start, where.end)
    work = launches.of_iterations(where.process, where.start, until)
    if work is None:
        function = partial(_work_in_part, process=where.process, start=where.start, until=until, devices=devices)
        work = reduce(IterationLaunches.merged, over_parts(function))
    return LocatedIterations(with_last_work(where, work), launches.calls)


def _launches_of_process(
    part: PartTrace, process: int, calls: bool, devices: Collection[int]
) -> tuple[LaunchPart, LaunchIntervals]:
    own = own_operations(part.trace)
    return launch_part(own, process, calls), LaunchIntervals.from_trace(own, process, None, devices)


def _work_in_part(
    part: PartTrace, process: int, start: Times, until: int, devices: Collection[int]
) -> IterationLaunches:
    return IterationLaunches.from_trace(own_operations(part.trace), process, start, until, devices)


class IterationPart(NamedTuple):
    """The figures of a part's part of the iterations from number `first` on."""

    first: int
    parts: Breakdown


def measure_iteration_part(
    trace: Trace, threads: ThreadStates, measured: MeasuredDevices, devices: Collection[int], where: IterationRanges
) -> IterationPart:
    """Measure the part of the iterations that lies in a part. `devices` are those that any part measures."""
    window = trace.window
    assert window is not None, "a part has a window"
    inside = np.flatnonzero((where.start < window.end) & (where.end > window.start))
    if len(inside) == 0:
        return IterationPart(0, Breakdown({}, np.zeros((len(CAUSES), 0), np.int64)))
    chosen = slice(int(inside[0]), int(inside[-1]) + 1)
    start = np.minimum(np.maximum(where.start[chosen], window.start), window.end)
    end = np.maximum(np.minimum(where.end[chosen], window.end), start)
    every = _with_idle_devices(trace, threads, measured, devices)
    return IterationPart(chosen.start, breakdown(trace, threads, every, where.process, start, end))


def _with_idle_devices(
    trace: Trace, threads: ThreadStates, measured: MeasuredDevices, devices: Collection[int]
) -> MeasuredDevices:
    """Return the measured devices, and those that do nothing in a part."""
    idle = [idle_activity(trace, device) for device in devices if device not in measured.devices]
    gaps = {work.device: device_gaps(trace, find_idle_gaps(trace, threads, work)) for work in idle}
    return MeasuredDevices((*measured.activities, *idle), {**measured.gaps, **gaps})


def idle_activity(trace: Trace, device: int) -> Activity:
    """Return the activity of a device that does nothing in a part: without work, at the end of the part."""
    assert trace.window is not None, "a part has a window"
    end, none, rows = trace.window.end, EMPTY.start, np.empty(0, np.int32)
    whole = device_activity(replace(trace, window=None), device)
    later = (rows, none) if whole is None else (whole.nonempty_rows, whole.nonempty_start)
    codes = np.empty(0, np.uint8)
    return Activity(device, Window(end, end), rows, none, none, codes, EMPTY, rows, EMPTY, EMPTY, *later)


def merge_iteration_parts(where: IterationRanges, parts: Iterable[IterationPart]) -> Breakdown:
    """Return the figures of whole iterations."""
    figures: dict[str, Times] = {}
    idle = np.zeros((len(CAUSES), len(where.start)), np.int64)
    for part in parts:
        chosen = slice(part.first, part.first + part.parts.idle.shape[1])
        idle[:, chosen] += part.parts.idle
        for name, values in part.parts.figures.items():
            figures.setdefault(name, np.zeros(len(where.start), np.int64))[chosen] += values
    return Breakdown(figures, idle)
