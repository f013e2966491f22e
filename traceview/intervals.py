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
Rows = NDArray[np.int32]  # rows of a frame with tens of millions, which are long to hold


class Intervals(NamedTuple):
    """Two arrays of equal length, starts and ends, in ns."""

    start: Times
    end: Times


BEFORE_ALL = -(1 << 62)
BLOCK = 1 << 16  # rows whose temporary arrays stay in the processor's cache
FEW = 32  # of so many times fewer members than queries it is asked which queries they meet, and not the other way round
EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def blocks(count: int) -> Iterator[slice]:
    """Cut `count` rows into stretches whose temporary arrays stay small and near the processor."""
    return (slice(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK))


def rows_where(chosen: NDArray[np.bool_]) -> Rows:
    """Return the rows that are chosen, in order."""
    rows, count = np.empty(np.count_nonzero(chosen), np.int32), 0
    for block in blocks(len(chosen)):
        some = np.flatnonzero(chosen[block])
        rows[count : count + len(some)] = some + block.start
        count += len(some)
    return rows


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
    reach = end if in_order(end) else np.maximum.accumulate(end)
    begins = np.empty(len(start), np.bool_)
    begins[0] = True
    np.greater(start[1:], reach[:-1], out=begins[1:])
    first = np.flatnonzero(begins)
    if len(first) == len(start):
        return Intervals(start, reach), first if chosen is None else chosen
    ends = np.empty(len(first), np.int64)
    ends[:-1] = reach[first[1:] - 1]
    ends[-1] = reach[-1]
    return Intervals(start[first], ends), first if chosen is None else chosen[first]


def united_length(start: Times, end: Times, rows: Rows) -> int:
    """Return the length of the union of some intervals, in order of start, without making it, in ns."""
    reach, total = BEFORE_ALL, 0
    for block in blocks(len(rows)):
        some = rows[block].astype(np.intp)
        first, last = start[some], end[some]
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


def gaps_between(of: Intervals, start: int, end: int) -> tuple[Intervals, slice]:
    """Return what a union inside [start, end) leaves free of it, and which members of the union end the parts.

    The part that ends at `end` is ended by member number `len(of.start)`.
    """
    count = len(of.start)
    # The members of a union do not touch: only before the first and after the last may nothing be free.
    members = slice(int(count > 0 and of.start[0] <= start), count + int(count == 0 or of.end[-1] < end))
    if members == slice(1, count):
        return Intervals(of.end[:-1], of.start[1:]), members
    if start >= end:
        return EMPTY, slice(0, 0)
    starts, ends = np.append(start, of.end), np.append(of.start, end)
    return Intervals(starts[members], ends[members]), members


