"""Sums and union lengths for many groups or queries at once, without a loop over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from traceview.intervals import Times

MAX_BATCH = 1 << 18  # pairs in a batch; larger ones take memory and are not faster


class UnionIndex(NamedTuple):
    """Intervals whose `start` ascends, prepared for union lengths by owner.

    `ends` are the ends, ascending; `rank` is the place of each interval's end in `ends`.
    """

    start: Times
    ends: Times
    rank: Times

    @classmethod
    def build(cls, start: Times, end: Times) -> UnionIndex:
        """Prepare intervals in order of start."""
        by_end = np.argsort(end, kind="stable")
        rank = np.empty(len(end), np.int64)
        rank[by_end] = np.arange(len(end))
        return cls(start, end[by_end], rank)

    def lengths_by_owner(self, owner: Times, member: Times, count: int) -> Times:
        """Return the length of the union of each owner's intervals, in ns; shape (count,).

        `owner` and `member` are pairs, in any order. An interval may have many owners.
        """
        bits = np.int64(len(self.start).bit_length())
        low = (np.int64(1) << bits) - 1
        # Owner and interval share one number. Sorted, each owner's intervals stand together, by start.
        key = (owner << bits) | member
        key.sort(kind="stable")  # fast on keys that are mostly sorted
        interval = key & low
        uncovered = self.start[interval]
        # The owner in the high bits keeps the running maximum of ends from passing to the next owner.
        # Ranks replace the ends because times would overflow here.
        key += self.rank[interval] - interval
        reach = np.maximum.accumulate(key)
        end = self.ends[reach & low]
        ordered = key >> bits
        same = ordered[1:] == ordered[:-1]
        np.maximum(uncovered[1:], end[:-1], out=uncovered[1:], where=same)
        # np.bincount would convert the lengths to floats.
        running = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.maximum(end - uncovered, 0))])
        return np.diff(running[np.searchsorted(ordered, np.arange(count + 1))])


def batches(owner: Times, size: Times) -> Iterator[slice]:
    """Cut rows of ascending owners into slices of complete owners, each of about MAX_BATCH in `size` or one owner."""
    running = np.cumsum(size)
    first = 0
    while first < len(owner):
        before = int(running[first - 1]) if first else 0
        last = int(np.searchsorted(running, before + MAX_BATCH, side="right"))
        if last < len(owner):
            last = int(np.searchsorted(owner, owner[last], side="left"))
        if last <= first:
            last = int(np.searchsorted(owner, owner[first], side="right"))
        yield slice(first, last)
        first = last


def sums_by_owner(owner: Times, values: Times, count: int) -> Times:
    """Return the sum of the values of each owner; shape (count,). Owners come in any order."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, owner, values)
    return sums
