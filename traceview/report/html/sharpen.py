"""Finer and finer levels, those of the GPU's rows ahead of the host's, while they fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from traceview.report.html.book import Book, Draft
from traceview.report.html.lane import Lane
from traceview.report.html.pyramid import Level, coarser

FINER = 2  # doublings by which the GPU's rows are finer than the host's, while the budget lasts
AHEAD = 3  # levels, of both sides, that are begun before it is known whether those before them fit
# Of what is left, for one level of the GPU's rows and of the host's: the GPU's may not leave the host nothing.
SHARES = {True: 2 / 3, False: 1.0}

Due = list[tuple[Lane, Level]]


@dataclass(slots=True)
class _Step:
    """The next levels of one side's lanes, begun to be packed."""

    on_gpu: bool
    due: Due
    draft: Draft | None


@dataclass(slots=True)
class Sharpening:
    """What is written next; some levels are packed ahead of their turn, whatever becomes of them."""

    book: Book
    plan: Iterator[tuple[bool, Due]]
    # Of each side that still fits: bytes of the file for a byte of memory, the last time.
    ratios: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    ahead: deque[_Step] = field(default_factory=deque)

    @classmethod
    def of(cls, lanes: Sequence[Lane], book: Book) -> Sharpening:
        """Begin to pack the coarsest levels that are not written yet."""
        made = cls(book, _plan(lanes))
        made._begin()
        return made

    def write(self) -> None:
        """Write what fits."""
        while self.ahead:
            step = self.ahead.popleft()
            self._begin()
            if step.on_gpu in self.ratios and not self._take(step):
                self._take(self._begun(step.on_gpu, _between(step.due, self.book)))
                del self.ratios[step.on_gpu]

    def _begin(self) -> None:
        while len(self.ahead) < AHEAD and (step := next(self.plan, None)) is not None:
            before = sum((one.draft.size for one in self.ahead if one.draft is not None), 0)
            self.ahead.append(self._begun(*step, before))

    def _begun(self, on_gpu: bool, due: Due, before: int = 0) -> _Step:
        if on_gpu not in self.ratios or not due:
            return _Step(on_gpu, due, None)
        marks, ratio, share = [level.marks for _, level in due], self.ratios[on_gpu], SHARES[on_gpu]
        return _Step(on_gpu, due, self.book.begin(marks, ratio=ratio, before=before, share=share))

    def _take(self, step: _Step) -> bool:
        """Write a step's levels, and say whether they fit."""
        if step.draft is None:
            return False
        placed = self.book.take(step.draft, ratio=self.ratios[step.on_gpu], share=SHARES[step.on_gpu])
        for (lane, level), json in zip(step.due, placed, strict=False):
            lane.written.append({"shift": level.shift, **json})
        if placed:
            self.ratios[step.on_gpu] = self.book.ratio
        return bool(placed)


def _between(due: Due, book: Book) -> Due:
    """Return levels between those that did not fit and the ones before them."""
    found = book.pool.map(lambda one: (one[0], coarser(one[1], book.zero)), due)
    return [(lane, level) for lane, level in found if not lane.written or level.shift < lane.written[-1]["shift"]]


def _plan(lanes: Sequence[Lane]) -> Iterator[tuple[bool, Due]]:
    """Yield which level of which lanes comes next, the coarse before the fine, the GPU's rows before the host's."""
    left = [(lane, list(lane.levels)) for lane in lanes]
    top = max((lane.levels[-1].shift for lane in lanes if lane.levels), default=-1)
    for shift in range(top + FINER, -1 - FINER, -1):
        for on_gpu in (True, False):
            least = shift - FINER if on_gpu else shift
            mine = [of_lane for of_lane in left if of_lane[0].on_gpu is on_gpu and of_lane[1]]
            if due := [(lane, levels.pop()) for lane, levels in mine if levels[-1].shift >= least]:
                yield on_gpu, due
