"""The shape of the distribution of iteration times: one peak, two peaks or a tail (docs/compare.md "Shape").

The values are split at the threshold that leaves the least variance inside both parts. They have two peaks if the split
removes most of the variance, both parts hold a fair share of the iterations, and their means are far apart. A tail is a
few iterations that are much longer than the median and hold a fair share of the time.
"""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times
from traceview.model.comparison import TimeShape

MIN_VALUES = 8
# A uniform distribution loses 75% of its variance by the best split, a normal one 64%.
MIN_REMOVED_VARIANCE = 0.85
MIN_PEAK_SHARE = 0.1  # share of the iterations in each of two peaks
MIN_DISTANCE = 0.2  # distance between two peaks, as a share of the mean
TAIL_FACTOR = 1.5  # an iteration longer than this times the median is in the tail; warm-up has the same limit
MIN_TAIL_TIME = 0.05  # share of the time that the tail takes beyond the median
QUANTILES = (5, 25, 50, 75, 95)


def time_shape(values: Times) -> TimeShape:
    """Return the shape of the distribution of iteration times, in any order."""
    ordered = np.sort(values)
    quantiles = {f"p{q}": int(np.percentile(ordered, q, method="lower")) for q in QUANTILES}
    if len(ordered) < MIN_VALUES:
        return TimeShape("unknown", quantiles)
    low, high, share, removed = _best_split(ordered)
    if (
        removed >= MIN_REMOVED_VARIANCE
        and MIN_PEAK_SHARE <= share <= 1 - MIN_PEAK_SHARE
        and high - low >= MIN_DISTANCE * ordered.mean()
    ):
        return TimeShape("two peaks", quantiles, low, high, round(share, 3))
    middle = quantiles["p50"]
    late = ordered[ordered > TAIL_FACTOR * middle]
    if late.sum() - middle * len(late) >= MIN_TAIL_TIME * ordered.sum() and len(late):
        return TimeShape("tail", quantiles, middle, int(late.mean()), round(len(late) / len(ordered), 3))
    return TimeShape("one peak", quantiles)


def _best_split(ordered: Times) -> tuple[int, int, float, float]:
    """Return the means of both parts, the share of values in the upper one, and the share of the variance removed."""
    count = len(ordered)
    values = (ordered - ordered[0]).astype(np.float64)
    lower = np.arange(1, count)
    sums = np.cumsum(values)
    below, above = sums[:-1] / lower, (sums[-1] - sums[:-1]) / (count - lower)
    between = lower * (count - lower) / count**2 * (above - below) ** 2
    at = int(np.argmax(between))
    variance = float(values.var())
    start = int(ordered[0])
    removed = float(between[at]) / variance if variance else 0.0
    return start + int(below[at]), start + int(above[at]), (count - at - 1) / count, removed
