"""Sums of long columns up to a few places, without a running sum that is as long."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Intervals, Times, distinct


def sums_before(values: NDArray[Any], place: Times) -> Times:
    """Return the sum of all values before each place, which may be the end; it wraps where it does not fit."""
    cuts = distinct(np.append(place, 0))
    begins = cuts[cuts < len(values)]
    running = np.zeros(len(begins) + 1, np.int64)
    if len(begins):
        np.cumsum(np.add.reduceat(values, begins, dtype=np.int64), out=running[1:])
    return running[np.searchsorted(cuts, place)]


def sums_between(values: NDArray[Any], first: Times, last: Times) -> Times:
    """Return the sum of the values from each first place to before each last one."""
    before = sums_before(values, np.concatenate([first, last]))
    return before[len(first) :] - before[: len(first)]


def covered(by: Intervals, start: Times, end: Times) -> Times:
    """Return what intervals.covered does, of few queries: the length of each [start, end) that a union covers."""
    if len(by.start) == 0:
        return np.zeros(len(start), np.int64)
    at = np.concatenate([start, np.maximum(start, end)])
    after = np.searchsorted(by.start, at, side="right")
    # All ends or all starts may not fit, but what the members' lengths add up to does.
    before = sums_before(by.end, after) - sums_before(by.start, after)
    # Of the last member that begins before, what comes after the moment does not count.
    before -= np.where(after > 0, np.maximum(by.end[after - 1] - at, 0), 0)
    return before[len(start) :] - before[: len(start)]
