"""Fewer marks where a capture has more than a page can hold: neighbours merge, and say so."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from traceview.intervals import EMPTY, Times, blocks, is_sorted, sorted_unique
from traceview.report.timeline.marks import Marks, Merge, Numbers, joined, used


def merged(marks: Marks, zero: int, shift: int) -> Marks:
    """Merge marks that start in the same bin; bins are 2^shift ns wide and begin at `zero`.

    A mark at least as long as a bin stays alone. A merged mark runs from the first start to the last end,
    has the name of its longest event and the class with most of its time, and knows how many events and
    how many ns they were. What is merged already may be merged again: the result is the same as at once,
    but for marks that grew as long as a bin.
    """
    first = _begins(marks.start, marks.end, zero, shift)
    if len(first) == len(marks):
        return marks
    looks = used(marks.look) if marks.merge is None else marks.merge.looks
    alike = len(looks) == 1 and int(marks.name.min()) == int(marks.name.max())
    pieces = _pieces(first, len(marks))
    return joined([_merged(marks.take(rows), begins, shift, looks, alike) for rows, begins in pieces])


def merged_count(start: Times, end: Times, zero: int, shift: int) -> int:
    """Return how many marks merging would leave."""
    return len(_begins(start, end, zero, shift))


def _begins(start: Times, end: Times, zero: int, shift: int) -> Times:
    """Return the first mark of each group."""
    starts = [EMPTY.start]
    for block in blocks(len(start)):
        # What the mark before the block is decides whether the block's first begins a group.
        rows = slice(max(block.start - 1, 0), block.stop)
        part = start[rows] - zero
        part >>= shift
        alone = end[rows] - start[rows] >= 1 << shift
        begins = alone.copy()
        # A long mark and the one after it each begin a group.
        begins[1:] |= alone[:-1]
        begins[1:] |= part[1:] != part[:-1]
        begins[0] = rows.start == block.start
        starts.append(np.flatnonzero(begins) + rows.start)
    return np.concatenate(starts)


def _pieces(first: Times, total: int) -> Iterator[tuple[slice, Times]]:
    """Cut groups into stretches of about a block of rows; yield the rows of each, and where groups begin in it."""
    cuts = sorted_unique(np.searchsorted(first, [block.start for block in blocks(total)]))
    for begin, stop in itertools.pairwise([*cuts[cuts < len(first)].tolist(), len(first)]):
        rows = slice(int(first[begin]), int(first[stop]) if stop < len(first) else total)
        yield rows, first[begin:stop] - rows.start


def _merged(marks: Marks, first: Times, shift: int, looks: Times, alike: bool) -> Marks:
    """Merge groups of marks that begin at `first`; all are `alike`, or of some `looks` and several names."""
    last = np.append(first[1:], len(marks)) - 1
    size = last - first + 1
    length = marks.end - marks.start
    known = marks.merge or Merge(size, length, length, looks)
    longest = first if alike else _longest(known.top, first, size, shift)
    shares = _shares(marks, known, size, last)
    return Marks(
        marks.start[first],
        _latest(marks.end, first, last),
        marks.name[longest],
        _dominant(shares, looks, marks.look[longest]) if shares else marks.look[longest],
        {key: _sums(column, last) for key, column in marks.sums.items()},
        {key: np.where(size == 1, column[first], 0) for key, column in marks.details.items()},
        Merge(
            size if marks.merge is None else _sums(known.count, last),
            _sums(known.busy, last),
            known.top[longest],
            looks,
            shares,
        ),
    )


def _latest(end: Times, first: Times, last: Times) -> Times:
    """Return the last end of each group; where ends ascend, as they do where marks are disjoint, the last one's."""
    if is_sorted(end):
        return end[last]
    latest: Times = np.maximum.reduceat(end, first)
    return latest


def _sums(values: Times, last: Times) -> Times:
    """Return the sum of each group, given its last row: twice as fast as summing group by group."""
    sums: Times = np.cumsum(values)[last]
    sums[1:] -= sums[:-1]
    return sums


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
    longest: Times = total - 1 - best
    return longest


def _dominant(shares: tuple[Times, ...], looks: Times, otherwise: Numbers) -> Numbers:
    """Return the class with most of the time; of events without any length, the longest one's."""
    most, dominant = np.zeros(len(otherwise), np.int64), otherwise.copy()
    for look, share in zip(looks, shares, strict=True):
        dominant[share > most] = look
        np.maximum(most, share, out=most)
    return dominant


def _shares(marks: Marks, known: Merge, size: Times, last: Times) -> tuple[Times, ...]:
    """Return the ns of each class in each group, or nothing where there is one class alone."""
    if known.shares:
        return tuple(_sums(share, last) for share in known.shares)
    if len(known.looks) == 1:
        return ()
    # Of each class a place for each group; the numbers of classes are few.
    groups, least, most = len(last), int(known.looks[0]), int(known.looks[-1])
    place = np.repeat(np.arange(groups) - least * groups, size)
    place += np.multiply(marks.look, groups, dtype=np.int64)
    # Floats hold these sums exactly: a bin is shorter than 2^53 ns.
    sums = np.bincount(place, weights=known.busy.astype(np.float64), minlength=groups * (most - least + 1))
    of_class = sums.astype(np.int64).reshape(-1, groups)
    return tuple(of_class[look - least] for look in known.looks.tolist())
