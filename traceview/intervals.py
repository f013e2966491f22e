"""Interval algebra on sorted int64 arrays: the heart of every figure.

All intervals are half-open [start, end) in ns. An `Intervals` that these functions return is a
union: sorted, disjoint, without empty members, touching members merged. Functions that say
"of a union" expect one; nothing is changed in place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


class Intervals(NamedTuple):
    """Two arrays of equal length, starts and ends, in ns."""

    start: Times
    end: Times


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


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
    return int(of.end.sum() - of.start.sum())


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


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Return what two unions have in common."""
    if len(left.start) == 0 or len(right.start) == 0:
        return EMPTY
    # Member i of the left meets the members first[i] to last[i] - 1 of the right.
    first = np.searchsorted(right.end, left.start, side="right")
    last = np.searchsorted(right.start, left.end, side="left")
    count = np.maximum(last - first, 0)
    total = int(count.sum())
    if total == 0:
        return EMPTY
    owner = np.repeat(np.arange(len(left.start)), count)
    offset = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    other = first[owner] + offset
    return Intervals(
        np.maximum(left.start[owner], right.start[other]),
        np.minimum(left.end[owner], right.end[other]),
    )


def overlap(left: Intervals, right: Intervals) -> int:
    """Length that two unions have in common, in ns."""
    return length(intersect(left, right))


def covered(by: Intervals, start: Times, end: Times) -> Times:
    """Length of each [start, end) that a union covers; 0 where end <= start.

    The queries may overlap each other and come in any order.
    """
    if len(by.start) == 0 or len(start) == 0:
        return np.zeros(len(start), np.int64)
    below = np.concatenate([np.zeros(1, np.int64), np.cumsum(by.end - by.start)])
    return np.maximum(_reach(by, below, np.maximum(start, end)) - _reach(by, below, start), 0)


def _reach(by: Intervals, below: Times, at: Times) -> Times:
    """Return how much of a union lies before each moment; `below` is its running length."""
    index = np.searchsorted(by.start, at, side="right")
    inside = np.minimum(at, by.end[np.maximum(index - 1, 0)]) - by.start[np.maximum(index - 1, 0)]
    return np.where(index == 0, 0, below[np.maximum(index - 1, 0)] + inside).astype(np.int64)
