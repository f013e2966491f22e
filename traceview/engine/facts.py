"""The rows that rules read in a part of a capture, and the figures of the whole capture that decide.

An operation belongs to the part in which it starts, a gap to the part in which its last ns lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from traceview.engine.iterations import idle_activity
from traceview.engine.measure import host_in_part
from traceview.engine.part import NEIGHBOURS, PartTrace
from traceview.intervals import Rows
from traceview.measure.activity import Activity
from traceview.measure.nvtx import Nesting, annotating_threads
from traceview.measure.overlap import Copies
from traceview.model.analysis import Analysis, DeviceUse, NotMeasured
from traceview.model.rows import StreamUse
from traceview.model.trace import Trace, Window
from traceview.pricing.accounts import steady_use
from traceview.pricing.base import CaptureFacts, CapturePart, Covered, DeviceFacts, DevicePart
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
