"""The facts that rules read in a slice of a capture: its rows, with the figures of the whole capture.

An operation belongs to the slice in which it starts, a gap to the slice in which its last ns lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from traceview.frozen import frozen
from traceview.intervals import Intervals, Rows, Times
from traceview.measure.activity import Activity
from traceview.measure.gaps.causes import device_gaps
from traceview.measure.overlap import Copies
from traceview.model.analysis import Analysis, NotMeasured
from traceview.model.devices import DeviceUse
from traceview.model.sizes import WorkSizes
from traceview.model.stacks import HostEvidence
from traceview.model.trace import Window
from traceview.pricing.accounts import exposed_work
from traceview.pricing.base import CaptureFacts, DeviceFacts, collect_facts
from traceview.pricing.findings import EndOfWork
from traceview.pricing.part import steady_use
from traceview.pricing.sums import Counts, RuleSums, Sum
from traceview.slices.measure import host_in_slice
from traceview.slices.slice import Slice
from traceview.speedups import KernelSequence

MAX_NEARBY = 256  # operations around a slice that show which kernels belong together


class SliceRuleSums(RuleSums):
    """The sums of a device: collected in one slice (`own`), or those of the capture.

    `merged` has the sums that decide what rules claim, and `shown` those that texts show; None while they are
    collected. Texts need decisions, so that their sums are collected by a later pass.
    """

    in_parts = True

    def __init__(self, merged: Mapping[str, Any] | None = None, shown: Mapping[str, Any] | None = None) -> None:
        """Collect sums, or return those in `merged` and `shown`."""
        self.own: dict[str, Any] = {}
        self.merged, self.known = merged, shown

    @classmethod
    def of_device(cls, context: SliceContext, row: int) -> SliceRuleSums:
        """Return the sums of a device, as far as earlier passes have them."""
        known = (None if sums is None else sums.get(row, {}) for sums in (context.totals, context.shown))
        return cls(*known)

    def total(self, key: str, value: Sum) -> Sum:
        """Keep a sum of the slice, or return that of the capture."""
        if self.merged is None:
            self.own[key] = value
            return value
        whole: Sum = self.merged.get(key, value)
        return whole

    def occurs(self, key: str) -> bool:
        """Return whether a slice has the sum; true while sums are collected."""
        return self.merged is None or key in self.merged

    def shown(self, key: str, value: Sum) -> Sum:
        """Keep a sum of the slice once decisions are made, or return that of the capture."""
        if self.merged is not None and self.known is None:
            self.own[key] = value
        whole: Sum = (self.known or {}).get(key, value)
        return whole

    def median(self, key: str, values: Times) -> float:
        """Return the median of values of the capture."""
        if self.merged is None:
            return 0.0  # no text is shown yet
        known: Counts | None = (self.known or {}).get(key)
        return (known or self.shown(key, Counts.from_values(values))).median

    def choices(self, decided: bool) -> tuple[bool, ...]:
        """Return both outcomes while the sums are collected."""
        return (decided,) if self.merged is not None else (True, False)


@frozen
class SliceContext:
    """What rules need to know of the whole capture.

    `analysis` has its figures, without rows of events. `uses` are the devices in the part that findings cover, by row.
    The others are results of earlier passes: `sizes` are those of CaptureFacts, `totals` and `shown` the sums of rules
    (see SliceRuleSums; None while they are collected), and `until` the end of each device's work.
    """

    analysis: Analysis
    counted: int | None
    uses: Mapping[int, DeviceUse]
    totals: Mapping[int, Mapping[str, Any]] | None = None
    shown: Mapping[int, Mapping[str, Any]] | None = None
    until: Mapping[int, EndOfWork | None] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=lambda: {"operations": 1, "calls": 1})

    @property
    def windows(self) -> Mapping[int, Window]:
        """The part of each device's time that findings cover."""
        return {row: use.window for row, use in self.uses.items()}

    @classmethod
    def from_analysis(cls, analysis: Analysis) -> SliceContext:
        """Return the context of the first pass; its devices have the streams of the window."""
        iterations = analysis.iterations
        counted = None if isinstance(iterations, NotMeasured) else iterations.count - iterations.skipped
        uses = {}
        for use in analysis.devices:
            if analysis.part(use).window.length:
                in_window = analysis.whole or use.steady.window == use.window
                uses[use.device] = use if in_window else steady_use(use, use.streams)
        return cls(_without_frames(analysis), counted or None, {row: _without_totals(use) for row, use in uses.items()})


def _without_frames(analysis: Analysis) -> Analysis:
    """Return the figures that rules read, without what grows with the capture: they are sent to each slice."""
    trace, iterations = analysis.trace, analysis.iterations
    communicates = any(use.communication.count for use in analysis.devices)  # then ranges show the stages of pipelines
    frames = {name: getattr(trace, name).clear() for name in ("ranges", "overhead", "memory", "gpu_metrics", "scopes")}
    return replace(
        analysis,
        trace=replace(trace, **frames, evidence=HostEvidence(), sizes=WorkSizes()),
        devices=tuple(map(_without_totals, analysis.devices)),
        iterations=iterations if isinstance(iterations, NotMeasured) else replace(iterations, per_iteration=()),
        tables={"nvtx": replace(analysis.tables["nvtx"], totals=None)} if communicates else {},
        charts=None,
        projected=None,
        host_time=None,
        counters=None,
        other_part=None,
    )


def _without_totals(use: DeviceUse) -> DeviceUse:
    """Return a device whose tables have rows alone."""
    tables = {name: replace(table, totals=None) for name, table in use.tables.items()}
    return replace(use, tables=tables, steady=replace(use.steady, tables={}))


