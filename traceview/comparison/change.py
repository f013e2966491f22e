"""Changes of figures, their confidence intervals, and the verdict on the time per iteration.

docs/compare.md says how intervals are made. Three choices make the bootstrap exact, reproducible and fast:

- The seed is fixed, and the draws depend only on the numbers of iterations and blocks.
- The median of a resample is an order statistic of the sample at a random rank. The rank is drawn directly from
  the order statistics of uniform numbers (a beta distribution), so the cost does not depend on the number of
  iterations.
- Each of two sets of draws is used once for each capture, so swapping the captures negates the interval.

The length of blocks follows Politis and White 2004, with the correction of Patton, Politis and White 2009. Two runs of
the same program also differ by clocks, neighbours and placement, which the iterations of one run do not show:
MIN_CHANGE covers that.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.comparison import FigureChange, IterationWork

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
    return (np.minimum((at * count).astype(np.int64), last), np.minimum((above * count).astype(np.int64), last))


def difference_interval(before: Times, after: Times) -> DifferenceInterval | None:
    """Return the interval of the difference of medians, rounded outwards; None below MIN_VALUES values."""
    if min(len(before), len(after)) < MIN_VALUES:
        return None
    old, new = resampled_medians(before), resampled_medians(after)
    return percentile_interval(np.concatenate([new[1] - old[0], new[0] - old[1]]), per_ns=2)


def percentile_interval(resampled: Times | NDArray[np.float64], shift: int = 0, per_ns: int = 1) -> DifferenceInterval:
    """Return the interval of resampled differences, rounded outwards: it holds the share LEVEL of them.

    A unit of the differences is 1/`per_ns` ns, and `shift` ns are added to each.
    """
    ordered = np.sort(resampled)
    tail = int(len(ordered) * (1 - LEVEL) / 2)
    low, high = ordered[tail].item(), ordered[-1 - tail].item()  # whole numbers of Python are exact
    return DifferenceInterval(
        low=shift + int(low // per_ns),
        high=shift - int(-high // per_ns),
        below=float(np.count_nonzero(ordered < -shift * per_ns)) / len(ordered),
        above=float(np.count_nonzero(ordered > -shift * per_ns)) / len(ordered),
    )


Floats = NDArray[np.float64]
MIN_PERIODS = 5  # times from one iteration to the next; with fewer, a change has no confidence interval
PERIODIC = 0.6  # correlation of values one period apart
MIN_BLOCKS = 5  # fewer do not show how they vary
MAX_BLOCKS = 200  # blocks in a resample; more do not change the distribution of its mean


class Series(NamedTuple):
    """A figure of consecutive iterations, and the length of blocks to resample it with."""

    values: Times
    length: int

    @property
    def mean(self) -> int:
        """The mean, rounded down."""
        return int(self.values.sum()) // len(self.values)

    def with_values(self, values: Times) -> Series:
        """Return another figure of the same iterations."""
        return Series(values, self.length)


class TimeVerdict(NamedTuple):
    """A word of VERDICTS, the reason in a sentence, and the probability of the difference's sign."""

    word: str
    why: str
    probability: float | None


