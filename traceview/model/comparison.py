"""What a comparison of captures says; every report reads this and nothing else.

Times are whole ns per iteration, differences are after less before: below zero is less, and so faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

VERDICTS = ("faster", "slower", "noise", "unjudged")
CUTS = ("range", "gpu", "whole")
STATUSES = ("appeared", "vanished", "changed", "same")


@dataclass(frozen=True, slots=True)
class Capture:
    """One capture as it was compared: its steady iterations.

    `wall_ns` holds the length of each, in order; one length where captures are compared as a whole.
    """

    file: str
    nsys_version: str | None
    devices: tuple[str, ...]  # the names of the GPUs that were compared
    range: str | None  # the ranges that are the iterations; None where compared as a whole
    count: int  # iterations that were compared
    skipped: int  # warm-up, and a first iteration whose beginning on the GPU is not known
    wall_ns: tuple[int, ...]
    start_ns: tuple[int, ...]  # of each iteration, on the capture's clock


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of an iteration in two captures.

    `before` and `after` are medians over the iterations, `difference` is theirs; `low` and `high` hold the
    confidence interval of the difference, None where nothing can be said. `mean_before` and `mean_after`
    say what happens in some iterations only. All in ns, or counted where `unit` is "count".
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
    verdict: str  # "less", "more", "noise", or "unjudged" where there is no interval


@dataclass(frozen=True, slots=True)
class KernelChange:
    """One kernel by its name: medians over the iterations of its launches and of its GPU time."""

    name: str
    status: str  # one of STATUSES
    count: Change
    time: Change


@dataclass(frozen=True, slots=True)
class Against:
    """One capture against the base.

    The differences of `parts` and `left_over_ns` add up to `wall.difference`, exactly: medians of parts do
    not add up to the median of their sum, and what they miss is said.
    """

    capture: Capture
    verdict: str  # one of VERDICTS
    why: str  # one sentence: the reason for the verdict
    confidence: float | None  # share of the resamples in which the difference has the sign it has
    ratio: float | None  # median wall after over before; None of nothing
    ratio_low: float | None
    ratio_high: float | None
    wall: Change
    parts: tuple[Change, ...]  # compute, exposed_*, other, no_gpu, twice, idle.CAUSE
    left_over_ns: int
    idle: Change
    host: tuple[Change, ...]  # synchronizations, launches and copies
    kernels: tuple[KernelChange, ...]  # the largest difference of GPU time first
    notes: tuple[str, ...] = ()

    def figures(self) -> Mapping[str, Change]:
        """Return every change by its name, but those of kernels."""
        return {change.name: change for change in (self.wall, *self.parts, self.idle, *self.host)}


@dataclass(frozen=True, slots=True)
class Timeline:
    """What one capture did around the iteration of median length, for a page that draws it.

    `events` has the columns lane, start, length, look and name: lane indexes `lanes`, name `names`; times in
    ns from `zero_ns`, ascending. `iterations` are the starts and ends of those that it shows in full.
    """

    lanes: tuple[str, ...]
    names: tuple[str, ...]
    events: tuple[tuple[int, int, int, str, int], ...]
    iterations: tuple[tuple[int, int], ...]
    first: int  # the place of the first of them among the capture's compared iterations
    middle: int  # the place of the one of median length among `iterations`
    zero_ns: int  # on the capture's clock
    left_out: int  # events inside those iterations that are too many to draw


@dataclass(frozen=True, slots=True)
class Comparison:
    """Captures against the first of them."""

    base: Capture
    against: tuple[Against, ...]
    cut: str  # one of CUTS: how time was cut into iterations, the same in every capture
    cut_why: str
    level: float  # of the confidence intervals: 0.95
    least: float  # the share of the base's wall that a difference must reach to be no noise
    notes: tuple[str, ...] = ()
    # Made when a page asks for them, in the order of the captures.
    timelines: Callable[[], tuple[Timeline, ...]] | None = field(default=None, compare=False)
