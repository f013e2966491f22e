"""One line of marks, merged into levels of detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceview.intervals import Times
from traceview.report.timeline.levels import Level, Widths, levels
from traceview.report.timeline.marks import Marks, used
from traceview.report.timeline.rows import Row

HOST_KINDS = ("call", "range")


@dataclass(frozen=True, slots=True)
class Lane:
    """One line of marks with its levels of detail, the finest first, and the styles that its marks have."""

    marks: Marks
    on_gpu: bool
    process: int | None
    levels: Sequence[Level]
    looks: Times

    @classmethod
    def merged(cls, marks: Marks, on_gpu: bool, process: int | None, zero: int, widths: Widths) -> Lane:
        """Return a lane with a level for each of some widths, as long as levels still get smaller."""
        made = list(levels(marks, zero, widths.shifts))
        merges = (level.marks.merge for level in made)
        looks = next((merge.looks for merge in merges if merge is not None), None)
        return cls(marks, on_gpu, process, made, used(marks.look) if looks is None else looks)

    def at_most(self, shift: int) -> Marks:
        """Return the marks, merged into bins of at most 2^shift ns."""
        return next((level.marks for level in reversed(self.levels) if level.shift <= shift), self.marks)


def merged_lanes(rows: Sequence[Row], zero: int, length: int, max_marks: int) -> list[list[Lane]]:
    """Return the lanes of each row. Their finest levels have at most `max_marks` marks, those of the GPU half of it."""
    marks = [[lane.without_zeros() for lane in row.lanes] for row in rows]
    on_gpu = [row.kind not in HOST_KINDS for row in rows]
    gpu_marks, host_marks = (
        [lane for lanes, side in zip(marks, on_gpu, strict=True) if side is wanted for lane in lanes]
        for wanted in (True, False)
    )
    gpu = Widths.affordable(gpu_marks, zero, length, max_marks // 2)
    host = Widths.affordable(host_marks, zero, length, max_marks - gpu.marks)
    return [
        [Lane.merged(lane, side, row.process, zero, gpu if side else host) for lane in lanes]
        for row, side, lanes in zip(rows, on_gpu, marks, strict=True)
    ]
