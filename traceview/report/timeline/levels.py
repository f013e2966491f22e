"""Levels of detail: each row merged into bins of growing widths, the finest that the page can afford first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from traceview.report.timeline.marks import Marks
from traceview.report.timeline.merge import merged, merged_count

COARSEST = 11  # 2^11 bins over the whole span: about two a pixel
FINEST = 20  # and 2^20 at most, unless so few of them hold anything that finer ones cost little
FEW = 8192  # marks that need no levels: all of them are drawn at once
STEP = 2  # doublings from one level to the next: one for each would cost half as much again, to draw little faster
PIECES, PIECE = 16, 4096  # of a long row, from which is foreseen what merging leaves of it


@dataclass(frozen=True, slots=True)
class Level:
    """One row in bins of 2^shift ns."""

    shift: int
    marks: Marks


@dataclass(frozen=True, slots=True)
class Widths:
    """The widths to merge some rows to, as powers of two in ns, the finest first; about how many marks they leave."""

    shifts: tuple[int, ...]
    marks: int

    @classmethod
    def affordable(cls, lanes: Sequence[Marks], zero: int, length: int, max_marks: int) -> Widths:
        """Return widths whose finest leaves at most `max_marks` marks, which is what a page affords in one level.

        The finest width of a sparse capture is narrower than that of a dense one.
        """
        coarsest = max(0, length.bit_length() - COARSEST)
        finest = max(0, length.bit_length() - FINEST)
        large = [lane for lane in lanes if len(lane) > FEW]
        count = _foreseen(large, zero, finest)
        while large and finest and count < max_marks // 4:
            finest = max(0, finest - 2)
            count = _foreseen(large, zero, finest)
        while large and finest < coarsest and count > max_marks:
            finest += 1
            count = _foreseen(large, zero, finest)
        return cls((*range(finest, coarsest, STEP), coarsest), count * 2**STEP // (2**STEP - 1))


def _foreseen(lanes: Sequence[Marks], zero: int, shift: int) -> int:
    """Return about how many marks merging would leave."""
    return sum(_foreseen_lane(lane, zero, shift) for lane in lanes)


def _foreseen_lane(marks: Marks, zero: int, shift: int) -> int:
    if len(marks) <= PIECES * PIECE:
        return merged_count(marks.start, marks.end, zero, shift)
    firsts = np.linspace(0, len(marks) - PIECE, PIECES).astype(np.int64).tolist()
    pieces = (slice(first, first + PIECE) for first in firsts)
    # What a piece begins with may have begun before it.
    left = sum(merged_count(marks.start[piece], marks.end[piece], zero, shift) - 1 for piece in pieces)
    return left * len(marks) // (PIECES * PIECE)


def levels(marks: Marks, zero: int, widths: Sequence[int]) -> Iterator[Level]:
    """Yield a row's levels, the finest first, until what is left is few or the bins are the widest."""
    if len(marks) <= FEW:
        return
    last = 0
    for shift in widths:
        marks = merged(marks, zero, shift)
        # A level that hardly merges is not worth its place beside the next finer one.
        if last == 0 or len(marks) < 0.8 * last:
            last = len(marks)
            yield Level(shift, marks)
        if len(marks) <= FEW // 2:
            return


def coarser(level: Level, zero: int) -> Level:
    """Return the level in bins of twice the width."""
    return Level(level.shift + 1, merged(level.marks, zero, level.shift + 1))
