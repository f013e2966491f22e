"""Sums and unions for many groups at once."""

from __future__ import annotations

import numpy as np

from traceview import intervals
from traceview.intervals import Times

ROOM = 1 << 61


def sums_by(owner: Times, values: Times, count: int) -> Times:
    """Add up values by owner, 0 to count - 1; exact, whatever the order."""
    order = np.argsort(owner, kind="stable")
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(values[order])])
    edge = np.searchsorted(owner[order], np.arange(count + 1))
    return running[edge[1:]] - running[edge[:-1]]


def busy_by(owner: Times, start: Times, end: Times, count: int) -> Times:
    """Return the length of the union of each owner's intervals, in ns; `start` ascends."""
    if len(start) == 0:
        return np.zeros(count, np.int64)
    base, span = int(start[0]), int(end.max()) - int(start[0]) + 1
    if span * (count + 1) >= ROOM:
        return _busy_one_by_one(owner, start, end, count)
    # Each owner gets a stretch of the time line of its own, so that one union serves all.
    order = np.argsort(owner, kind="stable")
    offset = owner[order] * span - base
    union = intervals.union(start[order] + offset, end[order] + offset, ordered=True)
    return sums_by(union.start // span, union.end - union.start, count)


def _busy_one_by_one(owner: Times, start: Times, end: Times, count: int) -> Times:
    busy = np.zeros(count, np.int64)
    for one in np.unique(owner):
        chosen = owner == one
        busy[one] = intervals.length(intervals.union(start[chosen], end[chosen], ordered=True))
    return busy
