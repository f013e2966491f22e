"""Merging the marks of a lane into bins, and how many marks remain in bins of any width."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from traceview.intervals import EMPTY, Times, blocks, sorted_unique
from traceview.report.timeline.marks import Marks, Merge, Numbers, concatenated

MAX_SHIFT = 61


def merged(marks: Marks, zero: int, shift: int) -> Marks:
    """Merge marks that start in the same bin; bins are 2^shift ns wide and begin at `zero`.

    An event at least as long as a bin is not merged. A merged mark spans the first start to the last end; it has the
    name of its longest event, the class with most of its time, and the count and total ns of its events. Merging merged
    marks again, also in wider bins, gives the same result as merging once.
    """
    blocks_of_bits = _separating_bits(marks, zero)
    first = np.concatenate([EMPTY.start, *(np.flatnonzero(bits >> shift) + at for at, bits in blocks_of_bits)])
    if len(first) == len(marks):
        return marks
    alike = len(marks.looks) == 1 and int(marks.name.min()) == int(marks.name.max())
    pieces = _pieces(first, len(marks))
    return concatenated([_merged(marks.take(rows), begins, shift, marks.looks, alike) for rows, begins in pieces])


def _separating_bits(marks: Marks, zero: int) -> Iterator[tuple[int, Times]]:
    """Yield the first row of each block of marks, and a number for each mark.

    A mark starts a group in bins of 2^shift ns if its number has a bit of 2^shift or a higher one: if it or the mark
    before it is as long as a bin, or if both lie in different bins.
    """
    for block in blocks(len(marks)):
        rows = slice(max(block.start - 1, 0), block.stop)  # with the mark before the block
        start = marks.start[rows] - zero
        length = marks.end[rows] - marks.start[rows] if marks.merge is None else marks.merge.top[rows]
        bits = start[1:] ^ start[:-1]
        bits |= length[1:]
        bits |= length[:-1]
        yield block.start, bits if block.start else np.append(-1, bits)


def significant_bits(numbers: Times) -> Times:
    """Return the number of bits of each number, 64 for negative ones."""
    # The exponent of a float is the number of its bits.
    bits: Times = np.maximum((numbers.view(np.uint64).astype(np.float64).view(np.int64) >> 52) - 1022, 0)
    return bits


def counts_by_shift(marks: Marks, zero: int) -> Times:
    """Return the number of marks after merging into bins of 2^shift ns, for each shift from 0 to MAX_SHIFT."""
    count = np.zeros(MAX_SHIFT + 2, np.int64)
    for _, bits in _separating_bits(marks, zero):
        count += np.bincount(np.minimum(significant_bits(bits), MAX_SHIFT + 1), minlength=MAX_SHIFT + 2)
    counts: Times = np.cumsum(count[:0:-1])[::-1]
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
    known = marks.merge or Merge(looks, size, length, length)
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
            looks,
            size if marks.merge is None else _sums(known.count, first),
            _sums(known.busy, first),
            known.top[longest],
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
    """Return the ns of each class in each group; empty where the lane has one class."""
    if len(known.looks) == 1:
        return ()
    shares = known.shares or (np.where(marks.look == look, known.busy, 0) for look in known.looks)
    return tuple(_sums(share, first) for share in shares)
