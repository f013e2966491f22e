"""Fewer marks where a capture has more than a page can hold: neighbours merge, and say so."""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times
from traceview.report.html.marks import Marks, Merge


def merged(marks: Marks, zero: int, shift: int) -> Marks:
    """Merge marks that start in the same bin; bins are 2^shift ns wide and begin at `zero`.

    A mark at least as long as a bin stays alone. A merged mark runs from the first start to the last end,
    has the name of its longest event and the class with most of its time, and knows how many events and
    how many ns they were. What is merged already may be merged again: the result is the same as at once,
    but for marks that grew as long as a bin.
    """
    first = _begins(marks, zero, shift)
    total = len(marks)
    if len(first) == total:
        return marks
    size = np.diff(np.append(first, total))
    group = np.repeat(np.arange(len(first)), size)
    known = marks.merge or _single(marks)
    top = np.maximum.reduceat(known.top, first)
    longest = _first_of(known.top == top[group], group, len(first))
    shares = _shares(marks, known, group, first)
    return Marks(
        marks.start[first],
        np.maximum.reduceat(marks.end, first),
        marks.name[longest],
        _dominant(shares, known.looks, marks.look[longest]) if shares else marks.look[longest],
        {key: np.add.reduceat(column, first) for key, column in marks.sums.items() if column.any()},
        {key: np.where(size == 1, column[first], 0) for key, column in marks.details.items()},
        Merge(np.add.reduceat(known.count, first), np.add.reduceat(known.busy, first), top, known.looks, shares),
    )


def merged_count(marks: Marks, zero: int, shift: int) -> int:
    """Return how many marks merging would leave."""
    return len(_begins(marks, zero, shift))


def _begins(marks: Marks, zero: int, shift: int) -> Times:
    if len(marks) == 0:
        return np.empty(0, np.int64)
    part = (marks.start - zero) >> shift
    alone = (marks.end - marks.start) >> shift > 0
    begins = np.ones(len(marks), np.bool_)
    # A long mark and the one after it each begin a group.
    begins[1:] = (part[1:] != part[:-1]) | alone[1:] | alone[:-1]
    return np.flatnonzero(begins)


def _single(marks: Marks) -> Merge:
    length = marks.end - marks.start
    return Merge(np.ones(len(marks), np.int64), length, length, np.flatnonzero(np.bincount(marks.look)))


def _first_of(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], group: Times, groups: int) -> Times:
    """Return the first chosen place of each group; every group has one."""
    rows = np.flatnonzero(chosen)
    found: Times = np.empty(groups, np.int64)
    found[group[rows][::-1]] = rows[::-1]
    return found


def _dominant(shares: tuple[Times, ...], looks: Times, otherwise: Times) -> Times:
    """Return the class with most of the time; of events without any length, the longest one's."""
    most, found = np.zeros(len(otherwise), np.int64), otherwise
    for look, share in zip(looks, shares, strict=True):
        more = share > most
        most, found = np.where(more, share, most), np.where(more, look, found)
    return found


def _shares(marks: Marks, known: Merge, group: Times, first: Times) -> tuple[Times, ...]:
    """Return the ns of each class in each group, or nothing where there is one class alone."""
    if known.shares:
        return tuple(np.add.reduceat(share, first) for share in known.shares)
    if len(known.looks) == 1:
        return ()
    place = np.zeros(int(known.looks[-1]) + 1, np.int64)
    place[known.looks] = np.arange(len(known.looks)) * len(first)
    # Floats hold these sums exactly: a bin is shorter than 2^53 ns.
    sums = np.bincount(place[marks.look] + group, weights=known.busy, minlength=len(first) * len(known.looks))
    return tuple(sums.astype(np.int64).reshape(len(known.looks), -1))
