"""Input and output of a rule: CaptureFacts, FindingDraft and the thresholds of severities.

A rule is a pure function that reads CaptureFacts and yields one FindingDraft for each finding, or a Note for what
costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceview.frozen import frozen
from traceview.intervals import Rows, Times
from traceview.measure.activity import Activity, device_activity
from traceview.measure.nvtx.nesting import Nesting
from traceview.measure.nvtx.projection import annotating_threads
from traceview.measure.overlap import Copies
from traceview.model.analysis import Analysis, NotMeasured
from traceview.model.devices import DeviceUse
from traceview.model.findings import Place
from traceview.model.program import Program
from traceview.model.trace import Note, Trace, Window
from traceview.normalise.codes import categories
from traceview.pricing.figures import fold_numbers
from traceview.pricing.ledger import Claim, sum_columns
from traceview.pricing.part import use_in_steady_part
from traceview.pricing.sums import RuleSums, Sum
from traceview.speedups import KernelSequence


@frozen
class DeviceFacts:
    """One device in the part of its window that findings cover, prepared for rules.

    This is the steady part, or the whole window if Analysis.whole. `use`, `activity`, `copies` and the gaps are
    limited to it. `steady` is the steady part, or the whole window without iterations, and `steady_gaps` are
    the gaps that begin in it. The gap arrays are columns of Gaps.frame, with -1 for null.
    `kernels` has the compute kernels of `activity`; their `places` index `activity`. In a slice of a capture, `use` has
    the figures of the capture, `nearby` has the kernels among those around them, `previous` is the operation before the
    first gap (-1: unknown), and the gaps before `first_gap` belong to the slice before.
    """

    use: DeviceUse
    activity: Activity
    copies: Copies
    steady: Window
    gap_start: Times
    gap_end: Times
    gap_operation: Rows
    gap_thread: NDArray[np.int16]
    steady_gaps: slice
    kernels: KernelSequence
    nearby: KernelSequence
    totals: RuleSums = RuleSums()
    previous: int = -1
    first_gap: int = 0

    def total(self, key: str, value: Sum) -> Sum:
        """Return a sum over rows of the whole capture (see RuleSums)."""
        return self.totals.total(key, value)

    def shown(self, key: str, value: Sum) -> Sum:
        """Return a sum over rows of the whole capture for a text (see RuleSums)."""
        return self.totals.shown(key, value)

    def own_gaps(self, gaps: Times) -> Times:
        """Return the gaps, which ascend, without one that belongs to the slice before."""
        return gaps[np.searchsorted(gaps, self.first_gap) :] if self.first_gap else gaps

    def gaps_at(self, moments: Times) -> Times:
        """Return the gap that contains each moment (the gap's end included), or -1."""
        index = np.searchsorted(self.gap_start, moments, side="right") - 1
        if len(self.gap_start) == 0:
            return np.full(len(moments), -1, np.int64)
        inside = (index >= 0) & (moments <= self.gap_end[np.maximum(index, 0)])
        return np.where(inside, index, -1)

    def gaps_before(self, operations: Rows) -> Times:
        """Return the gaps that end with one of these operations (rows of Trace.operations, ascending)."""
        # gap_operation ascends, except for the last gap: no operation may end it.
        ending = self.gap_operation
        ending = ending[: len(ending) - int(len(ending) > 0 and ending[-1] < 0)]
        at = np.searchsorted(ending, operations)
        gaps: Times = at[ending.take(at, mode="clip") == operations] if len(ending) else at[:0]
        return gaps

    def operations_before(self, gaps: Times) -> Rows:
        """Return the operation (row of Trace.operations) before each of these gaps: the first that ends there."""
        rows, start = self.activity.rows, self.gap_start[gaps]
        place = np.searchsorted(np.maximum.accumulate(self.activity.end), start)
        if len(rows) == 0 or self.previous >= 0:  # in a slice
            within = rows.take(place, mode="clip") if len(rows) else self.gap_operation[gaps]
            within = np.where(place < len(rows), within, self.gap_operation[gaps])
            is_first = (start == self.activity.window.start) & (self.previous >= 0)
            before: Rows = np.where(is_first, self.previous, within)
            return before
        return rows[place]

    def gap_waits(self, causes: Sequence[str], gaps: slice) -> Times | None:
        """Return the ns of these causes in each of the gaps; None if the device has no gap with one of them."""
        frame, sums = self.use.gaps.frame, self.use.gaps.causes
        columns = [frame[cause].to_numpy()[gaps] for cause in causes if sums[cause]]
        return sum_columns(columns) if columns else None

    def compute_to_hide(self, kinds: Collection[str]) -> int:
        """Return the ns of compute that no copy of these kinds overlaps: the most that hiding these copies can save."""
        overlapped = dict.fromkeys(kinds, 0)
        for copies in self.use.copies:
            if copies.kind in overlapped:
                overlapped[copies.kind] += copies.overlapped_ns
        return max(self.use.compute_ns - min(overlapped.values(), default=0), 0)

    def column(self, trace: Trace, name: str) -> NDArray[Any]:
        """Return a column of Trace.operations for the device's work; an Enum column as codes."""
        return self.activity.select(trace.operations[name].to_physical().to_numpy())


@frozen
class CaptureFacts:
    """An Analysis with the data that several rules need.

    `counted` is the number of counted iterations, None if there are none. `sizes` are the numbers of operations and
    calls of the capture. `annotating` holds for each row of Trace.threads the thread that annotates for its process, or
    -1. `nesting` builds the index of Trace.ranges at its first call.
    """

    analysis: Analysis
    devices: tuple[DeviceFacts, ...]
    counted: int | None
    sizes: Mapping[str, int]
    annotating: Times
    nesting: Callable[[], Nesting]

    @property
    def program(self) -> Program:
        """The kind of the program."""
        return self.analysis.program

    def ranges_at(self, thread: Times, moment: Times) -> Times:
        """Return the innermost range (row of Trace.ranges) open on each thread at each moment, or -1.

        If a thread has no open range, the annotating thread of its process is used
        (docs/definitions.md "NVTX projected on the GPU").
        """
        if self.analysis.trace.ranges.is_empty() or len(moment) == 0:
            return np.full(len(moment), -1, np.int64)
        nesting = self.nesting()
        place = nesting.innermost(thread.astype(np.int64), moment)
        missing = np.flatnonzero((place < 0) & (thread >= 0))
        place[missing] = nesting.innermost(self.annotating[thread[missing]], moment[missing])
        return nesting.rows_at(place)

    def range_names(self, ranges: Times) -> tuple[list[str], Times]:
        """Return the distinct names of ranges, with numbers folded, and the index of each range's name.

        `ranges` are rows of Trace.ranges; -1 stands for no range and has the name "".
        """
        texts = self.analysis.trace.ranges["name"]
        code = np.full(len(ranges), -1, np.int64)
        known = np.flatnonzero(ranges >= 0)
        code[known] = texts.to_physical().to_numpy()[ranges[known]]
        codes, which = np.unique(code, return_inverse=True)
        known_texts = categories(texts) if len(known) else []
        names = [fold_numbers(known_texts[number]) if number >= 0 else "" for number in codes.tolist()]
        index = {name: at for at, name in enumerate(dict.fromkeys(names))}
        return list(index), np.array([index[name] for name in names], np.int64)[which]

    def thread_name(self, thread: int) -> str:
        """Return the name of a row of Trace.threads, or its id if it has none."""
        name, number = self.analysis.trace.threads.select("name", "tid").row(thread)
        return name or str(number)

    def per_iteration(self, count: int) -> str:
        """Return " (one per iteration)" or " (21 per iteration)"; "" if `count` is less than one per iteration."""
        if not self.counted or count < self.counted:
            return ""
        each = f"{count / self.counted:.0f}"
        return f" ({'one' if each == '1' else each} per iteration)"


@frozen
class FindingDraft:
    """A finding before it is priced.

    Attributes:
        title, advice: Texts. `{cost}`, `{share}` and `{gaps}` are replaced by the price, its share of the device's
            time and the number of gaps that it comes from.
        device: The device that lost the time.
        claims: The lost time that the finding explains.
        at_most: The most that the remedy can give, in ns; None if the remedy can give all that is claimed.
        remedy: The advice in one line, if it differs from that of the finding's kind.
        change: The change of `traceview whatif` that predicts what the remedy gives.
        key: What tells the drafts of a rule with the same id apart.
        min_gaps: Drop the draft if its price comes from fewer gaps.
        min_ns: Drop the draft if it costs less.
        note_without_cost: If less than MIN_SHARE is granted, keep the draft as a note.
        evidence: Places to show; empty selects the places with the largest granted times.
        place_label: What happened at these places.
        same_everywhere: The remedy does not depend on the place: devices whose host was elsewhere share the finding.
    """

    id: str
    title: str
    advice: str
    device: DeviceFacts
    claims: tuple[Claim, ...]
    code: str = ""
    remedy: str = ""
    at_most: int | None = None
    change: str = ""
    key: str = ""
    min_gaps: int = 0
    min_ns: int = 0
    note_without_cost: bool = False
    evidence: tuple[Place, ...] = ()
    place_label: str = ""
    same_everywhere: bool = False


Rule = Callable[[CaptureFacts], Iterator[FindingDraft | Note]]

# Runs of an unchanged program differ by 3 to 15% of their wall time on a quiet H200. So a single run shows a loss
# of a tenth, the mean of several runs shows a loss of 3%, and no run shows a loss of a thousandth.
HIGH_SHARE, MEDIUM_SHARE, MIN_SHARE = 0.10, 0.03, 0.001


def severity_from_share(share: float) -> str:
    """Return high, medium or low for a share of the time that findings cover."""
    return "high" if share >= HIGH_SHARE else "medium" if share >= MEDIUM_SHARE else "low"


def collect_facts(analysis: Analysis, activities: Sequence[Activity] = ()) -> CaptureFacts:
    """Prepare an analysis for rules; `activities` saves collecting the work of these devices again.

    A device without work in its steady part has no facts, unless Analysis.whole.
    """
    known = {work.device: work for work in activities}
    iterations = analysis.iterations
    counted = None if isinstance(iterations, NotMeasured) else iterations.count - iterations.skipped
    return CaptureFacts(
        analysis=analysis,
        devices=tuple(
            _device_facts(analysis, use, known.get(use.device))
            for use in analysis.devices
            if analysis.part(use).window.length
        ),
        counted=counted or None,
        sizes={"operations": len(analysis.trace.operations), "calls": len(analysis.trace.api)},
        annotating=annotating_threads(analysis.trace),
        nesting=cache(partial(_build_nesting, analysis.trace)),
    )


def _build_nesting(trace: Trace) -> Nesting:
    start, end, thread = (trace.ranges[name].to_numpy() for name in ("start", "end", "thread"))
    times = [frame[name].to_numpy() for frame in (trace.api, trace.operations) for name in ("start", "end")]
    edges = [edge for column in times if len(column) for edge in (column.min(), column.max())]
    if trace.window is not None:
        edges += [trace.window.start, trace.window.end]
    return Nesting.build(start, end, thread, np.array(edges, np.int64))


def _device_facts(analysis: Analysis, use: DeviceUse, known: Activity | None) -> DeviceFacts:
    work = known or device_activity(analysis.trace, use.device)
    assert work is not None, "a measured device has work"
    if not analysis.whole:
        part = work.clip(use.steady.window)
        use, work = use_in_steady_part(analysis.trace, use, work, part), part
    frame, steady = use.gaps.frame, use.steady.window
    kernels = KernelSequence.from_rows(analysis.trace, use.device, work.rows)
    gap_start = frame["start"].to_numpy()
    return DeviceFacts(
        use=use,
        activity=work,
        copies=Copies.from_activity(analysis.trace, work),
        steady=steady,
        gap_start=gap_start,
        gap_end=frame["end"].to_numpy(),
        gap_operation=frame["operation"].fill_null(-1).to_numpy(),
        gap_thread=frame["thread"].fill_null(-1).to_numpy(),
        steady_gaps=slice(*np.searchsorted(gap_start, (steady.start, steady.end)).tolist()),
        kernels=kernels,
        nearby=kernels,
    )
