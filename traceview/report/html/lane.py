"""One line of marks on its way into the page."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from traceview.intervals import EMPTY, Times
from traceview.report.html.book import Json
from traceview.report.html.marks import Marks, used
from traceview.report.html.pyramid import Level, Widths, levels


@dataclass(slots=True)
class Lane:
    """One line of marks on its way into the page."""

    marks: Marks
    on_gpu: bool
    process: int | None = None
    levels: list[Level] = field(default_factory=list)  # the finest first
    written: list[Json] = field(default_factory=list)  # levels, the coarsest first
    looks: Times = field(default_factory=lambda: EMPTY.start)  # those that its marks have
    exact: Json | None = None
    whole: bool = False
    merging: Future[None] | None = None

    def merge(self, zero: int, widths: Sequence[int]) -> None:
        """Find the levels and the looks."""
        self.levels = list(levels(self.marks, zero, widths))
        merges = (level.marks.merge for level in self.levels)
        known = next((merge.looks for merge in merges if merge is not None), None)
        self.looks = used(self.marks.look) if known is None else known

    def merged(self) -> Lane:
        """Return the lane when its levels are found."""
        if self.merging is not None:
            self.merging.result()
        return self

    def at_most(self, shift: int) -> Marks:
        """Return the marks, merged into bins of at most 2^shift ns."""
        self.merged()
        return next((level.marks for level in reversed(self.levels) if level.shift <= shift), self.marks)

    def fresh(self) -> Lane:
        """Return the lane with all its levels, and nothing written."""
        self.merged()
        return Lane(self.marks, self.on_gpu, self.process, list(self.levels), looks=self.looks)

    def json(self) -> Json:
        """Return what the script needs to find the lane's columns."""
        return {"levels": self.written, "exact": self.exact, "whole": self.whole}


def prepare(lanes: Sequence[Lane], zero: int, length: int, most: int, pool: ThreadPoolExecutor) -> None:
    """Begin to merge every lane into its levels; NumPy lets several lanes be merged at once, the longest work first.

    The finest of all together have at most `most` marks, those of the GPU's rows half of them.
    """
    on_gpu, of_host = ([lane.marks for lane in lanes if lane.on_gpu is side] for side in (True, False))
    gpu = Widths.of(on_gpu, zero, length, most // 2)
    host = Widths.of(of_host, zero, length, most - gpu.marks)
    for lane in sorted(lanes, key=lambda lane: -len(lane.marks) * (2 + len(lane.marks.sums))):
        lane.merging = pool.submit(lane.merge, zero, (gpu if lane.on_gpu else host).shifts)
