"""Levels of detail: the marks of a lane, merged into bins of growing widths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from traceview.report.timeline.marks import Marks
from traceview.report.timeline.merging import MAX_SHIFT, counts_by_shift, merged
from traceview.report.timeline.rows import TimelineRow

MERGE_THREADS = 4
COARSEST = 11  # 2^11 bins in the whole span: about two per pixel
FINEST = 20  # 2^20 bins in the whole span; sparse captures get finer bins
MAX_MARKS_WITHOUT_LEVELS = 8192  # the page draws so few marks at once
STEP = 2  # doublings per level; 1 costs 1.5 times the bytes and draws hardly faster
HOST_KINDS = ("call", "range", "sample")


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
