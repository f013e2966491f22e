"""Fewer marks where a capture has more than a page can hold: neighbours merge, and say so."""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times, in_order
from traceview.report.html.marks import Marks, Merge, Numbers, used


def merged(marks: Marks, zero: int, shift: int) -> Marks:
    """Merge marks that start in the same bin; bins are 2^shift ns wide and begin at `zero`.

    A mark at least as long as a bin stays alone. A merged mark runs from the first start to the last end,
    has the name of its longest event and the class with most of its time, and knows how many events and
    how many ns they were. What is merged already may be merged again: the result is the same as at once,
    but for marks that grew as long as a bin.
    """
    length = marks.end - marks.start
    first = _begins(marks.start, length, zero, shift)
    total = len(marks)
    if len(first) == total:
        return marks
    last = np.append(first[1:], total) - 1
    size = last - first + 1
    known = marks.merge or Merge(size, length, length, used(marks.look))
    longest = _longest(known.top, first, size, shift)
    shares = _shares(marks, known, size, last)
    return Marks(
        marks.start[first],
        _latest(marks.end, first, last),
        marks.name[longest],
        _dominant(shares, known.looks, marks.look[longest]) if shares else marks.look[longest],
        {key: _sums(column, last) for key, column in marks.sums.items()},
        {key: np.where(size == 1, column[first], 0) for key, column in marks.details.items()},
        Merge(
            size if marks.merge is None else _sums(known.count, last),
            _sums(known.busy, last),
            known.top[longest],
            known.looks,
            shares,
        ),
    )


def merged_count(start: Times, end: Times, zero: int, shift: int) -> int:
    """Return how many marks merging would leave."""
    return len(_begins(start, end - start, zero, shift))


def _begins(start: Times, length: Times, zero: int, shift: int) -> Times:
    if len(start) == 0:
        return np.empty(0, np.int64)
    part = (start - zero) >> shift
    alone = length >= 1 << shift
    begins = np.ones(len(start), np.bool_)
    np.not_equal(part[1:], part[:-1], out=begins[1:])
    # A long mark and the one after it each begin a group.
    begins |= alone
    begins[1:] |= alone[:-1]
    return np.flatnonzero(begins)


def _latest(end: Times, first: Times, last: Times) -> Times:
    """Return the last end of each group; where ends ascend, as they do where marks are disjoint, the last one's."""
    if in_order(end):
        return end[last]
    latest: Times = np.maximum.reduceat(end, first)
    return latest


def _sums(values: Times, last: Times) -> Times:
    """Return the sum of each group, given its last row: twice as fast as summing group by group."""
    return np.diff(np.cumsum(values)[last], prepend=np.int64(0))


def _longest(top: Times, first: Times, size: Times, shift: int) -> Times:
    """Return the row of the longest in each group, of equals the first."""
    total, bits = len(top), len(top).bit_length()
    if shift + bits > 63:
        return np.lexsort((-top, np.repeat(first, size)))[first]
    # One number says both, how long and how near to the front. What is as long as a bin is alone in its group.
    key = np.minimum(top, (1 << shift) - 1)
    key <<= bits
    key |= np.arange(total - 1, -1, -1)
    best = np.maximum.reduceat(key, first)
    best &= (1 << bits) - 1
    found: Times = total - 1 - best
    return found


def _dominant(shares: tuple[Times, ...], looks: Times, otherwise: Numbers) -> Numbers:
    """Return the class with most of the time; of events without any length, the longest one's."""
    most, found = np.zeros(len(otherwise), np.int64), otherwise
    for look, share in zip(looks, shares, strict=True):
        more = share > most
        most, found = np.where(more, share, most), np.where(more, look, found)
    return found


def _shares(marks: Marks, known: Merge, size: Times, last: Times) -> tuple[Times, ...]:
    """Return the ns of each class in each group, or nothing where there is one class alone."""
    if known.shares:
        return tuple(_sums(share, last) for share in known.shares)
    if len(known.looks) == 1:
        return ()
    place = np.zeros(int(known.looks[-1]) + 1, np.int64)
    place[known.looks] = np.arange(len(known.looks)) * len(last)
    group = np.repeat(np.arange(len(last)), size)
    group += place[marks.look]
    # Floats hold these sums exactly: a bin is shorter than 2^53 ns.
    sums = np.bincount(group, weights=known.busy, minlength=len(last) * len(known.looks))
    return tuple(sums.astype(np.int64).reshape(len(known.looks), -1))
