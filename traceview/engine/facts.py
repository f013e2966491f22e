"""The rows that rules read in a part of a capture, what they collect there, and the figures that decide.

An operation belongs to the part in which it starts, a gap to the part in which its last ns lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from traceview.engine.iterations import idle_activity, own_operations
from traceview.engine.measure import host_in_part
from traceview.engine.part import NEIGHBOURS, PartTrace
from traceview.intervals import Intervals, Rows
from traceview.measure.activity import Activity
from traceview.measure.nvtx import Nesting, annotating_threads
from traceview.measure.overlap import Copies
from traceview.measure.shared_work import measuring_threads
from traceview.model.analysis import Analysis, DeviceUse, NotMeasured
from traceview.model.rows import StreamUse
from traceview.model.trace import Trace, Window
from traceview.pricing.accounts import WorkEnds, exposed_work, steady_use, work_ends
from traceview.pricing.base import CaptureFacts, CapturePart, Covered, DeviceFacts, DevicePart
from traceview.pricing.claims import Collected, Group
from traceview.pricing.packages import AnyRule, Failure, guarded
from traceview.pricing.speedups import KernelSequence


class FindingContext(NamedTuple):
    """The figures of the whole capture, which decide.

    `covered` is what findings cover. `uses` holds the figures of each device in this time, by row of Trace.devices.
    """

    analysis: Analysis
    covered: Covered
    uses: Mapping[int, DeviceUse]

    @classmethod
    def from_analysis(cls, analysis: Analysis, steady: Mapping[int, Sequence[StreamUse]]) -> FindingContext:
        """Return the context of an analysis; `steady` has the streams of each device in its steady part."""
        times = {use.device: (use.window, use.steady.window) for use in analysis.devices}
        iterations = analysis.iterations
        counted = None if isinstance(iterations, NotMeasured) else iterations.count - iterations.skipped
        covered = Covered.from_times(times, counted, analysis.run, whole=analysis.whole)
        uses = {}
        for use in analysis.devices:
            if use.device in covered.covered:
                in_window = analysis.whole or use.steady.window == use.window
                uses[use.device] = use if in_window else steady_use(use, tuple(steady[use.device]))
        return cls(analysis, covered, uses)

    def facts(self, sizes: Mapping[str, int]) -> CaptureFacts:
        """Return the facts for decisions; `sizes` are the numbers of operations and calls."""
        devices = tuple(DeviceFacts(use, use.steady.window) for use in self.uses.values())
        return CaptureFacts(self.analysis, devices, self.covered.counted, sizes)


def capture_part(part: PartTrace, covered: Covered) -> CapturePart:
    """Return the rows of a part for rules. They are collected once for all passes."""
    return part.once(("rows for rules", covered.whole), lambda: _capture_part(part, covered), covered)


def _capture_part(part: PartTrace, covered: Covered) -> CapturePart:
    trace = part.trace
    return CapturePart(
        trace=trace,
        host=host_in_part(part, covered.windows),
        devices=tuple(_device_part(part, covered, row) for row in covered.covered),
        covered=covered,
        annotating=annotating_threads(trace),
        nesting=cache(partial(_build_nesting, trace)),
    )


def _build_nesting(trace: Trace) -> Nesting:
    start, end, thread = (trace.ranges[name].to_numpy() for name in ("start", "end", "thread"))
    times = [frame[name].to_numpy() for frame in (trace.api, trace.operations) for name in ("start", "end")]
    edges = [edge for column in times if len(column) for edge in (column.min(), column.max())]
    if trace.window is not None:
        edges += [trace.window.start, trace.window.end]
    return Nesting.build(start, end, thread, np.array(edges, np.int64))


def _device_part(part: PartTrace, covered: Covered, device: int) -> DevicePart:
    trace, steady, window = part.trace, covered.steady[device], covered.covered[device]
    work, every, previous = _own_work(part, device, window)
    gaps = part.gaps(work)  # in pieces, which share the memory of the measured gaps
    frame = gaps.frame
    gap_start, row = frame["start"].to_numpy(), trace.devices.row(device, named=True)
    first = int(np.searchsorted(every, work.rows[0])) if len(work.rows) else 0
    begin = max(first - NEIGHBOURS, 0)
    nearby = every[begin : first + len(work.rows) + NEIGHBOURS] if len(work.rows) else work.rows
    return DevicePart(
        row=device,
        id=row["id"],
        process_ids=tuple(row["processes"]),
        window=window,
        gaps=gaps,
        activity=work,
        copies=Copies.from_activity(trace, work),
        steady=steady,
        gap_start=gap_start,
        gap_end=frame["end"].to_numpy(),
        gap_operation=frame["operation"].fill_null(-1).to_numpy(),
        gap_thread=frame["thread"].fill_null(-1).to_numpy(),
        steady_gaps=slice(*np.searchsorted(gap_start, (steady.start, steady.end)).tolist()),
        previous=previous,
        nearby_rows=nearby,
        own_nearby=slice(first - begin, first - begin + len(work.rows)),
        collect_kernels=partial(KernelSequence.from_rows, trace, device),
    )


def _own_work(part: PartTrace, device: int, covered: Window) -> tuple[Activity, Rows, int]:
    """Return the work of a device in the time that a part accounts for, all of its work, and the operation before it.

    The time begins with the first gap of the part. The rows are those of Trace.operations; -1 stands for none.
    """
    window, whole = part.trace.window, part.work(device)
    assert window is not None, "a part has a window"
    if whole is None:
        nothing = idle_activity(part.trace, device)
        return nothing, nothing.rows, -1
    every = whole.clip(covered).rows
    if window.end <= covered.start or window.start >= covered.end:
        edge = covered.start if window.end <= covered.start else covered.end
        return whole.clip(Window(edge, edge)), every, -1
    low, previous = covered.start, -1
    before = int(np.searchsorted(whole.start, window.start))
    if window.start > covered.start and before:
        reach = int(whole.end[:before].max())
        if _starts_at(whole, window.start):  # the gap before this operation belongs to the part before
            low = max(window.start, low)
        elif reach > covered.start:
            low, previous = reach, int(whole.rows[int(whole.end[:before].argmax())])
    high = covered.end
    if window.end < covered.end:
        until = int(np.searchsorted(whole.start, window.end))
        last = int(whole.end[:until].max()) if until else covered.start
        high = window.end if _starts_at(whole, window.end) else last
    return whole.clip(Window(low, max(min(high, covered.end), low))), every, previous


def _starts_at(work: Activity, moment: int) -> bool:
    place = int(np.searchsorted(work.nonempty_start, moment))
    return place < len(work.nonempty_start) and int(work.nonempty_start[place]) == moment


Rules = tuple[AnyRule, ...]  # in the order in which they claim


class PartSums(NamedTuple):
    """The sums of a part: those of rules by number and device, the ends of its work by device, and its sizes.

    `groups` has the names of the groups that each rule collected, by its number.
    """

    rules: Mapping[tuple[int, int], Any]
    groups: Mapping[int, frozenset[str]]
    failures: Mapping[int, Failure]
    ends: Mapping[int, WorkEnds]
    sizes: Mapping[str, int]


class PartCollection(NamedTuple):
    """The sums of a part, and the groups of members that stay in it, by number of the rule and device."""

    sums: PartSums
    groups: Mapping[tuple[int, int], Mapping[str, Group]]


def collect_in_part(part: PartTrace, covered: Covered, rules: Rules) -> PartSums:
    """Return the sums that rules collect in a part."""
    return collected_in_part(part, covered, rules).sums


def collected_in_part(part: PartTrace, covered: Covered, rules: Rules) -> PartCollection:
    """Run the first half of each rule in a part, once for all passes."""
    return part.once_for_all_passes(_name(covered), partial(_collect, part, covered, rules), covered)


def forget_collected(part: PartTrace, covered: Covered) -> None:
    """Free what rules collected in a part."""
    part.forget(_name(covered))


def _name(covered: Covered) -> str:
    return f"collected {covered.whole}"


def _collect(part: PartTrace, covered: Covered, rules: Rules) -> PartCollection:
    rows = capture_part(part, covered)
    part.forget("threads")  # the rows have the gaps; 1.0 million kernels have 20 MB of calls
    devices = [replace(device) for device in rows.devices]  # copies, so that the part does not keep their kernels
    jobs = [(number, device) for number in range(len(rules)) for device in devices]

    def collect(job: tuple[int, DevicePart]) -> Collected[Any] | Failure:
        rule = rules[job[0]]
        return guarded(rule, partial(rule.collect, rows, job[1]))

    sums, groups, failures = {}, {}, {}
    with measuring_threads(len(part.trace.operations)) as pool:
        for (number, device), collected in zip(jobs, pool.map(collect, jobs), strict=True):
            if isinstance(collected, Failure):
                failures[number] = collected
            else:
                sums[number, device.row], groups[number, device.row] = collected.sums, collected.groups
    ends = {device.row: work_ends(device, exposed_in_part(part, device)) for device in rows.devices}
    sizes = {"operations": len(own_operations(part.trace).operations), "calls": len(part.trace.api)}
    names = {number: _group_names(number, groups) for number, _ in groups}
    return PartCollection(PartSums(sums, names, failures, ends, sizes), groups)


def _group_names(number: int, groups: Mapping[tuple[int, int], Mapping[str, Group]]) -> frozenset[str]:
    """Return the names of the groups of a rule on all devices."""
    return frozenset(name for (rule, _), own in groups.items() if rule == number for name in own)


def exposed_in_part(part: PartTrace, device: DevicePart) -> Mapping[str, Intervals]:
    """Return the result of exposed_work in a part, which is kept."""
    work = device.activity
    return part.once(("exposed", device.row), lambda: exposed_work(work, device.copies), work.window)
