"""Interval algebra on sorted int64 arrays: the heart of every figure.

All intervals are half-open [start, end) in ns. An `Intervals` that these functions return is a
union: sorted, disjoint, without empty members, touching members merged. Functions that say
"of a union" expect one; nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


class Intervals(NamedTuple):
    """Two arrays of equal length, starts and ends, in ns."""

    start: Times
    end: Times


BEFORE_ALL = -(1 << 62)
BLOCK = 1 << 16  # rows whose temporary arrays stay in the processor's cache
EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def blocks(count: int) -> Iterator[slice]:
    """Cut `count` rows into stretches whose temporary arrays stay small and near the processor."""
    return (slice(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK))


def union(start: Times, end: Times, *, ordered: bool = False) -> Intervals:
    """Merge any intervals into their union; those of no length add nothing.

    `ordered` says that `start` ascends already and saves the sort.
    """
    if not ordered:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    return ordered_union(start, end)[0]


def ordered_union(start: Times, end: Times) -> tuple[Intervals, Times]:
    """Return the union of intervals whose `start` ascends, and which of them each of its members begins with."""
    if len(start) == 0:
        return EMPTY, EMPTY.start
    keep = end > start
    chosen = None
    if not keep.all():
        chosen = np.flatnonzero(keep)
        start, end = start[chosen], end[chosen]
        if len(start) == 0:
            return EMPTY, EMPTY.start
    # Work that follows work seldom overlaps it; then each end is the furthest so far.
    reach = end if (end[1:] >= end[:-1]).all() else np.maximum.accumulate(end)
    first = np.flatnonzero(start[1:] > reach[:-1])
    first += 1
    last = np.append(first - 1, len(start) - 1)
    first = np.concatenate([np.zeros(1, np.int64), first])
    return Intervals(start[first], reach[last]), first if chosen is None else chosen[first]


def united_length(start: Times, end: Times, rows: Times) -> int:
    """Return the length of the union of some intervals, in order of start, without making it, in ns."""
    reach, total = BEFORE_ALL, 0
    for block in blocks(len(rows)):
        first, last = start[rows[block]], end[rows[block]]
        before = np.maximum.accumulate(np.concatenate([np.array([reach], np.int64), last]))
        reach = int(before[-1])
        total += int(np.maximum(last - np.maximum(first, before[:-1]), 0).sum())
    return total


def length(of: Intervals) -> int:
    """Total length of a union, in ns."""
    return int((of.end - of.start).sum())  # each sum alone may not fit


def complement(of: Intervals, start: int, end: int) -> Intervals:
    """Return the parts of [start, end) that a union leaves free."""
    return gaps_between(clip(of, start, end), start, end)[0]


def gaps_between(of: Intervals, start: int, end: int) -> tuple[Intervals, Times]:
    """Return what a union inside [start, end) leaves free of it, and which member of the union ends each part.

    The part that ends at `end` is ended by member number `len(of.start)`.
    """
    starts = np.concatenate([np.array([start], np.int64), of.end])
    ends = np.concatenate([of.start, np.array([end], np.int64)])
    # The members of a union do not touch: only before the first and after the last may nothing be free.
    first, last = int(ends[0] <= starts[0]), len(starts) - int(len(of.start) > 0 and ends[-1] <= starts[-1])
    return Intervals(starts[first:last], ends[first:last]), np.arange(first, max(first, last))


def clip(of: Intervals, start: int, end: int) -> Intervals:
    """Return the part of a union inside [start, end)."""
    low = int(np.searchsorted(of.end, start, side="right"))
    high = int(np.searchsorted(of.start, end, side="left"))
    if low >= high:
        return EMPTY
    starts = np.maximum(of.start[low:high], start)
    ends = np.minimum(of.end[low:high], end)
    return Intervals(starts, ends)


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """Return the parts of one union that another leaves free."""
    if len(left.start) == 0 or len(right.start) == 0:
        return left
    low = int(min(left.start[0], right.start[0]))
    high = int(max(left.end[-1], right.end[-1]))
    return intersect(left, complement(right, low, high))


class Pieces(NamedTuple):
    """Parts of queries: which query each belongs to, and its start and end in ns."""

    owner: Times
    start: Times
    end: Times


def pieces(of: Intervals, start: Times, end: Times) -> Pieces:
    """Cut a union at the borders of queries, which may overlap each other: every part of it in every query."""
    first = np.searchsorted(of.end, start, side="right")
    last = np.searchsorted(of.start, end, side="left")
    count = np.maximum(last - first, 0)
    owner = np.repeat(np.arange(len(start)), count)
    if len(owner) == 0:
        return Pieces(owner, *EMPTY)
    member = first[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    return Pieces(owner, np.maximum(start[owner], of.start[member]), np.minimum(end[owner], of.end[member]))


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Return what two unions have in common."""
    few, many = (left, right) if len(left.start) <= len(right.start) else (right, left)
    first = np.searchsorted(many.end, few.start, side="right")
    count = np.maximum(np.searchsorted(many.start, few.end, side="left") - first, 0)
    some = np.flatnonzero(count)
    if len(some) == 0:
        return EMPTY
    first, count = first[some], count[some]
    stop = np.cumsum(count)
    member = np.repeat(first - (stop - count), count)
    member += np.arange(len(member))
    start, end = many.start[member], many.end[member]
    # Of the members that meet one of the few, only its first may begin before it, and only its last end after it.
    start[stop - count] = np.maximum(start[stop - count], few.start[some])
    end[stop - 1] = np.minimum(end[stop - 1], few.end[some])
    return Intervals(start, end)


