"""Levels of detail: each row merged into bins of doubling widths, the finest that the page can afford first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traceview.report.html.marks import Marks
from traceview.report.html.summary import merged, merged_count

COARSEST = 11  # 2^11 bins over the whole span: about two a pixel
FINEST = 20  # and 2^20 at most, unless so few of them hold anything that finer ones cost little
FEW = 8192  # marks that need no levels: all of them are drawn at once


@dataclass(frozen=True, slots=True)
class Level:
    """One row in bins of 2^shift ns. `whole` says that no two events share a mark."""

    shift: int
    marks: Marks
    whole: bool


def shifts(lanes: Sequence[Marks], zero: int, length: int, most: int) -> range:
    """Return the widths to merge to, the finest first, as powers of two in ns.

    `most` marks is what a page can afford in one level; what a width would leave is judged by the largest lane.
    A long capture with little in it begins finer than one that is full.
    """
    coarsest = max(0, length.bit_length() - COARSEST)
    finest = max(0, length.bit_length() - FINEST)
    largest = max(lanes, key=len, default=None)
    if largest is None or len(largest) <= FEW:
        return range(finest, coarsest + 1)
    most = most * len(largest) // sum(len(lane) for lane in lanes)
    while finest and merged_count(largest, zero, finest) < most // 4:
        finest = max(0, finest - 2)
    while finest < coarsest and merged_count(largest, zero, finest) > most:
        finest += 1
    return range(finest, coarsest + 1)


def levels(marks: Marks, zero: int, widths: range) -> Iterator[Level]:
    """Yield a row's levels, the finest first, until what is left is few or the bins are the widest."""
    if len(marks) <= FEW:
        return
    events, last = len(marks), 0
    for shift in widths:
        marks = merged(marks, zero, shift)
        # A level that hardly merges is not worth its place beside the next finer one.
        if last == 0 or len(marks) < 0.8 * last:
            last = len(marks)
            yield Level(shift, marks, len(marks) == events)
        if len(marks) <= FEW // 2:
            return