def block_length(values: Times) -> int:
    """Return the length of blocks for the mean of a series.

    It is the cube root of the number of values, more if they are correlated, and a multiple of the period if every p-th
    value is like the one before.
    """
    count = len(values)
    least = round(count ** (1 / 3)) if count >= 2 * MIN_BLOCKS else 1
    centred = values - values.mean()
    if count >= MIN_PERIODS and np.any(centred):
        size = 1 << (2 * count - 1).bit_length()
        spectrum = np.fft.rfft(centred, size)
        covariance = np.fft.irfft(spectrum * spectrum.conj(), size)[:count] / count
        least = max(least, min(count // MIN_BLOCKS, _optimal_length(covariance)))
        least = _multiple_of_period(least, covariance)
    return max(least, math.ceil(count / MAX_BLOCKS))


def _optimal_length(covariance: Floats) -> int:
    """Return the length with the least error of the variance of the mean; 1 if values are not correlated."""
    count = len(covariance)
    most = math.floor(3 * math.sqrt(count))
    reach = _last_correlated_lag(covariance)
    if not reach:
        return 1
    used = np.arange(min(2 * reach + 1, count))
    weight = np.clip(2 * (1 - used / (2 * reach)), 0, 1) * np.where(used, 2, 1)
    at_zero = float((weight * covariance[used]).sum())
    slope = float((weight * used * covariance[used]).sum())
    return min(most, round((1.5 * count * (slope / at_zero) ** 2) ** (1 / 3))) if at_zero > 0 else most


def _last_correlated_lag(covariance: Floats) -> int:
    """Return the lag after which the next correlations are all insignificant; 0 if there is none before."""
    count = len(covariance)
    run = max(5, math.ceil(math.sqrt(math.log10(count))))
    significant = np.abs(covariance / covariance[0]) >= 2 * math.sqrt(math.log10(count) / count)
    most = math.ceil(math.sqrt(count))
    return next((lag for lag in range(most) if not significant[lag + 1 : lag + 1 + run].any()), most)


def _multiple_of_period(length: int, covariance: Floats) -> int:
    lags = np.arange(1, len(covariance) // 3 + 1)
    if not len(lags):
        return length
    # Fewer products enter the covariance of a longer lag.
    correlation = covariance[lags] / covariance[0] * len(covariance) / (len(covariance) - lags)
    period = int(lags[np.argmax(correlation)])
    return max(length // period, 1) * period if period > 1 and correlation.max() >= PERIODIC else length


def resampled_deviations(series: Series) -> tuple[Floats, Floats]:
    """Return RESAMPLES resampled means of a series, less its mean, for each of two sets of draws."""
    values, length = series.values - series.mean, series.length
    count = len(values)
    blocks = max(2, count // length)
    running = np.concatenate([[0], np.cumsum(np.concatenate([values, values[:length]]), dtype=np.int64)])
    sums = running[length : length + count] - running[:count]
    rest = int(values.sum()) / count
    first, second = (
        (sums[_block_starts(count, blocks, which)].sum(axis=1) / (blocks * length) - rest)
        * _small_sample_factor(blocks, which)
        for which in (0, 1)
    )
    return first, second


@lru_cache(maxsize=32)
def _block_starts(count: int, blocks: int, which: int) -> NDArray[np.int64]:
    draws = np.random.Generator(np.random.PCG64([SEED, which, count, blocks]))
    return draws.integers(0, count, (RESAMPLES, blocks))


@lru_cache(maxsize=32)
def _small_sample_factor(blocks: int, which: int) -> Floats:
    draws = np.random.Generator(np.random.PCG64([SEED, 2 + which, blocks]))
    spread: Floats = np.sqrt(blocks / draws.chisquare(blocks - 1, RESAMPLES))
    return spread


def mean_change(name: str, before: Series, after: Series) -> FigureChange:
    """Compare the means of a figure. If the interval of the difference contains zero, the change is noise."""
    means = before.mean, after.mean
    return figure_change(name, "ns", means, means, mean_interval(before, after))


def mean_interval(before: Series, after: Series) -> DifferenceInterval | None:
    """Return the interval of the difference of means, rounded outwards; None below MIN_PERIODS values."""
    if min(len(before.values), len(after.values)) < MIN_PERIODS:
        return None
    old, new = resampled_deviations(before), resampled_deviations(after)
    moved = np.concatenate([new[1] - old[0], new[0] - old[1]])
    return percentile_interval(moved, after.mean - before.mean)


def ratio_interval(before: Series, after: Series) -> tuple[float, float] | None:
    """Return the interval of the ratio of means, whose reverse is that of the swapped captures.

    None below MIN_PERIODS values.
    """
    if min(len(before.values), len(after.values)) < MIN_PERIODS:
        return None
    # A resampled mean of a few scattered values may be negative.
    old, new = (
        [np.maximum(series.mean + moved, 1.0) for moved in resampled_deviations(series)] for series in (before, after)
    )
    ordered = np.sort(np.concatenate([new[1] / old[0], new[0] / old[1]]))
    tail = int(len(ordered) * (1 - LEVEL) / 2)
    return ordered[tail].item(), ordered[-1 - tail].item()


def judge_time(
    time: FigureChange, before: Series, after: Series, min_change: float, work: IterationWork
) -> TimeVerdict:
    """Return whether the mean time per iteration became shorter or longer, or whether the change is noise.

    `min_change` is a share of the base's time. Iterations that do different work are not judged.
    """
    if work.multiple is not None:
        more = work.multiple if work.multiple > 1 else 1 / work.multiple
        which = "second" if work.multiple > 1 else "first"
        why = f"an iteration of the {which} capture launches each kernel {more:.3g} times as often: the work differs"
        return TimeVerdict("unjudged", why, None)
    interval = mean_interval(before, after)
    if interval is None:
        fewest = min(len(before.values), len(after.values))
        values = "one value is" if fewest == 1 else f"{fewest + 1} iterations are"
        why = f"{values} too few to tell a change from noise: at least {MIN_PERIODS + 1} are needed"
        return TimeVerdict("unjudged", why, None)
    probability = interval.below if time.difference < 0 else interval.above if time.difference > 0 else 0.0
    if interval.low <= 0 <= interval.high:
        return TimeVerdict("noise", f"the {100 * LEVEL:g}% interval of the difference contains zero", probability)
    if abs(time.difference) < min_change * time.before:
        why = f"the change is below {100 * min_change:g}%, which runs of the same program also differ by"
        return TimeVerdict("noise", why, probability)
    word = "faster" if time.difference < 0 else "slower"
    return TimeVerdict(word, f"the {100 * LEVEL:g}% interval of the difference does not contain zero", probability)


QUANTILES = (5, 25, 50, 75, 95)


def quantiles(values: Times) -> dict[str, int]:
    """Return quantiles of the times of iterations, p5 to p95, in ns."""
    return {f"p{q}": int(np.percentile(values, q, method="lower")) for q in QUANTILES}
