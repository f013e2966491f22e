"""Levels of detail: the marks of a lane, merged into bins of growing widths."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from traceview.frozen import frozen
from traceview.intervals import EMPTY, Times, blocks, is_sorted, sorted_unique
from traceview.report.timeline.marks import Marks, Merge, Numbers, concatenated
from traceview.report.timeline.rows import TimelineRow
from traceview.report.timeline.stored import AllMarks

MERGE_THREADS = 4


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


def merged_pieces(marks: AllMarks, zero: int, shift: int) -> Marks:
    """Return `merged` of marks that may be in a file."""
    looks = marks.looks
    parts = [merged(piece, zero, shift, looks) for piece in marks.pieces()]
    return parts[0] if len(parts) == 1 else merged(concatenated(parts), zero, shift)


def merged_counts(marks: AllMarks, zero: int) -> Times:
    """Return the number of marks after merging into bins of 2^shift ns, for each shift from 0 to MAX_SHIFT."""
    count = np.zeros(MAX_SHIFT + 2, np.int64)
    before_start, before_length = EMPTY
    for piece in marks.pieces():
        for rows in blocks(len(piece)):
            start, length = piece.start[rows] - zero, _longest_events(piece, rows)
            # A mark starts a group while its bin differs from the one before, or either of both is as long as a bin.
            bits = length.copy()
            bits[1:] |= length[:-1]
            bits[1:] |= start[1:] ^ start[:-1]
            bits[:1] |= (before_start ^ start[0]) | before_length if len(before_start) else FIRST
            # The exponent of a float is the number of its bits.
            exponents = bits.view(np.uint64).astype(np.float64).view(np.int64) >> 52
            count += np.bincount(np.clip(exponents - 1022, 0, MAX_SHIFT + 1), minlength=MAX_SHIFT + 2)
            before_start, before_length = start[-1:], length[-1:]
    # A mark starts a group in all bins that are narrower than 2^bits.
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
    """Return the latest end of each group; where ends ascend, it is the end of the last mark."""
    if is_sorted(end):
        return end[last]
    latest: Times = np.maximum.reduceat(end, first)
    return latest


def _sums(values: Times, last: Times) -> Times:
    """Return the sum of each group from cumulative sums, which is twice as fast as np.add.reduceat."""
    sums: Times = np.cumsum(values)[last]
    sums[1:] -= sums[:-1]
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


def _shares(marks: Marks, known: Merge, size: Times, last: Times) -> tuple[Times, ...]:
    """Return the ns of each class in each group; empty where the marks have one class."""
    if known.shares:
        return tuple(_sums(share, last) for share in known.shares)
    if len(known.looks) == 1:
        return ()
    # One cell per class and group.
    groups, least, most = len(last), int(known.looks[0]), int(known.looks[-1])
    place = np.repeat(np.arange(groups) - least * groups, size)
    place += np.multiply(marks.look, groups, dtype=np.int64)
    # Floats hold these sums exactly: a bin is shorter than 2^53 ns.
    sums = np.bincount(place, weights=known.busy.astype(np.float64), minlength=groups * (most - least + 1))
    of_class = sums.astype(np.int64).reshape(-1, groups)
    return tuple(of_class[look - least] for look in known.looks.tolist())


COARSEST = 11  # 2^11 bins in the whole span: about two per pixel
FINEST = 20  # 2^20 bins in the whole span; sparse captures get finer bins
MAX_MARKS_WITHOUT_LEVELS = 8192  # the page draws so few marks at once
STEP = 2  # doublings per level; 1 costs 1.5 times the bytes and draws hardly faster
MAX_SHIFT = 61
FIRST = np.int64(1 << 62)  # the first mark starts a group in bins of any width


@frozen
class Level:
    """One row in bins of 2^shift ns."""

    shift: int
    marks: Marks


@frozen
class Widths:
    """The bin widths of some rows as powers of two in ns, finest first, and the number of marks of all levels."""

    shifts: tuple[int, ...]
    marks: int

    @classmethod
    def affordable(cls, lanes: Sequence[AllMarks], zero: int, length: int, max_marks: int) -> Widths:
        """Return widths whose finest level has at most `max_marks` marks.

        A sparse capture gets a finer width than a dense one.
        """
        coarsest = max(0, length.bit_length() - COARSEST)
        finest = max(0, length.bit_length() - FINEST)
        large = [merged_counts(lane, zero) for lane in lanes if len(lane) > MAX_MARKS_WITHOUT_LEVELS]
        count = sum(large, np.zeros(MAX_SHIFT + 1, np.int64))
        while large and finest and count[finest] < max_marks // 4:
            finest = max(0, finest - 2)
        while large and finest < coarsest and count[finest] > max_marks:
            finest += 1
        return cls((*range(finest, coarsest, STEP), coarsest), int(count[finest]) * 2**STEP // (2**STEP - 1))


def levels(marks: AllMarks, zero: int, widths: Sequence[int]) -> Iterator[Level]:
    """Yield the levels of a row, finest first, until few marks are left or the bins are the widest."""
    if len(marks) <= MAX_MARKS_WITHOUT_LEVELS:
        return
    last, left = 0, merged_pieces(marks, zero, widths[0])
    for shift in widths:
        left = left if shift == widths[0] else merged(left, zero, shift)
        # Skip a level that merges little compared with the next finer level.
        if last == 0 or len(left) < 0.8 * last:
            last = len(left)
            yield Level(shift, left)
        if len(left) <= MAX_MARKS_WITHOUT_LEVELS // 2:
            return


def coarser(level: Level, zero: int) -> Level:
    """Return the level with bins of twice the width."""
    return Level(level.shift + 1, merged(level.marks, zero, level.shift + 1))


HOST_KINDS = ("call", "range", "sample")


@frozen
class Lane:
    """A line of marks, its levels of detail (finest first) and the looks of its marks."""

    marks: AllMarks
    on_gpu: bool
    process: int | None
    levels: Sequence[Level]
    looks: Times

    @classmethod
    def merged(cls, marks: AllMarks, on_gpu: bool, process: int | None, zero: int, widths: Widths) -> Lane:
        """Return a lane with its levels."""
        made = list(levels(marks, zero, widths.shifts))
        merges = (level.marks.merge for level in made)
        looks = next((merge.looks for merge in merges if merge is not None), None)
        return cls(marks, on_gpu, process, made, marks.looks if looks is None else looks)

    def at_most(self, shift: int) -> Marks | None:
        """Return the level with the widest bins of at most 2^shift ns."""
        return next((level.marks for level in reversed(self.levels) if level.shift <= shift), None)

    def whole(self) -> Marks:
        """Return all marks, in memory."""
        return concatenated(list(self.marks.pieces()))


def merged_lanes(rows: Sequence[TimelineRow], zero: int, length: int, max_marks: int) -> list[list[Lane]]:
    """Return the lanes of each row. Their finest levels have at most `max_marks` marks, half of them on the GPU."""
    marks = [[lane.without_zeros() for lane in row.lanes] for row in rows]
    on_gpu = [row.kind not in HOST_KINDS for row in rows]
    gpu_marks, host_marks = (
        [lane for lanes, side in zip(marks, on_gpu, strict=True) if side is wanted for lane in lanes]
        for wanted in (True, False)
    )
    gpu = Widths.affordable(gpu_marks, zero, length, max_marks // 2)
    host = Widths.affordable(host_marks, zero, length, max_marks - gpu.marks)
    # NumPy releases the interpreter lock, so lanes are merged side by side.
    with ThreadPoolExecutor(MERGE_THREADS) as pool:
        merging = [
            [pool.submit(Lane.merged, lane, side, row.process, zero, gpu if side else host) for lane in lanes]
            for row, side, lanes in zip(rows, on_gpu, marks, strict=True)
        ]
        return [[lane.result() for lane in lanes] for lanes in merging]
