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
        marks.look[longest] if shares is None else _dominant(shares, known.base, marks.look[longest]),
        {key: np.add.reduceat(column, first) for key, column in marks.sums.items()},
        {key: np.where(size == 1, column[first], 0) for key, column in marks.details.items()},
        Merge(np.add.reduceat(known.count, first), np.add.reduceat(known.busy, first), top, known.base, shares),
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
    base = int(marks.look.min())
    return Merge(np.ones(len(marks), np.int64), length, length, base)


def _first_of(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], group: Times, groups: int) -> Times:
    """Return the first chosen place of each group; every group has one."""
    rows = np.flatnonzero(chosen)
    found: Times = np.empty(groups, np.int64)
    found[group[rows][::-1]] = rows[::-1]
    return found


def _dominant(shares: Times, base: int, otherwise: Times) -> Times:
    found: Times = np.where(shares.any(axis=1), np.argmax(shares, axis=1) + base, otherwise)
    return found


def _shares(marks: Marks, known: Merge, group: Times, first: Times) -> Times | None:
    """Return the ns of each class in each group, or None where there is one class alone."""
    if known.shares is not None:
        return np.add.reduceat(known.shares, first, axis=0)
    classes = int(marks.look.max()) - known.base + 1
    if classes == 1:
        return None
    place = group * classes + (marks.look - known.base)
    # Floats hold these sums exactly: a bin is shorter than 2^53 ns.
    sums = np.bincount(place, weights=known.busy, minlength=len(first) * classes)
    return sums.astype(np.int64).reshape(-1, classes)