@frozen
class OwnPart:
    """The part of a device's time that a slice accounts for.

    A gap belongs to the slice in which its last ns lies. `work` begins with the first such gap. `previous` is the
    operation before it, -1 for none. `nearby` are the rows of the work and of MAX_NEARBY operations before and after
    it, of which `before` come first. With `ghost`, the first gap belongs to the slice before, because it ends with an
    operation that starts where this slice begins. With `ends_at_border`, an operation starts where the slice ends.
    """

    work: Activity
    nearby: Rows
    before: int
    previous: int
    ghost: bool
    ends_at_border: bool


def own_part(slice_: Slice, use: DeviceUse) -> OwnPart | None:
    """Return the part of a device's time in `use` that a slice accounts for; None if it has none."""
    window, part = slice_.trace.window, use.window
    assert window is not None, "a slice has a window"
    whole = slice_.work(use.device)
    if whole is None or window.end <= part.start or window.start >= part.end:
        return None
    before = int(np.searchsorted(whole.start, window.start))
    low, previous = part.start, -1
    if window.start > part.start and before:
        reach = int(whole.end[:before].max())
        if reach > part.start:
            low, previous = reach, int(whole.rows[int(whole.end[:before].argmax())])
    ghost = window.start > part.start and low < window.start and _starts_at(whole, window.start)
    high, at_border = part.end, False
    if window.end < part.end:
        at_border = _starts_at(whole, window.end)
        until = int(np.searchsorted(whole.start, window.end))
        high = window.end if at_border else int(whole.end[:until].max()) if until else part.start
    high = max(min(high, part.end), low)
    work, every = whole.clip(Window(low, high)), whole.clip(part).rows
    first = int(np.searchsorted(every, work.rows[0])) if len(work.rows) else 0
    begin = max(first - MAX_NEARBY, 0)
    nearby = every[begin : first + len(work.rows) + MAX_NEARBY] if len(work.rows) else work.rows
    return OwnPart(work, nearby, first - begin if len(work.rows) else 0, previous, ghost, at_border)


def _starts_at(work: Activity, moment: int) -> bool:
    place = int(np.searchsorted(work.nonempty_start, moment))
    return place < len(work.nonempty_start) and int(work.nonempty_start[place]) == moment


@frozen
class RuleRows:
    """What rules read of the rows of a slice, by device. It is the same before and after sums are known.

    The figures in `devices` are to be replaced. `exposed` has the results of exposed_work.
    """

    parts: Mapping[int, OwnPart]
    devices: Mapping[int, DeviceFacts]
    exposed: Mapping[int, Mapping[str, Intervals]]
    shared: CaptureFacts

    @classmethod
    def build(cls, part: Slice, context: SliceContext) -> RuleRows:
        """Prepare the rows."""
        parts = {device: own for device, use in context.uses.items() if (own := own_part(part, use)) is not None}
        devices = {row: _device_rows(part, context.uses[row], own) for row, own in parts.items()}
        exposed = {row: exposed_work(device.activity, device.copies) for row, device in devices.items()}
        extents = {use.device: use.window for use in context.analysis.devices}
        host = host_in_slice(part, extents)
        analysis = replace(context.analysis, trace=part.trace, host=host, host_time=part.host_idle, devices=())
        return cls(parts, devices, exposed, collect_facts(analysis))


def _device_rows(part: Slice, use: DeviceUse, own: OwnPart) -> DeviceFacts:
    trace, work, steady = part.trace, own.work, use.steady.window
    frame = device_gaps(trace, part.idle_gaps(work)).frame.rechunk()
    gap_start = frame["start"].to_numpy()
    first, last = np.searchsorted(gap_start, (steady.start, steady.end)).tolist()
    nearby = KernelSequence.from_rows(trace, use.device, own.nearby)
    return DeviceFacts(
        use=replace(use, gaps=replace(use.gaps, frame=frame)),
        activity=work,
        copies=Copies.from_activity(trace, work),
        steady=steady,
        gap_start=gap_start,
        gap_end=frame["end"].to_numpy(),
        gap_operation=frame["operation"].fill_null(-1).to_numpy(),
        gap_thread=frame["thread"].fill_null(-1).to_numpy(),
        steady_gaps=slice(max(first, int(own.ghost)), max(last, int(own.ghost))),
        kernels=nearby,
        nearby=nearby,
        previous=own.previous,
        first_gap=int(own.ghost),
    )


def slice_facts(rows: RuleRows, context: SliceContext, totals: Mapping[int, RuleSums]) -> CaptureFacts:
    """Return the facts of a slice, with the figures of the whole capture; totals are by device."""
    devices = []
    for row, device in rows.devices.items():
        use, own = context.uses[row], rows.parts[row]
        nearby = device.nearby.among(own.before, len(own.work.rows), totals[row].total, totals[row].shown)
        nearby.total_ns()  # texts on kernels of other slices need it
        gaps = replace(use.gaps, frame=device.use.gaps.frame)
        devices.append(
            replace(device, use=replace(use, gaps=gaps), kernels=nearby.alone, nearby=nearby, totals=totals[row])
        )
    host, whole = rows.shared.analysis.host, context.analysis.host
    host = replace(
        whole,
        sync=replace(whole.sync, frame=host.sync.frame),
        implicit_sync=replace(whole.implicit_sync, frame=host.implicit_sync.frame),
    )
    shared = rows.shared
    analysis = replace(context.analysis, trace=shared.analysis.trace, host=host, host_time=shared.analysis.host_time)
    return CaptureFacts(analysis, tuple(devices), context.counted, context.sizes, shared.annotating, shared.nesting)
