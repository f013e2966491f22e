"""Changes of figures, their confidence intervals, and the verdict on the wall time.

The interval is a percentile bootstrap of the difference of medians: it resamples the iterations of each capture with
replacement, and the spread of the resampled differences shows what chance alone can do. The method makes no
assumption on the distribution of iterations (it may have tails and two modes), allows captures with different
lengths and spreads, and applies to the reported figure itself. Three choices make it exact, reproducible and fast:

- The seed is fixed, and the draws depend only on the number of iterations.
- The median of a resample is an order statistic of the sample at a random rank. The rank is drawn directly from
  the order statistics of uniform numbers (a beta distribution), so the cost does not depend on the number of
  iterations.
- Each of two sets of draws is used once for each capture, so swapping the captures negates the interval.

The interval covers the variation between the iterations of these runs. Two runs of the same program also differ by
clocks, neighbours and placement, which the iterations of one run do not show. MIN_CHANGE covers that.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.comparison import FigureChange

SEED = 20_260_101
RESAMPLES = 4_000
LEVEL = 0.95
# The range of n values contains their median with probability 1 - 2**(1 - n): 6 values allow a 95% interval.
MIN_VALUES = 6
# Two runs of the same program differ by about this share, even if the iterations of each agree (docs/compare.md).
MIN_CHANGE = 0.01


class DifferenceInterval(NamedTuple):
    """The confidence interval of a difference, and the shares of the resamples below and above zero."""

    low: int
    high: int
    below: float
    above: float


def change_between(name: str, unit: str, before: Times, after: Times) -> FigureChange:
    """Compare a figure of two captures. If the interval of the difference contains zero, the change is noise."""
    interval = difference_interval(before, after)
    means = _mean(before, unit), _mean(after, unit)
    return figure_change(name, unit, (median(before), median(after)), means, interval)


def figure_change(
    name: str, unit: str, figures: tuple[int, int], means: tuple[float, float], interval: DifferenceInterval | None
) -> FigureChange:
    """Return the change of a figure, which has a value before and after, and a mean before and after."""
    difference = figures[1] - figures[0]
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return FigureChange(name, unit, *figures, difference, low, high, *means, direction(difference, interval))


def _mean(values: Times, unit: str) -> float:
    """Return the mean: in whole ns, rounded down, or as a count with three decimals."""
    total = int(values.sum())
    return total // len(values) if unit == "ns" else round(total / len(values), 3)


def direction(difference: int, interval: DifferenceInterval | None) -> str:
    """Return the verdict on a figure: less, more, noise, or unjudged without an interval."""
    if interval is None:
        return "unjudged" if difference else "noise"
    if interval.low <= 0 <= interval.high:
        return "noise"
    return "less" if difference < 0 else "more"


def twice_median(values: Times) -> int:
    """Return the sum of the two middle values: a whole number, unlike the median."""
    ordered = np.sort(values)
    return int(ordered[(len(ordered) - 1) // 2]) + int(ordered[len(ordered) // 2])


def median(values: Times) -> int:
    """Return the median, rounded down (docs/definitions.md "Iterations")."""
    return twice_median(values) // 2


def resampled_medians(values: Times) -> tuple[Times, Times]:
    """Return twice the medians of RESAMPLES resamples, for each of two sets of draws with a fixed seed."""
    ordered = np.sort(values)
    ranks = (_median_ranks(len(values), which) for which in (0, 1))
    first, second = (ordered[low] + ordered[high] for low, high in ranks)
    return first, second


@lru_cache(maxsize=64)
def _median_ranks(count: int, which: int) -> tuple[Times, Times]:
    """Draw the ranks of the two middle values in resamples of `count` values; both are equal for odd counts."""
    draws = np.random.Generator(np.random.PCG64([SEED, which, count]))
    lower = (count + 1) // 2  # counted from 1
    at = draws.beta(lower, count + 1 - lower, RESAMPLES)
    above = at
    if count % 2 == 0:
        # The smallest of the remaining uniform numbers, which are all above `at`.
        above = 1 - (1 - at) * draws.random(RESAMPLES) ** (1 / (count - lower))
    last = count - 1
    return (
        np.minimum((at * count).astype(np.int64), last),
        np.minimum((above * count).astype(np.int64), last),
    )


def difference_interval(before: Times, after: Times) -> DifferenceInterval | None:
    """Return the interval of the difference of medians, rounded outwards; None below MIN_VALUES values."""
    if min(len(before), len(after)) < MIN_VALUES:
        return None
    old, new = resampled_medians(before), resampled_medians(after)
    return percentile_interval(np.concatenate([new[1] - old[0], new[0] - old[1]]), parts=2)


def percentile_interval(resampled: Times | NDArray[np.float64], shift: int = 0, parts: int = 1) -> DifferenceInterval:
    """Return the interval of resampled differences, rounded outwards: it holds the share LEVEL of them.

    Each difference is counted in `parts` of a ns, and `shift` ns are added to it.
    """
    ordered = np.sort(resampled)
    tail = int(len(ordered) * (1 - LEVEL) / 2)
    low, high = ordered[tail].item(), ordered[-1 - tail].item()  # whole numbers of Python are exact
    return DifferenceInterval(
        low=shift + int(low // parts),
        high=shift - int(-high // parts),
        below=float(np.count_nonzero(ordered < -shift * parts)) / len(ordered),
        above=float(np.count_nonzero(ordered > -shift * parts)) / len(ordered),
    )
