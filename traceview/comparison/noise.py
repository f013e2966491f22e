"""What iterations vary by themselves: the bootstrap of a difference of medians.

The method is the percentile bootstrap: iterations of each capture are drawn anew with replacement, and the
differences of the medians of such draws show what chance alone makes of the difference. It is taken because
it asks nothing of how iterations are distributed (they have tails and two humps), holds for captures of
different lengths and spreads, and speaks of the figure that is reported. Three things make it exact
to the byte and cheap:

- The seed is fixed, and the draws depend on the number of iterations alone.
- The median of a draw is an order statistic of the sample at a random rank, and its rank is drawn directly,
  as the order statistics of uniform numbers (a beta distribution): any number of iterations costs the same.
- Each of two sets of draws serves each capture once, so that swapping the captures negates the interval.

It speaks of the iterations of these runs. Two runs of one program also differ by clocks, neighbours and
placement, which no iteration of one run shows: hence the least difference that counts (change.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from traceview.intervals import Times

SEED = 20_260_101
RESAMPLES = 4_000
LEVEL = 0.95
# The range of n values holds their median with 1 - 2**(1 - n): below 6, no 95% interval exists.
FEWEST = 6


class Resampled(NamedTuple):
    """Twice the resampled medians of a sample, for both sets of draws; shape (RESAMPLES,) each."""

    first: Times
    second: Times


class Interval(NamedTuple):
    """A confidence interval of a difference, and the share of the resamples below and above zero."""

    low: int
    high: int
    below: float
    above: float


@lru_cache(maxsize=64)
def _ranks(count: int, which: int) -> tuple[Times, Times]:
    """Draw the ranks of the two middle values of resamples of `count` values; the same one twice if it is odd."""
    draws = np.random.Generator(np.random.PCG64([SEED, which, count]))
    lower = (count + 1) // 2  # counted from 1
    at = draws.beta(lower, count + 1 - lower, RESAMPLES)
    above = at
    if count % 2 == 0:
        # The next of the remaining uniform numbers: the least of them, all above `at`.
        above = 1 - (1 - at) * draws.random(RESAMPLES) ** (1 / (count - lower))
    last = count - 1
    return (
        np.minimum((at * count).astype(np.int64), last),
        np.minimum((above * count).astype(np.int64), last),
    )


def twice_median(values: Times) -> int:
    """Return the sum of the two middle values, which is whole where the median may not be."""
    ordered = np.sort(values)
    return int(ordered[(len(ordered) - 1) // 2]) + int(ordered[len(ordered) // 2])


def median(values: Times) -> int:
    """Return the median, rounded down (METRICS.md "Iterations")."""
    return twice_median(values) // 2


def resampled(values: Times) -> Resampled:
    """Return twice the medians of resamples, by a fixed seed."""
    ordered = np.sort(values)
    first, second = (_ranks(len(values), which) for which in (0, 1))
    return Resampled(ordered[first[0]] + ordered[first[1]], ordered[second[0]] + ordered[second[1]])


def interval(before: Times, after: Times, level: float = LEVEL) -> Interval | None:
    """Return the interval of the difference of medians, rounded outwards; None of fewer than FEWEST values."""
    if min(len(before), len(after)) < FEWEST:
        return None
    old, new = resampled(before), resampled(after)
    difference = np.sort(np.concatenate([new.second - old.first, new.first - old.second]))
    low, high = _tails(len(difference), level)
    return Interval(
        low=int(difference[low]) // 2,
        high=-(-int(difference[high]) // 2),
        below=float(np.count_nonzero(difference < 0)) / len(difference),
        above=float(np.count_nonzero(difference > 0)) / len(difference),
    )


def ratio_interval(before: Times, after: Times, level: float = LEVEL) -> tuple[float, float] | None:
    """Return the interval of the ratio of medians, after over before; None where there is none."""
    if min(len(before), len(after)) < FEWEST:
        return None
    old, new = resampled(before), resampled(after)
    under = np.concatenate([old.first, old.second])
    if not under.all():
        return None
    ratio = np.sort(np.concatenate([new.second, new.first]) / under)
    low, high = _tails(len(ratio), level)
    return float(ratio[low]), float(ratio[high])


def _tails(count: int, level: float) -> tuple[int, int]:
    low = int(count * (1 - level) / 2)
    return low, count - 1 - low
