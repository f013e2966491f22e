"""What a rule sees (Facts), what it says (Draft) and what its threshold words mean.

A rule is a pure function from Facts to Drafts, one Draft a finding. A Draft claims idle and exposed
time of one device and words it; traceview.rules.find settles the claims in the order of RULES,
prices the findings and sorts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Rows, Times
from traceview.measure.activity import Activity, activity
from traceview.measure.copies import Copies
from traceview.measure.nvtx.nesting import Nesting
from traceview.measure.nvtx.projection import annotating_threads
from traceview.model.analysis import Analysis, DeviceUse, NotMeasured, Place
from traceview.model.trace import Trace, Window
from traceview.normalise.names import categories
from traceview.pricing.format import folded
from traceview.pricing.ledger import Claim, added


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device as rules see it.

    `steady` is the time of the iterations that count (the whole window where there are none), and `in_steady` the
    gaps that begin in it. The gap arrays are columns of Gaps.frame, -1 for null.
    """

    use: DeviceUse
    activity: Activity
    copies: Copies
    steady: Window
    gap_start: Times
    gap_end: Times
    gap_operation: Rows
    gap_thread: NDArray[np.int16]
    in_steady: slice

    def gap_of(self, moments: Times) -> Times:
        """Return the gap that holds each moment (its end included), -1 for none."""
        index = np.searchsorted(self.gap_start, moments, side="right") - 1
        if len(self.gap_start) == 0:
            return np.full(len(moments), -1, np.int64)
        inside = (index >= 0) & (moments <= self.gap_end[np.maximum(index, 0)])
        return np.where(inside, index, -1)

    def ended_by(self, operations: Rows) -> Times:
        """Return the gaps that end with any of these operations (rows of Trace.operations, ascending)."""
        # They ascend as the gaps do, but for the last gap's, which none may end.
        known = self.gap_operation
        known = known[: len(known) - int(len(known) > 0 and known[-1] < 0)]
        at = np.searchsorted(known, operations)
        found: Times = at[known.take(at, mode="clip") == operations] if len(known) else at[:0]
        return found

    def waits(self, causes: Sequence[str], gaps: slice) -> Times | None:
        """Return the ns of these causes together in each of some gaps; None where the device has no such wait."""
        frame, sums = self.use.gaps.frame, self.use.gaps.causes
        columns = [frame[cause].to_numpy()[gaps] for cause in causes if sums[cause]]
        return added(columns) if columns else None

    def column(self, trace: Trace, name: str) -> NDArray[Any]:
        """Return a column of Trace.operations for the device's work, an Enum as its codes."""
        return self.activity.of(trace.operations[name].to_physical().to_numpy())


@dataclass(frozen=True, slots=True)
class Facts:
    """An Analysis, with what several rules need prepared once.

    `counted` is the number of iterations that count; None where there are none.
    """

    analysis: Analysis
    devices: tuple[DeviceFacts, ...]
    counted: int | None
    annotating: Times  # for each row of Trace.threads, the thread that annotates for its process; -1 for none
    nesting: Callable[[], Nesting]  # of Trace.ranges, made when the first rule asks

    def ranges_at(self, thread: Times, moment: Times) -> Times:
        """Return the innermost range (row of Trace.ranges) open on each thread at each moment, -1 for none.

        A thread with no range open then is answered for by the annotating thread of its process, as in
        METRICS.md "NVTX projected on the GPU".
        """
        if self.analysis.trace.ranges.is_empty() or len(moment) == 0:
            return np.full(len(moment), -1, np.int64)
        nesting = self.nesting()
        found = nesting.innermost(thread.astype(np.int64), moment)
        lost = np.flatnonzero((found < 0) & (thread >= 0))
        found[lost] = nesting.innermost(self.annotating[thread[lost]], moment[lost])
        return np.where(found >= 0, nesting.rows[np.maximum(found, 0)], -1)

    def range_names(self, ranges: Times) -> tuple[list[str], Times]:
        """Return the names, folded, of ranges (rows, -1 for none, which is called ""), and which of them each has."""
        texts = self.analysis.trace.ranges["name"]
        code = np.full(len(ranges), -1, np.int64)
        known = np.flatnonzero(ranges >= 0)
        code[known] = texts.to_physical().to_numpy()[ranges[known]]
        codes, which = np.unique(code, return_inverse=True)
        known_texts = categories(texts) if len(known) else []
        names = [folded(known_texts[one]) if one >= 0 else "" for one in codes.tolist()]
        place = {name: at for at, name in enumerate(dict.fromkeys(names))}
        return list(place), np.array([place[name] for name in names], np.int64)[which]

    def per_iteration(self, count: int) -> str:
        """Return " (21 in each iteration)" where iterations are known and it happens in each; else ""."""
        if not self.counted or count < self.counted:
            return ""
        return f" ({count / self.counted:.0f} in each iteration)"


