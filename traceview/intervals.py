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
BLOCK = 1 << 20
EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def blocks(count: int) -> Iterator[slice]:
    """Cut `count` rows into stretches whose temporary arrays stay small and near the processor."""
    return (slice(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK))


def union(start: Times, end: Times, *, ordered: bool = False) -> Intervals:
    """Merge any intervals into their union; those of no length add nothing.

    `ordered` says that `start` ascends already and saves the sort.
    """
    if len(start) == 0:
        return EMPTY
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
        if len(start) == 0:
            return EMPTY
    if not ordered:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.empty(len(start), np.bool_)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    last = np.empty(len(start), np.bool_)
    last[-1] = True
    last[:-1] = first[1:]
    return Intervals(start[first], reach[last])


def length(of: Intervals) -> int:
    """Total length of a union, in ns."""
    return int((of.end - of.start).sum())  # each sum alone may not fit


def complement(of: Intervals, start: int, end: int) -> Intervals:
    """Return the parts of [start, end) that a union leaves free."""
    inside = clip(of, start, end)
    starts = np.concatenate([np.array([start], np.int64), inside.end])
    ends = np.concatenate([inside.start, np.array([end], np.int64)])
    keep = ends > starts
    return Intervals(starts[keep], ends[keep])


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
    if len(left.start) == 0 or len(right.start) == 0:
        return EMPTY
    common = pieces(right, left.start, left.end)
    return Intervals(common.start, common.end)


def overlap(left: Intervals, right: Intervals) -> int:
    """Length that two unions have in common, in ns."""
    return length(intersect(left, right))


@dataclass(frozen=True, slots=True)
class Coverage:
    """A union made ready to say how much of it lies before any moment."""

    starts: Times
    ends: Times
    offset: Times

    @classmethod
    def of(cls, union: Intervals) -> Coverage:
        """Prepare a union; a first member before all time saves every edge case."""
        first = np.array([BEFORE_ALL], np.int64)
        starts = np.concatenate([first, union.start])
        ends = np.concatenate([first, union.end])
        lengths = np.cumsum(ends - starts)
        return cls(union.start, ends, lengths - ends)

    def before(self, at: Times) -> Times:
        """Return the length of the union that lies before each moment, in ns."""
        if len(self.starts) == 0:
            return np.zeros(len(at), np.int64)
        index = np.searchsorted(self.starts, at, side="right")
        ends = self.ends[index]
        # Inside a member, what is still to come of it does not count yet.
        covered: Times = self.offset[index] + np.where(at < ends, at, ends)
        return covered

    def between(self, start: Times, end: Times) -> Times:
        """Return the covered length of each [start, end); 0 where end <= start."""
        found = np.zeros(len(start), np.int64)
        if len(self.starts) == 0:
            return found
        for block in blocks(len(start)):
            first, last = start[block], end[block]
            found[block] = np.maximum(self.before(np.maximum(first, last)) - self.before(first), 0)
        return found


def covered(by: Intervals, start: Times, end: Times) -> Times:
    """Return the length of each [start, end) that a union covers; 0 where end <= start.

    The queries may overlap each other and come in any order.
    """
    return Coverage.of(by).between(start, end)
