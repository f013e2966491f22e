"""Unions of many groups at once: one sort and one running maximum instead of a loop over groups."""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times


def busy_by_group(group: Times, member: Times, start: Times, end: Times, groups: int) -> Times:
    """Return the length of the union of each group's intervals, in ns, shape (groups,).

    `group` and `member` are pairs: interval `member` belongs to `group`. `start` and `end` are the
    intervals; `start` ascends. An interval may belong to many groups, but only once to each.
    """
    bits = np.int64(max(len(start), 1).bit_length())
    by_end = np.argsort(end, kind="stable")
    end_rank = np.empty(len(end), np.int64)
    end_rank[by_end] = np.arange(len(end))
    # Group and member in one number: sorted, each group's intervals stand together, by start.
    key = (group << bits) | member
    key.sort()
    low = (np.int64(1) << bits) - 1
    interval = key & low
    starts = start[interval]
    # The group in the high bits keeps the running maximum from leaking into the next group, and a
    # rank instead of a time keeps it from overflowing.
    key -= interval
    key += end_rank[interval]
    reach = np.maximum.accumulate(key)
    ends = end[by_end[reach & low]]
    of = key >> bits
    free = starts
    same = of[1:] == of[:-1]
    free[1:] = np.where(same, np.maximum(starts[1:], ends[:-1]), starts[1:])
    added = np.maximum(ends - free, 0)
    return _sums(of, added, groups)


def _sums(group: Times, values: Times, groups: int) -> Times:
    """Add up values by ascending group, exactly (np.bincount would go through floats)."""
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    edges = np.searchsorted(group, np.arange(groups + 1))
    return np.diff(total[edges])
