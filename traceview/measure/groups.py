"""Sums and unions for many groups at once, without a loop over groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traceview.intervals import Times

AT_ONCE = 1 << 18  # pairs; more at once takes memory and is no faster


@dataclass(frozen=True, slots=True)
class Unions:
    """Intervals whose `start` ascends, ready to be united by owner; `rank` is the place of each one's end in `ends`."""

    start: Times
    ends: Times
    rank: Times

    @classmethod
    def of(cls, start: Times, end: Times) -> Unions:
        """Prepare intervals in order of start."""
        by_end = np.argsort(end, kind="stable")
        rank = np.empty(len(end), np.int64)
        rank[by_end] = np.arange(len(end))
        return cls(start, end[by_end], rank)

    def lengths(self, owner: Times, member: Times, count: int) -> Times:
        """Return the length of the union of each owner's intervals, in ns; shape (count,).

        `owner` and `member` are pairs, in any order. An interval may have many owners.
        """
        bits = np.int64(len(self.start).bit_length())
        low = (np.int64(1) << bits) - 1
        # Both numbers in one: sorted, each owner's intervals stand together, by start.
        key = (owner << bits) | member
        key.sort(kind="stable")  # mostly in order already: this one notices
        interval = key & low
        free = self.start[interval]
        # The owner in the high bits keeps a running maximum of ends from leaking into the next owner;
        # ranks stand in for the ends because times would overflow there.
        key += self.rank[interval] - interval
        reach = np.maximum.accumulate(key)
        end = self.ends[reach & low]
        ordered = key >> bits
        same = ordered[1:] == ordered[:-1]
        np.maximum(free[1:], end[:-1], out=free[1:], where=same)
        return _sums(ordered, np.maximum(end - free, 0), count)


def batches(owner: Times, size: Times) -> Iterator[slice]:
    """Cut rows of ascending owners into stretches of whole owners, of about AT_ONCE of `size` or of one owner."""
    running = np.cumsum(size)
    first = 0
    while first < len(owner):
        before = int(running[first - 1]) if first else 0
        last = int(np.searchsorted(running, before + AT_ONCE, side="right"))
        if last < len(owner):
            last = int(np.searchsorted(owner, owner[last], side="left"))
        if last <= first:
            last = int(np.searchsorted(owner, owner[first], side="right"))
        yield slice(first, last)
        first = last


def _sums(owner: Times, values: Times, count: int) -> Times:
    """Add up values by ascending owner; np.bincount would go through floats."""
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    return np.diff(running[np.searchsorted(owner, np.arange(count + 1))])