def overlap(left: Intervals, right: Intervals) -> int:
    """Length that two unions have in common, in ns."""
    return length(intersect(left, right))


@dataclass(frozen=True, slots=True)
class Coverage:
    """A union made ready to say how much of it lies before any moment.

    `starts` are its members' starts. `ends` and `offset` have one entry more, the first of which stands for all
    time before the union: what lies before a moment in or after a member is its `offset` and the moment or,
    where that comes first, its end.
    """

    starts: Times
    ends: Times
    offset: Times

    @classmethod
    def of(cls, union: Intervals) -> Coverage:
        """Prepare a union; a first member before all time saves every edge case."""
        ends = np.empty(len(union.end) + 1, np.int64)
        offset = np.empty(len(union.end) + 1, np.int64)
        ends[0], offset[0] = BEFORE_ALL, 0
        ends[1:] = union.end
        np.subtract(union.end, union.start, out=offset[1:])
        np.cumsum(offset, out=offset)
        offset -= ends
        return cls(union.start, ends, offset)

    def before(self, at: Times) -> Times:
        """Return the length of the union that lies before each moment, in ns."""
        if len(self.starts) == 0 or len(at) == 0:
            return np.zeros(len(at), np.int64)
        # Questions come in order of time, mostly: few members concern all of them, often a single one.
        low, high = np.searchsorted(self.starts, (at.min(), at.max()), side="right").tolist()
        if low == high:
            found: Times = np.minimum(at, self.ends[low])
            found += self.offset[low]
            return found
        index = np.searchsorted(self.starts[low:high], at, side="right")
        # Inside a member, what is still to come of it does not count yet.
        found = np.minimum(at, self.ends[low : high + 1][index])
        found += self.offset[low : high + 1][index]
        return found

    def between(self, start: Times, end: Times) -> Times:
        """Return the covered length of each [start, end); 0 where end <= start."""
        found = np.zeros(len(start), np.int64)
        if len(self.starts) == 0:
            return found
        for block in blocks(len(start)):
            first, last = start[block], end[block]
            np.subtract(self.before(np.maximum(first, last)), self.before(first), out=found[block])
        return found


def covered(by: Intervals, start: Times, end: Times) -> Times:
    """Return the length of each [start, end) that a union covers; 0 where end <= start.

    The queries may overlap each other and come in any order.
    """
    return Coverage.of(by).between(start, end)
