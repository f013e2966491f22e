"""The result of a comparison of captures. All its reports read only this.

Times are whole ns per iteration. Differences are after minus before: negative means less time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceview.model.analysis import IterationSummary
from traceview.model.columns import Documented
from traceview.model.trace import Note

VERDICTS = ("faster", "slower", "noise", "unjudged")
STATUSES = ("appeared", "vanished", "slower", "faster", "changed", "same")


@dataclass(frozen=True, slots=True)
class IterationWork:
    """The work of an iteration in two captures, as launches of kernels and graphs.

    `common_fraction` is the share of the launches with a name that both captures have, in the capture where this share
    is smaller. `multiple` is k if these names are launched k times as often in an iteration of the second capture; else
    None.
    """

    launches_before: float
    launches_after: float
    common_fraction: float
    multiple: float | None

    @property
    def is_same(self) -> bool:
        """False if an iteration of one capture is several iterations of the other."""
        return self.multiple is None


@dataclass(frozen=True, slots=True)
class ComparedCapture:
    """One capture and its steady iterations.

    `wall_ns` has the time from each iteration to the next, in order, or one length if captures are compared as a whole.
    """

    file: str
    nsys_version: str | None
    devices: tuple[str, ...]  # names of the compared GPUs
    iterations: IterationSummary
    range: str | None  # the ranges or the period that are the iterations; None if compared as a whole
    count: int  # compared iterations
    skipped: int  # warm-up, and a first iteration whose start on the GPU is unknown
    wall_ns: tuple[int, ...]
    start_ns: tuple[int, ...]  # start of each iteration on the capture's clock
    quantiles_ns: Mapping[str, int]  # p5 to p95 of these times
    unprofiled_ns: Mapping[str, int] | None = None  # mean, low and high of an iteration without the profiler


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of an iteration in two captures.

    `before` and `after` are means over the iterations (medians in `host` and `kernels`), and `difference` is the
    difference of these. `low` and `high` are its confidence interval, None if there are too few iterations.
    """

    name: str
    unit: str  # "ns" or "count"
    before: int
    after: int
    difference: int
    low: int | None
    high: int | None
    mean_before: float
    mean_after: float
    verdict: str  # "less", "more", "noise", or "unjudged" without an interval


@dataclass(frozen=True, slots=True)
class KernelChange:
    """Kernels of one name and launch shape, or of all shapes of a name that the captures do not share.

    `per_call` has the mean GPU time of a call: `mean_before` and `mean_after` over all calls, its medians and interval
    over the means of the iterations. A kernel is slower or faster by this figure, beyond the noise. It changed if only
    the number of its calls or its time per iteration did, or if there are too few iterations to judge noise.
    """

    name: str  # short name
    label: str  # the short name; for a generic kernel, with the operation that its template names
    grid: tuple[int, ...] | None  # None for several shapes, and where a capture does not hold them
    block: tuple[int, ...] | None
    status: str  # one of STATUSES
    count: FigureChange
    time: FigureChange
    per_call: FigureChange  # 0 where a capture does not launch it

    @property
    def cost_ns(self) -> int:
        """What the change costs per iteration: the difference of the mean GPU time."""
        return int(self.time.mean_after - self.time.mean_before)


@dataclass(frozen=True, slots=True)
class LineChange:
    """A source line, and the idle time of a GPU per iteration while the launching thread was there.

    `idle` compares means; a change below the least share of the base's time that counts is noise. `line` is that of the
    second capture where it has the line, and `line_before` that of the base: a line may have moved in its function.
    """

    file: str
    function: str
    line: int | None
    line_before: int | None
    idle: FigureChange


@dataclass(frozen=True, slots=True)
class OverlapChange:
    """The communication or the copies of one direction in an iteration: how much is hidden, and why the rest is not.

    `work` is communication, the kind of collective that most of it is, or the direction of copies. The figures compare
    means; `causes` are those that occur of the exposed time. The prices are what kernels pay beside communication.
    """

    work: str
    busy: FigureChange
    exposed: FigureChange
    causes: tuple[FigureChange, ...]
    price_before_ns: int | None
    price_after_ns: int | None

    @property
    def hidden_before(self) -> float | None:
        """The share beside which compute runs, in the base."""
        return 1 - self.exposed.before / self.busy.before if self.busy.before else None

    @property
    def hidden_after(self) -> float | None:
        """The same in the second capture."""
        return 1 - self.exposed.after / self.busy.after if self.busy.after else None


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """What `whatif` predicts from the first capture for an iteration after a change, and the time that came.

    `before_ns` is the time without the change. `without_profiler` says that all times are estimates for runs without
    the profiler. `result_ns` is None where the second capture does not show it.
    """

    change: str  # the names of changes that are made together, joined by "+"
    title: str
    before_ns: int
    iteration_ns: int
    low_ns: int
    high_ns: int
    result_ns: int | None = None
    without_profiler: bool = False

    @property
    def is_inside(self) -> bool | None:
        """Whether the time that came lies in the predicted range."""
        return None if self.result_ns is None else self.low_ns <= self.result_ns <= self.high_ns

    @property
    def error(self) -> float | None:
        """The predicted time over the one that came, less 1; positive if the prediction is too long."""
        return self.iteration_ns / self.result_ns - 1 if self.result_ns else None


@dataclass(frozen=True, slots=True)
class CaptureDifference:
    """One capture compared with the base.

    `time` is the mean time from one iteration to the next over the steady part; the verdict is about it, and
    `mean_parts` add up to it exactly. What a document lacks is empty or None; a note of the comparison says so.
    """

    capture: ComparedCapture
    verdict: str  # one of VERDICTS
    why: str  # one sentence: the reason for the verdict
    confidence: float | None  # probability that the mean time changed in this direction
    ratio: float | None  # mean time after over before; None if the latter is 0
    ratio_low: float | None
    ratio_high: float | None
    time: FigureChange
    mean_parts: tuple[FigureChange, ...]  # compute, exposed_*, other, no_gpu, twice, idle.CAUSE
    work: IterationWork
    host: tuple[FigureChange, ...]  # synchronizations, launches and copies
    kernels: tuple[KernelChange, ...]  # the largest cost first
    overlap: tuple[OverlapChange, ...] = ()  # the largest change of exposed time first; empty for old documents
    lines: tuple[LineChange, ...] = ()  # the largest change first; empty unless both captures have stacks
    unprofiled_ratio: float | None = None  # the same without the profiler, an estimate
    predicted: PredictedTime | None = None  # for the changes that the caller names
    notes: tuple[Note, ...] = ()

    def figures(self) -> Mapping[str, FigureChange]:
        """Return every change by name, without the kernels."""
        return {change.name: change for change in (self.time, *self.mean_parts, *self.host)}


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Documented):
    """Captures compared with the first of them.

    Attributes:
        base: The first capture, with the lengths of its iterations in ns.
        against: The difference of each other capture, in ns per iteration.
        whole_because: Why captures are compared as a whole; "" if their iterations are compared.
        level: The confidence level of the intervals, 0.95.
        min_change: Changes of the mean time below this share of the base's count as noise, from 0 to 1.
        notes: What weakens the comparison.
    """

    base: ComparedCapture
    against: tuple[CaptureDifference, ...]
    whole_because: str
    level: float
    min_change: float
    notes: tuple[Note, ...] = ()
