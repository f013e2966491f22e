"""Levels of detail: the marks of a lane, merged into bins of growing widths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from traceview.frozen import frozen
from traceview.intervals import Times
from traceview.report.timeline.marks import Marks, concatenated
from traceview.report.timeline.merging import MAX_SHIFT, GroupCounts, merged
from traceview.report.timeline.rows import TimelineRow
from traceview.report.timeline.stored import AllMarks, StoredMarks

MERGE_THREADS = 4
COARSEST = 11  # 2^11 bins in the whole span: about two per pixel
FINEST = 20  # 2^20 bins in the whole span; sparse captures get finer bins
MAX_MARKS_WITHOUT_LEVELS = 8192  # the page draws so few marks at once
STEP = 2  # doublings per level; 1 costs 1.5 times the bytes and draws hardly faster


def merged_pieces(marks: AllMarks, zero: int, shift: int) -> Marks:
    """Return `merged` of marks that may be in a file."""
    looks = marks.looks
    parts = [merged(piece, zero, shift, looks) for piece in marks.coarse(shift).pieces()]
    return parts[0] if len(parts) == 1 else merged(concatenated(parts), zero, shift)


def merged_counts(marks: AllMarks, zero: int) -> Times:
    """Return the number of marks after merging into bins of 2^shift ns, for each shift from 0 to MAX_SHIFT."""
    counts = marks.counts if isinstance(marks, StoredMarks) else GroupCounts.from_marks(marks, zero)
    return counts.by_shift()


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

    def at_most(self, shift: int) -> AllMarks:
        """Return the level with the widest bins of at most 2^shift ns; the marks if there is none."""
        levels = (level.marks for level in reversed(self.levels) if level.shift <= shift)
        return next(levels, self.marks.coarse(shift))

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
