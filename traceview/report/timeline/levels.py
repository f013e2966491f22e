"""Levels of detail: the marks of a lane, merged into bins of growing widths, and how many remain in each width."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from traceview.intervals import EMPTY, Times, blocks, sorted_unique
from traceview.report.timeline.marks import Marks, Merge, Numbers, concatenated
from traceview.report.timeline.rows import TimelineRow

MERGE_THREADS = 4
COARSEST = 11  # 2^11 bins in the whole span: about two per pixel
FINEST = 20  # 2^20 bins in the whole span; sparse captures get finer bins
MAX_MARKS_WITHOUT_LEVELS = 8192  # the page draws so few marks at once
STEP = 2  # doublings per level; 1 costs 1.5 times the bytes and draws hardly faster
HOST_KINDS = ("call", "range", "sample")
MAX_SHIFT = 61


class Level(NamedTuple):
    """One lane in bins of 2^shift ns."""

    shift: int
    marks: Marks

    def coarser(self, zero: int) -> Level:
        """Return the level with bins of twice the width."""
        return Level(self.shift + 1, merged(self.marks, zero, self.shift + 1))


class Widths(NamedTuple):
    """The bin widths of some lanes as powers of two in ns, finest first, and the number of marks of all levels."""

    shifts: tuple[int, ...]
    marks: int

    @classmethod
    def affordable(cls, lanes: Sequence[Marks], zero: int, length: int, max_marks: int) -> Widths:
        """Return widths whose finest level has at most `max_marks` marks.

        A sparse capture gets a finer width than a dense one.
        """
        coarsest = max(0, length.bit_length() - COARSEST)
        finest = max(0, length.bit_length() - FINEST)
        large = [counts_by_shift(lane, zero) for lane in lanes if len(lane) > MAX_MARKS_WITHOUT_LEVELS]
        count = sum(large, np.zeros(MAX_SHIFT + 1, np.int64))
        while large and finest and count[finest] < max_marks // 4:
            finest = max(0, finest - 2)
        while large and finest < coarsest and count[finest] > max_marks:
            finest += 1
        return cls((*range(finest, coarsest, STEP), coarsest), int(count[finest]) * 2**STEP // (2**STEP - 1))


def levels(marks: Marks, zero: int, widths: Sequence[int]) -> Iterator[Level]:
    """Yield the levels of a lane, finest first, until it has few marks or the bins are the widest."""
    if len(marks) <= MAX_MARKS_WITHOUT_LEVELS:
        return
    last = 0
    for shift in widths:
        marks = merged(marks, zero, shift)
        # Skip a level that merges little compared with the next finer level.
        if last == 0 or len(marks) < 0.8 * last:
            last = len(marks)
            yield Level(shift, marks)
        if len(marks) <= MAX_MARKS_WITHOUT_LEVELS // 2:
            return


class Lane(NamedTuple):
    """A line of marks, and its levels of detail (finest first)."""

    marks: Marks
    on_gpu: bool
    process: int | None
    levels: Sequence[Level]


def lanes_of_rows(rows: Sequence[TimelineRow], zero: int, length: int, max_marks: int) -> list[list[Lane]]:
    """Return the lanes of each row. Their finest levels have at most `max_marks` marks, half of them on the GPU."""
    marks = [[lane.without_zeros() for lane in row.lanes] for row in rows]
    on_gpu = [row.kind not in HOST_KINDS for row in rows]
    gpu_marks, host_marks = (
        [lane for lanes, side in zip(marks, on_gpu, strict=True) if side is wanted for lane in lanes]
        for wanted in (True, False)
    )
    gpu = Widths.affordable(gpu_marks, zero, length, max_marks // 2)
    host = Widths.affordable(host_marks, zero, length, max_marks - gpu.marks)

    def lane(marks: Marks, side: bool, process: int | None) -> Lane:
        return Lane(marks, side, process, list(levels(marks, zero, (gpu if side else host).shifts)))

    # NumPy releases the interpreter lock, so lanes are merged side by side.
    with ThreadPoolExecutor(MERGE_THREADS) as pool:
        merging = [
            [pool.submit(lane, each, side, row.process) for each in lanes]
            for row, side, lanes in zip(rows, on_gpu, marks, strict=True)
        ]
        return [[each.result() for each in lanes] for lanes in merging]


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
