"""Merging the marks of a lane into bins, and how many marks are left in bins of any width."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from traceview.intervals import EMPTY, Times, blocks, sorted_unique
from traceview.model.timeline.marks import Marks, Merge, Numbers, concatenated

MAX_SHIFT = 61


def merged(marks: Marks, zero: int, shift: int, looks: Times | None = None) -> Marks:
    """Merge marks that start in the same bin; bins are 2^shift ns wide and begin at `zero`.

    An event at least as long as a bin is not merged. A merged mark spans the first start to the last end; it has the
    name of its longest event, the class with most of its time, and the count and total ns of its events. Merging merged
    marks again, also in wider bins, gives the same result as merging once. `looks` are the classes of the lane, if
    `marks` are a part of it.
    """
    first = _group_starts(marks, zero, shift)
    if len(first) == len(marks):
        return marks
    looks = marks.looks if looks is None else looks
    alike = len(looks) == 1 and int(marks.name.min()) == int(marks.name.max())
    pieces = _pieces(first, len(marks))
    return concatenated([_merged(marks.take(rows), begins, shift, looks, alike) for rows, begins in pieces])


def _group_starts(marks: Marks, zero: int, shift: int) -> Times:
    """Return the row of the first mark of each group."""
    starts = [EMPTY.start]
    for block in blocks(len(marks)):
        # Include the mark before the block: it decides whether the first mark of the block starts a group.
        rows = slice(max(block.start - 1, 0), block.stop)
        part = marks.start[rows] - zero
        part >>= shift
        alone = _longest_events(marks, rows) >= 1 << shift
        begins = alone.copy()
        # A long mark and its successor each start a group.
        begins[1:] |= alone[:-1]
        begins[1:] |= part[1:] != part[:-1]
        begins[0] = rows.start == block.start
        starts.append(np.flatnonzero(begins) + rows.start)
    return np.concatenate(starts)


def _longest_events(marks: Marks, rows: slice) -> Times:
    """Return the length of the longest event of each mark, in ns."""
    return marks.end[rows] - marks.start[rows] if marks.merge is None else marks.merge.top[rows]


def significant_bits(numbers: Times) -> Times:
    """Return the number of bits of each number, 64 for negative ones."""
    # The exponent of a float is the number of its bits.
    bits: Times = np.maximum((numbers.view(np.uint64).astype(np.float64).view(np.int64) >> 52) - 1022, 0)
    return bits


class GroupCounts(NamedTuple):
    """How many marks start a group of `merged`, in a lane or in a part of it.

    `bits[k]` counts the marks that start a group in bins narrower than 2^k ns, but not in wider ones; the first mark is
    not counted. `first` and `last` are the start from `zero` and the length of the first and the last mark.
    """

    bits: Times
    first: tuple[int, int]
    last: tuple[int, int]

    @classmethod
    def from_marks(cls, marks: Marks, zero: int) -> GroupCounts:
        """Count the groups of marks. There must be a mark."""
        count = np.zeros(MAX_SHIFT + 2, np.int64)
        for block in blocks(len(marks)):
            # Include the mark before the block.
            rows = slice(max(block.start - 1, 0), block.stop)
            start, length = marks.start[rows] - zero, _longest_events(marks, rows)
            # A mark starts a group if it or the mark before it is as long as a bin, or if both lie in different bins.
            bits = start[1:] ^ start[:-1]
            bits |= length[1:]
            bits |= length[:-1]
            count += np.bincount(np.minimum(significant_bits(bits), MAX_SHIFT + 1), minlength=MAX_SHIFT + 2)
        ends = (slice(0, 1), slice(len(marks) - 1, len(marks)))
        first, last = ((int(marks.start[row][0]) - zero, int(_longest_events(marks, row)[0])) for row in ends)
        return cls(count, first, last)

    def joined(self, after: GroupCounts) -> GroupCounts:
        """Return the counts of this part of a lane and the next one."""
        (start, length), (next_start, next_length) = self.last, after.first
        bits, between = self.bits + after.bits, np.array([(start ^ next_start) | length | next_length], np.int64)
        bits[min(int(significant_bits(between)[0]), MAX_SHIFT + 1)] += 1
        return GroupCounts(bits, self.first, after.last)

    def by_shift(self) -> Times:
        """Return the number of marks after merging into bins of 2^shift ns, for each shift from 0 to MAX_SHIFT."""
        counts: Times = np.cumsum(self.bits[:0:-1])[::-1] + 1
        return counts


def _pieces(first: Times, total: int) -> Iterator[tuple[slice, Times]]:
    """Yield runs of groups of about a block of rows: the rows, and the starts of the groups in them."""
    cuts = sorted_unique(np.searchsorted(first, [block.start for block in blocks(total)]))
    for begin, stop in itertools.pairwise([*cuts[cuts < len(first)].tolist(), len(first)]):
        rows = slice(int(first[begin]), int(first[stop]) if stop < len(first) else total)
        yield rows, first[begin:stop] - rows.start


def _merged(marks: Marks, first: Times, shift: int, looks: Times, alike: bool) -> Marks:
    """Merge the groups of marks that start at `first`. `alike`: all marks have the same name and look."""
    size = np.diff(first, append=len(marks))
    length = marks.end - marks.start
    known = marks.merge or Merge(size, length, length, looks)
    longest = first if alike else _longest(known.top, first, size, shift)
    shares = _shares(marks, known, first)
    return Marks(
        marks.start[first],
        np.maximum.reduceat(marks.end, first),
        marks.name[longest],
        _dominant(shares, looks, marks.look[longest]) if shares else marks.look[longest],
        {key: _sums(column, first) for key, column in marks.sums.items()},
        {key: np.where(size == 1, column[first], 0) for key, column in marks.details.items()},
        Merge(
            size if marks.merge is None else _sums(known.count, first),
            _sums(known.busy, first),
            known.top[longest],
            looks,
            shares,
        ),
    )


def _sums(values: Times, first: Times) -> Times:
    sums: Times = np.add.reduceat(values, first, dtype=np.int64)
    return sums


def _longest(top: Times, first: Times, size: Times, shift: int) -> Times:
    """Return the row of the longest mark in each group; among equally long ones, the first."""
    total, bits = len(top), len(top).bit_length()
    if shift + bits > 63:
        return np.lexsort((-top, np.repeat(first, size)))[first]
    # One key holds the length and the position, so one maximum finds the first of the longest marks. Lengths are
    # capped at a bin: a mark of a whole bin is alone in its group.
    key = np.minimum(top, (1 << shift) - 1)
    key <<= bits
    key |= np.arange(total - 1, -1, -1)
    best = np.maximum.reduceat(key, first)
    best &= (1 << bits) - 1
    longest: Times = total - 1 - best
    return longest


def _dominant(shares: tuple[Times, ...], looks: Times, otherwise: Numbers) -> Numbers:
    """Return the class with most of the time; `otherwise` where all events have length 0."""
    most, dominant = np.zeros(len(otherwise), np.int64), otherwise.copy()
    for look, share in zip(looks, shares, strict=True):
        dominant[share > most] = look
        np.maximum(most, share, out=most)
    return dominant


def _shares(marks: Marks, known: Merge, first: Times) -> tuple[Times, ...]:
    """Return the ns of each class in each group; empty where the marks have one class."""
    if len(known.looks) == 1:
        return ()
    shares = known.shares or (np.where(marks.look == look, known.busy, 0) for look in known.looks)
    return tuple(_sums(share, first) for share in shares)
