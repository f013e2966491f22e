"""Sums and unions for many groups at once, without a loop over groups."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.intervals import Times

AT_ONCE = 1 << 20  # pairs; more at once takes memory and is no faster


def busy_by(owner: Times, member: Times, start: Times, end: Times, count: int) -> Times:
    """Return the length of the union of each owner's intervals, in ns; shape (count,).

    `owner` and `member` are pairs, in any order: interval `member` of (`start`, `end`), whose starts
    ascend, counts for `owner`. An interval may have many owners.
    """
    if len(owner) == 0:
        return np.zeros(count, np.int64)
    by_end = np.argsort(end, kind="stable")
    rank = np.empty(len(end), np.int64)
    rank[by_end] = np.arange(len(end))
    ends = end[by_end]
    busy = np.zeros(count, np.int64)
    for first, last in _batches(owner, count):
        chosen = (owner >= first) & (owner < last)
        members = member if chosen.all() else member[chosen]
        owners = owner - first if chosen.all() else owner[chosen] - first
        busy[first:last] = _busy(owners, members, start, ends, rank, last - first)
    return busy


def _batches(owner: Times, count: int) -> Iterator[tuple[int, int]]:
    """Cut the owners into stretches [first, last) of a bounded number of pairs, or of one owner."""
    running = np.cumsum(np.bincount(owner, minlength=count))
    first = 0
    while first < count:
        before = int(running[first - 1]) if first else 0
        last = max(int(np.searchsorted(running, before + AT_ONCE, side="right")), first + 1)
        yield first, last
        first = last


def _busy(owner: Times, member: Times, start: Times, ends: Times, rank: Times, count: int) -> Times:
    """Do one batch; `ends` ascend, and `rank` is the place of each interval's end in them."""
    bits = np.int64(len(start).bit_length())
    low = (np.int64(1) << bits) - 1
    # Both numbers in one: sorted, each owner's intervals stand together, by start.
    key = (owner << bits) | member
    key.sort()
    interval = key & low
    free = start[interval]
    # The owner in the high bits keeps a running maximum of ends from leaking into the next owner;
    # ranks stand in for the ends because times would overflow there.
    key += rank[interval] - interval
    reach = np.maximum.accumulate(key)
    end = ends[reach & low]
    ordered = key >> bits
    same = ordered[1:] == ordered[:-1]
    np.maximum(free[1:], end[:-1], out=free[1:], where=same)
    return _sums(ordered, np.maximum(end - free, 0), count)


def _sums(owner: Times, values: Times, count: int) -> Times:
    """Add up values by ascending owner; np.bincount would go through floats."""
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    return np.diff(running[np.searchsorted(owner, np.arange(count + 1))])