def clip(of: Intervals, start: int, end: int) -> Intervals:
    """Return the part of a union inside [start, end)."""
    low = int(np.searchsorted(of.end, start, side="right"))
    high = int(np.searchsorted(of.start, end, side="left"))
    if low >= high:
        return EMPTY
    starts, ends = of.start[low:high], of.end[low:high]
    # The first member alone may begin before the window, and the last alone end after it.
    if starts[0] < start:
        starts = starts.copy()
        starts[0] = start
    if ends[-1] > end:
        ends = ends.copy()
        ends[-1] = end
    return Intervals(starts, ends)


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """Return the parts of one union that another leaves free."""
    if len(left.start) == 0 or len(right.start) == 0:
        return left
    if len(left.start) > len(right.start):
        low = int(min(left.start[0], right.start[0]))
        high = int(max(left.end[-1], right.end[-1]))
        return intersect(left, complement(right, low, high))
    gone = intersect(left, right)
    if len(gone.start) == 0:
        return left
    # What is left begins where a member does or something gone ends, and ends where that begins or the member ends.
    start = np.sort(np.concatenate([left.start, gone.end]), kind="stable")
    end = np.sort(np.concatenate([gone.start, left.end]), kind="stable")
    some = np.flatnonzero(end > start)
    return Intervals(start[some], end[some])


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
    member = consecutive(first, count)
    return Pieces(owner, np.maximum(start[owner], of.start[member]), np.minimum(end[owner], of.end[member]))


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Return what two unions have in common."""
    few, many = (left, right) if len(left.start) <= len(right.start) else (right, left)
    if len(few.start) == 0:
        return EMPTY
    first = np.searchsorted(many.end, few.start, side="right")
    # Often none or few meet any: only for those is it searched where what they meet ends.
    some = np.flatnonzero((few.end > many.start.take(first, mode="clip")) & (first < len(many.start)))
    if len(some) == 0:
        return EMPTY
    first, begun, ended = first[some], few.start[some], few.end[some]
    count = np.searchsorted(many.start, ended, side="left") - first
    stop = np.cumsum(count)
    member = consecutive(first, count)
    start, end = many.start[member], many.end[member]
    # Of the members that meet one of the few, only its first may begin before it, and only its last end after it.
    start[stop - count] = np.maximum(start[stop - count], begun)
    end[stop - 1] = np.minimum(end[stop - 1], ended)
    return Intervals(start, end)


def overlap(left: Intervals, right: Intervals) -> int:
    """Length that two unions have in common, in ns."""
    return length(intersect(left, right))


@dataclass(frozen=True, slots=True)
class Coverage:
    """A union made ready to say how much of it lies before any moment.

    `starts` are its members' starts, `running` the length of all members before each, and of all (one entry more).
    """

    starts: Times
    running: Times

    @classmethod
    def of(cls, union: Intervals) -> Coverage:
        """Prepare a union."""
        running = np.zeros(len(union.start) + 1, np.int64)
        np.subtract(union.end, union.start, out=running[1:])
        np.cumsum(running, out=running)
        return cls(union.start, running)

    def union(self) -> Intervals:
        """Return the union again."""
        return Intervals(self.starts, self.starts + np.diff(self.running))

    def place(self, at: Times) -> Times:
        """Return the last member that starts at or before each moment; -1 before them all."""
        if len(self.starts) == 0 or len(at) == 0:
            return np.full(len(at), -1, np.int64)
        low, high = self._concerned(at)
        index = np.searchsorted(self.starts[low:high], at, side="right")
        index += low - 1
        return index

    def upto(self, place: NDArray[np.integer], at: Times) -> Times:
        """Return the length that lies before each moment, whose `place` is known already, in ns."""
        if len(self.starts) == 0 or len(at) == 0:
            return np.zeros(len(at), np.int64)
        found: Times = at - self.starts[place]
        found += self.running[place]
        np.minimum(found, self.running[1:][place], out=found)
        if place.min() < 0:
            found[place < 0] = 0
        return found

    def before(self, at: Times) -> Times:
        """Return the length of the union that lies before each moment, in ns."""
        found = np.zeros(len(at), np.int64)
        if len(self.starts):
            for block in blocks(len(at)):
                found[block] = self._before(at[block])
        return found

    def between(self, start: Times, end: Times) -> Times:
        """Return the covered length of each [start, end); 0 where end <= start."""
        found = np.zeros(len(start), np.int64)
        if len(self.starts):
            for block in blocks(len(start)):
                first, last = start[block], end[block]
                np.subtract(self._before(np.maximum(first, last)), self._before(first), out=found[block])
        return found

    def meeting(self, start: Times, end: Times) -> Times:
        """Return the rows of [start, end) that have something in common with a member, in order.

        Where members are few, it is they that are looked up among the rows.
        """
        if len(self.starts) == 0 or len(start) == 0:
            return EMPTY.start
        if in_order(start) and in_order(end):
            low, high = self._concerned(np.array([start[0], end[-1]]))
            few = Coverage(self.starts[low:high], self.running[low : high + 1])
            if len(few.starts) * FEW <= len(start) and (rows := few._met(start, end)) is not None:
                return rows
        return np.flatnonzero(self.between(start, end))

    def _met(self, start: Times, end: Times) -> Times | None:
        """Return what `meeting` does, of rows in order; None where that takes more memory than the rows do."""
        first = np.searchsorted(end, self.starts, side="right")
        stop = np.searchsorted(start, self.union().end, side="left")
        count = np.maximum(stop - first, 0)
        if count.sum() > len(start):
            return None
        met = np.zeros(len(start), np.bool_)
        met[consecutive(first, count)] = True
        return np.flatnonzero(met & (end > start))

    def _before(self, at: Times) -> Times:
        low, high = self._concerned(at)
        few = Coverage(self.starts[low:high], self.running[low : high + 1])
        if len(few.starts) > 1:
            return few.upto(np.searchsorted(few.starts, at, side="right") - 1, at)
        if len(few.starts) == 0:
            return np.zeros(len(at), np.int64)
        found: Times = at - few.starts
        found += few.running[0]
        return np.clip(found, few.running[0], few.running[1], out=found)

    def _concerned(self, at: Times) -> tuple[int, int]:
        """Return the first member that moments are about, and the last and one more.

        Questions come in order of time, mostly: few members concern all of them, often a single one.
        """
        low, high = np.searchsorted(self.starts, (at.min(), at.max()), side="right").tolist()
        return max(low - 1, 0), high


def in_order(times: Times) -> bool:
    """Say whether times ascend."""
    return bool((times[1:] >= times[:-1]).all())


def distinct(values: Times) -> Times:
    """Sort and keep one of each: ten times faster than np.unique, which hashes first."""
    ordered = np.sort(values)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


def consecutive(first: Times, count: Times) -> Times:
    """Return so many numbers from each first one on, all in one array."""
    numbers = np.repeat(first - (np.cumsum(count) - count), count)
    numbers += np.arange(len(numbers))
    return numbers


def covered(by: Intervals, start: Times, end: Times) -> Times:
    """Return the length of each [start, end) that a union covers; 0 where end <= start.

    The queries may overlap each other and come in any order.
    """
    return Coverage.of(by).between(start, end)
