"""Levels of detail: the marks of a lane, merged into bins of growing widths."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from traceview.frozen import frozen
from traceview.intervals import EMPTY, Times, blocks, is_sorted, sorted_unique
from traceview.report.timeline.marks import Marks, Merge, Numbers, joined, used
from traceview.report.timeline.rows import TimelineRow

MERGE_THREADS = 4


def merged(marks: Marks, zero: int, shift: int) -> Marks:
    """Merge marks that start in the same bin; bins are 2^shift ns wide and begin at `zero`.

    A mark at least as long as a bin is not merged. A merged mark spans the first start to the last end; it has the name
    of its longest event, the class with most of its time, and the count and total ns of its events. Merging merged
    marks again gives the same result as merging once, except for marks that have grown as long as a bin.
    """
    first = _group_starts(marks.start, marks.end, zero, shift)
    if len(first) == len(marks):
        return marks
    looks = used(marks.look) if marks.merge is None else marks.merge.looks
    alike = len(looks) == 1 and int(marks.name.min()) == int(marks.name.max())
    pieces = _pieces(first, len(marks))
    return joined([_merged(marks.take(rows), begins, shift, looks, alike) for rows, begins in pieces])


def merged_count(start: Times, end: Times, zero: int, shift: int) -> int:
    """Return the number of marks after merging."""
    return len(_group_starts(start, end, zero, shift))


def _group_starts(start: Times, end: Times, zero: int, shift: int) -> Times:
    """Return the row of the first mark of each group."""
    starts = [EMPTY.start]
    for block in blocks(len(start)):
        # Include the mark before the block: it decides whether the first mark of the block starts a group.
        rows = slice(max(block.start - 1, 0), block.stop)
        part = start[rows] - zero
        part >>= shift
        alone = end[rows] - start[rows] >= 1 << shift
        begins = alone.copy()
        # A long mark and its successor each start a group.
        begins[1:] |= alone[:-1]
        begins[1:] |= part[1:] != part[:-1]
        begins[0] = rows.start == block.start
        starts.append(np.flatnonzero(begins) + rows.start)
    return np.concatenate(starts)


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
PIECES, PIECE = 16, 4096  # number and length of the samples that estimate the marks after merging


@frozen
class Level:
    """One row in bins of 2^shift ns."""

    shift: int
    marks: Marks


@frozen
class Widths:
    """The bin widths of some rows as powers of two in ns, finest first, and the estimated number of marks."""

    shifts: tuple[int, ...]
    marks: int

    @classmethod
    def affordable(cls, lanes: Sequence[Marks], zero: int, length: int, max_marks: int) -> Widths:
        """Return widths whose finest level has at most `max_marks` marks.

        A sparse capture gets a finer width than a dense one.
        """
        coarsest = max(0, length.bit_length() - COARSEST)
        finest = max(0, length.bit_length() - FINEST)
        large = [lane for lane in lanes if len(lane) > MAX_MARKS_WITHOUT_LEVELS]
        count = _estimated_count(large, zero, finest)
        while large and finest and count < max_marks // 4:
            finest = max(0, finest - 2)
            count = _estimated_count(large, zero, finest)
        while large and finest < coarsest and count > max_marks:
            finest += 1
            count = _estimated_count(large, zero, finest)
        return cls((*range(finest, coarsest, STEP), coarsest), count * 2**STEP // (2**STEP - 1))


def _estimated_count(lanes: Sequence[Marks], zero: int, shift: int) -> int:
    """Return the estimated number of marks after merging."""
    return sum(_estimated_lane_count(lane, zero, shift) for lane in lanes)


def _estimated_lane_count(marks: Marks, zero: int, shift: int) -> int:
    if len(marks) <= PIECES * PIECE:
        return merged_count(marks.start, marks.end, zero, shift)
    firsts = np.linspace(0, len(marks) - PIECE, PIECES).astype(np.int64).tolist()
    pieces = (slice(first, first + PIECE) for first in firsts)
    # The first mark of a piece may belong to a group from before the piece.
    left = sum(merged_count(marks.start[piece], marks.end[piece], zero, shift) - 1 for piece in pieces)
    return left * len(marks) // (PIECES * PIECE)


def levels(marks: Marks, zero: int, widths: Sequence[int]) -> Iterator[Level]:
    """Yield the levels of a row, finest first, until few marks are left or the bins are the widest."""
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


def coarser(level: Level, zero: int) -> Level:
    """Return the level with bins of twice the width."""
    return Level(level.shift + 1, merged(level.marks, zero, level.shift + 1))


HOST_KINDS = ("call", "range", "sample")


@frozen
class Lane:
    """A line of marks, its levels of detail (finest first) and the looks of its marks."""

    marks: Marks
    on_gpu: bool
    process: int | None
    levels: Sequence[Level]
    looks: Times

    @classmethod
    def merged(cls, marks: Marks, on_gpu: bool, process: int | None, zero: int, widths: Widths) -> Lane:
        """Return a lane with its levels."""
        made = list(levels(marks, zero, widths.shifts))
        merges = (level.marks.merge for level in made)
        looks = next((merge.looks for merge in merges if merge is not None), None)
        return cls(marks, on_gpu, process, made, used(marks.look) if looks is None else looks)

    def at_most(self, shift: int) -> Marks:
        """Return the marks, merged into bins of at most 2^shift ns."""
        return next((level.marks for level in reversed(self.levels) if level.shift <= shift), self.marks)


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
