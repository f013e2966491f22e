"""The results of a comparison of captures. All its reports read only this.

Times are whole ns per iteration. Differences are after minus before: negative means less time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from traceview.model.trace import Note

VERDICTS = ("faster", "slower", "noise", "unjudged")
CUTS = ("range", "gpu", "whole")
STATUSES = ("appeared", "vanished", "changed", "same")


@dataclass(frozen=True, slots=True)
class ComparedCapture:
    """One capture and its steady iterations.

    `wall_ns` has the length of each iteration, in order, or one length if captures are compared as a whole.
    """

    file: str
    nsys_version: str | None
    devices: tuple[str, ...]  # names of the compared GPUs
    range: str | None  # the ranges that are the iterations; None if compared as a whole
    count: int  # compared iterations
    skipped: int  # warm-up, and a first iteration whose start on the GPU is unknown
    wall_ns: tuple[int, ...]
    start_ns: tuple[int, ...]  # of each iteration, on the capture's clock


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of an iteration in two captures.

    `before` and `after` are medians over the iterations, and `difference` is the difference of these. `low` and `high`
    are its confidence interval, None if there are too few iterations. The means show effects of few iterations.
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
    """One kernel by name: the medians over the iterations of its launches and of its GPU time."""

    name: str
    status: str  # one of STATUSES
    count: FigureChange
    time: FigureChange


@dataclass(frozen=True, slots=True)
class CaptureDifference:
    """One capture compared with the base.

    The differences of `parts` and `left_over_ns` add up to `wall.difference` exactly. `left_over_ns` is not 0 because
    medians of parts do not add up to the median of their sum.
    """

    capture: ComparedCapture
    verdict: str  # one of VERDICTS
    why: str  # one sentence: the reason for the verdict
    confidence: float | None  # share of the resamples in which the difference has the same sign
    ratio: float | None  # median wall after over before; None if the latter is 0
    ratio_low: float | None
    ratio_high: float | None
    wall: FigureChange
    parts: tuple[FigureChange, ...]  # compute, exposed_*, other, no_gpu, twice, idle.CAUSE
    left_over_ns: int
    idle: FigureChange
    host: tuple[FigureChange, ...]  # synchronizations, launches and copies
    kernels: tuple[KernelChange, ...]  # the largest difference of GPU time first
    notes: tuple[Note, ...] = ()

    def figures(self) -> Mapping[str, FigureChange]:
        """Return every change by name, without the kernels."""
        return {change.name: change for change in (self.wall, *self.parts, self.idle, *self.host)}


@dataclass(frozen=True, slots=True)
class IterationTimeline:
    """The events of one capture around its iteration of median length.

    `events` has the columns lane, start, length, look and name: lane is an index into `lanes`, name into `names`; times
    are ns after `zero_ns`, ascending. `iterations` are the starts and ends of the iterations that are shown in full.
    """

    lanes: tuple[str, ...]
    names: tuple[str, ...]
    events: tuple[tuple[int, int, int, str, int], ...]
    iterations: tuple[tuple[int, int], ...]
    first: int  # index of `iterations[0]` among the capture's compared iterations
    middle: int  # index into `iterations` of the one with median length
    zero_ns: int  # on the capture's clock
    left_out: int  # events inside the iterations that exceed the limit


@dataclass(frozen=True, slots=True)
class Comparison:
    """Captures compared with the first of them."""

    base: ComparedCapture
    against: tuple[CaptureDifference, ...]
    cut: str  # one of CUTS: how the time of every capture is cut into iterations
    cut_why: str
    level: float  # of the confidence intervals: 0.95
    min_change: float  # wall-time changes below this share of the base's wall time count as noise
    notes: tuple[Note, ...] = ()
    # Builds the timelines, in the order of the captures, when a page is written.
    timelines: Callable[[], tuple[IterationTimeline, ...]] | None = field(default=None, compare=False)