@dataclass(frozen=True, slots=True)
class Draft:
    """One finding before it is priced.

    In `title` and `advice`, `{cost}`, `{share}` and `{gaps}` stand for the price, its share of the window
    and the number of gaps it comes from.
    `severity` None means: by share of the steady time (`severity_of`). A `premise` is a finding that
    changes how all others are read; among equals in severity it comes first. A draft that was granted
    less than LEAST, or from fewer than `fewest` gaps, is dropped, unless it claims nothing or is said
    `always`.
    """

    id: str
    title: str
    advice: str
    device: DeviceFacts | None = None
    claims: tuple[Claim, ...] = ()
    code: str = ""
    severity: str | None = None
    premise: bool = False
    fewest: int = 0
    always: bool = False
    evidence: tuple[Place, ...] = ()  # empty: the places where most was granted
    place: str = ""  # what to call those


Rule = Callable[[Facts], Iterator[Draft]]

# Rounds of one unchanged program differed by 3 to 15% of their wall time on a quiet H200: a loss of a
# tenth shows in a single run, one of a fiftieth only in the mean of several, and one of a thousandth never.
HIGH, MEDIUM, LEAST = 0.10, 0.02, 0.001


def severity_of(share: float) -> str:
    """Return high, medium or low for a share of the steady time."""
    return "high" if share >= HIGH else "medium" if share >= MEDIUM else "low"


def facts_of(analysis: Analysis, activities: Sequence[Activity] = ()) -> Facts:
    """Prepare what rules need; nothing is measured again that the analysis holds, or that is given."""
    given = {work.device: work for work in activities}
    found = tuple(_device_facts(analysis, use, given.get(use.device)) for use in analysis.devices)
    iterations = analysis.iterations
    counted = None if isinstance(iterations, NotMeasured) else iterations.count - iterations.skipped
    return Facts(
        analysis=analysis,
        devices=found,
        counted=counted or None,
        annotating=annotating_threads(analysis.trace),
        nesting=cache(partial(_nesting, analysis.trace)),
    )


def _nesting(trace: Trace) -> Nesting:
    start, end, thread = (trace.ranges[name].to_numpy() for name in ("start", "end", "thread"))
    return Nesting.of(start, end, thread.astype(np.int64))


def _device_facts(analysis: Analysis, use: DeviceUse, given: Activity | None) -> DeviceFacts:
    work = given or activity(analysis.trace, use.device)
    assert work is not None, "a device that was measured has work"
    frame = use.gaps.frame
    steady = _steady(analysis, use.window)
    gap_start = frame["start"].to_numpy()
    return DeviceFacts(
        use=use,
        activity=work,
        copies=Copies.of(analysis.trace, work),
        steady=steady,
        gap_start=gap_start,
        gap_end=frame["end"].to_numpy(),
        gap_operation=frame["operation"].fill_null(-1).to_numpy(),
        gap_thread=frame["thread"].fill_null(-1).to_numpy(),
        in_steady=slice(*np.searchsorted(gap_start, (steady.start, steady.end)).tolist()),
    )


def _steady(analysis: Analysis, window: Window) -> Window:
    if isinstance(analysis.iterations, NotMeasured):
        return window
    counted = [one for one in analysis.iterations.per_iteration if not one.skipped]
    if not counted:
        return window
    start = max(min(one.start_ns for one in counted), window.start)
    end = min(max(one.end_ns for one in counted), window.end)
    return Window(start, end) if end > start else window
