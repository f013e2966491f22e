"""The rows that rules read in a part of a capture, with the figures of the whole capture.

An operation belongs to the part in which it starts, a gap to the part in which its last ns lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from traceview.model.sizes import WorkSizes
from traceview.model.stacks import HostEvidence
from traceview.model.trace import Trace, Window
from traceview.pricing.accounts import steady_use
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart
from traceview.pricing.packages import AnyRule
from traceview.pricing.speedups import KernelSequence


class FindingContext(NamedTuple):
    """The figures of the whole capture. Rules see them in each part.

    `analysis` has no rows of events. `uses` holds the figures of each device in the time that findings cover, by row of
    Trace.devices. `counted` is the number of counted iterations, None if there are none. `rules` run in this order.
    """

    analysis: Analysis
    counted: int | None
    uses: Mapping[int, DeviceUse]
    rules: tuple[AnyRule, ...]

    @classmethod
    def from_analysis(
        cls, analysis: Analysis, steady: Mapping[int, Sequence[StreamUse]], rules: tuple[AnyRule, ...]
    ) -> FindingContext:
        """Return the context of an analysis; `steady` has the streams of each device in its steady part."""
        iterations = analysis.iterations
        counted = None if isinstance(iterations, NotMeasured) else iterations.count - iterations.skipped
        uses = {}
        for use in analysis.devices:
            if analysis.part(use).window.length:
                in_window = analysis.whole or use.steady.window == use.window
                uses[use.device] = use if in_window else steady_use(use, tuple(steady[use.device]))
        return cls(analysis, counted or None, uses, rules)

    @property
    def windows(self) -> tuple[tuple[int, Window], ...]:
        """The time of each device that findings cover."""
        return tuple((row, use.window) for row, use in self.uses.items())

    @property
    def for_parts(self) -> FindingContext:
        """The context without what grows with the capture: it is sent to each part."""
        uses = {row: _without_totals(use) for row, use in self.uses.items()}
        return self._replace(analysis=_without_rows(self.analysis), uses=uses)

    def facts(self, sizes: Mapping[str, int]) -> CaptureFacts:
        """Return the facts for decisions; `sizes` are the numbers of operations and calls."""
        devices = tuple(DeviceFacts(use, use.steady.window) for use in self.uses.values())
        return CaptureFacts(self.analysis, devices, self.counted, sizes)


def _without_rows(analysis: Analysis) -> Analysis:
    trace, iterations = analysis.trace, analysis.iterations
    frames = {name: getattr(trace, name).clear() for name in ("ranges", "overhead", "memory", "gpu_metrics", "scopes")}
    return replace(
        analysis,
        trace=replace(trace, **frames, evidence=HostEvidence(), sizes=WorkSizes()),
        devices=tuple(map(_without_totals, analysis.devices)),
        iterations=iterations if isinstance(iterations, NotMeasured) else replace(iterations, per_iteration=()),
        tables={},
    )


def _without_totals(use: DeviceUse) -> DeviceUse:
    """Return a device whose tables have rows alone."""
    tables = {name: replace(table, totals=None) for name, table in use.tables.items()}
    return replace(use, tables=tables, steady=replace(use.steady, tables={}))


def capture_part(part: PartTrace, context: FindingContext) -> CapturePart:
    """Return the rows of a part for rules. They are collected once for all passes."""
    return part.once("rows for rules", lambda: _capture_part(part, context), context.windows)


def _capture_part(part: PartTrace, context: FindingContext) -> CapturePart:
    whole, trace = context.analysis.host, part.trace
    own = host_in_part(part, {use.device: use.window for use in context.analysis.devices})
    host = replace(
        whole,
        sync=replace(whole.sync, frame=own.sync.frame),
        implicit_sync=replace(whole.implicit_sync, frame=own.implicit_sync.frame),
    )
    return CapturePart(
        analysis=replace(context.analysis, trace=trace, host=host),
        devices=tuple(_device_part(part, use) for use in context.uses.values()),
        counted=context.counted,
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


def _device_part(part: PartTrace, use: DeviceUse) -> DevicePart:
    trace, steady = part.trace, use.steady.window
    work, every, previous = _own_work(part, use)
    frame = part.gaps(work).frame  # in pieces, which share the memory of the measured gaps
    gap_start = frame["start"].to_numpy()
    first = int(np.searchsorted(every, work.rows[0])) if len(work.rows) else 0
    begin = max(first - NEIGHBOURS, 0)
    nearby = every[begin : first + len(work.rows) + NEIGHBOURS] if len(work.rows) else work.rows
    return DevicePart(
        use=replace(use, gaps=replace(use.gaps, frame=frame)),
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
        collect_kernels=partial(KernelSequence.from_rows, trace, use.device),
    )


def _own_work(part: PartTrace, use: DeviceUse) -> tuple[Activity, Rows, int]:
    """Return the work of a device in the time that a part accounts for, all of its work, and the operation before it.

    The time begins with the first gap of the part. The rows are those of Trace.operations; -1 stands for none.
    """
    window, covered, whole = part.trace.window, use.window, part.work(use.device)
    assert window is not None, "a part has a window"
    if whole is None:
        nothing = idle_activity(part.trace, use.device)
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
