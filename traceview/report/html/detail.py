"""How much detail the page holds: everything where the budget allows, else levels and the places that matter.

The page's columns come in chunks. The first holds every row at a glance; the others follow behind it, the
coarse before the fine, so that a page of any size draws at once and sharpens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from traceview.intervals import EMPTY, Intervals, Times
from traceview.report.html.columns import Columns
from traceview.report.html.marks import Marks, Numbers
from traceview.report.html.pyramid import Level, levels

SAMPLE = 1 << 14  # marks from which the size of a lane in full is foretold
UNPACKED = 7  # a byte of the budget may unpack to so many, lest the page outgrow its tab
CHUNK = 1_000_000  # bytes of memory, after which the next chunk begins: the page unpacks one at a time
ISLANDS = 0.35  # of the budget, for the places that stay in full
MARK_BYTES = 12  # of one mark in full, in the file; only to bound the places
LOW_BITS = (1 << 20) - 1
FINER = 2  # doublings by which the GPU's rows are finer than the host's, while the budget lasts

Json = dict[str, Any]


@dataclass(slots=True)
class Lane:
    """One line of marks on its way into the page."""

    marks: Marks
    on_gpu: bool
    process: int | None = None
    levels: list[Level] = field(default_factory=list)  # the finest first
    written: list[Json] = field(default_factory=list)  # levels, the coarsest first
    exact: Json | None = None
    whole: bool = False

    def json(self) -> Json:
        """Return what the script needs to find the lane's columns."""
        return {"levels": self.written, "exact": self.exact, "whole": self.whole}


@dataclass(slots=True)
class Draft:
    """Marks as columns in chunks that are not in the book yet, and where each lies; packed where they may fit."""

    made: Sequence[Marks]
    places: list[tuple[int, Json]]
    parts: list[Columns]
    packing: list[Future[str]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return sum(part.size for part in self.parts)


@dataclass(slots=True)
class Book:
    """The chunks that are full, and what is left of the budget, in bytes of the file and of memory."""

    zero: int
    left: int
    memory: int
    pool: ThreadPoolExecutor
    ratio: float = 0.0  # of the last chunks: bytes of the file for a byte of memory
    chunks: list[str] = field(default_factory=list)
    names: list[Times] = field(default_factory=list)  # the numbers of those that the page shows

    @classmethod
    def of(cls, zero: int, budget: int, pool: ThreadPoolExecutor) -> Book:
        """Begin with an empty book; `pool` packs."""
        return cls(zero, budget, budget * UNPACKED, pool)

    def begin(self, made: Sequence[Marks], *, must: bool = False, ratio: float = 0.0) -> Draft:
        """Begin to pack marks into chunks, on other threads; `take` adds them.

        `ratio` is what they may be expected to pack to: packing takes time, and hopeless cases are not begun.
        """
        parts, places = [Columns()], []
        for marks in made:
            if parts[-1].size > CHUNK:
                parts.append(Columns())
            places.append((len(parts) - 1, marks.write(parts[-1], self.zero)))
        draft = Draft(made, places, parts)
        if must or self._may_fit(draft, ratio):
            draft.packing = [self.pool.submit(part.packed) for part in parts]
        return draft

    def must(self, made: Sequence[Marks]) -> list[Json]:
        """Add marks, whatever is left; return where each lies."""
        return self.take(self.begin(made, must=True), must=True)

    def take(self, draft: Draft, *, must: bool = False, ratio: float = 0.0) -> list[Json]:
        """Add what was begun if it fits; return where each of the marks lies, or nothing if it does not."""
        if not must and not (draft.packing and self._may_fit(draft, ratio)):
            return []
        texts = [one.result() for one in draft.packing]
        packed = sum(len(text) for text in texts)
        self.ratio = packed / max(draft.size, 1)
        if not must and packed > self.left:
            return []
        self.left -= packed
        self.memory -= draft.size
        self.names.extend(np.flatnonzero(np.bincount(marks.name)) for marks in draft.made if len(marks))
        first = len(self.chunks)
        self.chunks.extend(texts)
        return [{"chunk": first + part, "marks": place} for part, place in draft.places]

    def add(self, columns: Columns) -> int:
        """Take the columns as one more chunk, whatever is left; return its number."""
        self.take(Draft([], [], [columns], [self.pool.submit(columns.packed)]), must=True)
        return len(self.chunks) - 1

    def _may_fit(self, draft: Draft, ratio: float) -> bool:
        return draft.size <= self.memory and draft.size * ratio * 0.9 <= self.left


def prepare(lanes: Sequence[Lane], zero: int, widths: range, pool: ThreadPoolExecutor) -> None:
    """Merge every lane into its levels; NumPy lets several lanes be merged at once, the largest first."""
    ordered = sorted(lanes, key=lambda lane: -len(lane.marks))
    found = pool.map(lambda lane: list(levels(lane.marks, zero, widths)), ordered)
    for lane, of_lane in zip(ordered, found, strict=True):
        lane.levels = of_lane


def write(
    lanes: Sequence[Lane], book: Book, places: Callable[[int], Intervals], summary: Callable[[], None]
) -> Intervals:
    """Fill the book; return the stretches in which every lane is in full, whatever its levels.

    `places` gives the places that matter, at most so many events in all; `summary` adds to the book what
    a page needs that does not hold every event.
    """
    _at_a_glance(lanes, book)
    if _foretold(lanes, book) * 1.1 < book.left:
        for lane in sorted(lanes, key=lambda one: not one.on_gpu):
            _in_full(lane, book)
    cover = EMPTY
    if not all(lane.whole for lane in lanes):
        summary()
        cover = places(int(book.left * ISLANDS / MARK_BYTES))
        _islands(lanes, book, cover)
    _sharpen(lanes, book)
    return cover


def _at_a_glance(lanes: Sequence[Lane], book: Book) -> None:
    """Write the first chunk: the coarsest level of each lane, or all of one that has few marks."""
    coarsest = [lane.levels.pop() if lane.levels else None for lane in lanes]
    made = [lane.marks if level is None else level.marks for lane, level in zip(lanes, coarsest, strict=True)]
    for lane, level, json in zip(lanes, coarsest, book.must(made), strict=True):
        if level is None:
            lane.exact, lane.whole = json, True
        else:
            lane.written.append({"shift": level.shift, **json})


def _foretold(lanes: Sequence[Lane], book: Book) -> float:
    """Return what all that is not written yet would take in full, in bytes of the file; infinite where far too much."""
    total = 0.0
    for lane in sorted(lanes, key=lambda one: -len(one.marks)):
        if lane.whole:
            continue
        first = max(0, (len(lane.marks) - SAMPLE) // 2)
        sample = lane.marks.take(slice(first, first + SAMPLE))
        columns = Columns()
        sample.write(columns, book.zero)
        times = len(lane.marks) / len(sample)
        if columns.size * times > book.memory or total > book.left:
            return float("inf")
        total += len(columns.packed()) * times
    return total


def _in_full(lane: Lane, book: Book) -> None:
    if not lane.whole and (made := book.take(book.begin([lane.marks]))):
        lane.exact, lane.whole = made[0], True
        # Bins that hardly merge are no better than the events themselves.
        lane.levels = [level for level in lane.levels if len(level.marks) * 2 < len(lane.marks)]


def _islands(lanes: Sequence[Lane], book: Book, cover: Intervals) -> None:
    """Write what touches the places in full, and of host calls what launched it."""
    rest = [lane for lane in lanes if not lane.whole]
    touching = {id(lane): _touching(lane.marks, cover) for lane in lanes}
    for lane in rest:
        if not lane.on_gpu and "correlation" in lane.marks.details:
            rows = np.concatenate([touching[id(lane)], _launching(lane, lanes, touching)])
            touching[id(lane)] = np.flatnonzero(np.bincount(rows))
    kept = [lane.marks.take(touching[id(lane)]) for lane in rest]
    for lane, json in zip(rest, book.must(kept), strict=True):
        lane.exact = json


def _launching(host: Lane, lanes: Sequence[Lane], touching: Mapping[int, Times]) -> Times:
    launched = [
        lane.marks.details["correlation"][touching[id(lane)]]
        for lane in lanes
        if lane.on_gpu and lane.process == host.process and "correlation" in lane.marks.details
    ]
    numbers = np.unique(np.concatenate([np.empty(0, np.int64), *launched]))
    return _among(host.marks.details["correlation"], numbers[numbers > 0])


def _among(values: Numbers, numbers: Numbers) -> Times:
    """Return the rows of the values that are among some numbers, looked up exactly where the lowest bits agree."""
    table = np.zeros(LOW_BITS + 1, np.bool_)
    table[numbers & LOW_BITS] = True
    rows = np.flatnonzero(table[values & LOW_BITS])
    return rows[np.isin(values[rows], numbers)]


def _touching(marks: Marks, cover: Intervals) -> Times:
    """Return the rows of the marks that touch one of some disjoint stretches, ascending."""
    first = np.searchsorted(np.maximum.accumulate(marks.end), cover.start, "left")
    last = np.maximum(np.searchsorted(marks.start, cover.end, "right"), first)
    first = np.maximum(first, np.append(np.zeros(1, np.int64), last[:-1])[: len(first)])
    stretches = zip(first, last, cover.start, strict=True)
    parts = [at + np.flatnonzero(marks.end[at:to] >= begin) for at, to, begin in stretches]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _sharpen(lanes: Sequence[Lane], book: Book) -> None:
    """Write finer and finer levels while they fit, those of the GPU's rows ahead of the host's."""
    ratios = {True: 0.0, False: 0.0}
    top = max((lane.levels[-1].shift for lane in lanes if lane.levels), default=-1)
    for shift in range(top + FINER, -1 - FINER, -1):
        # Both are packed at the same time, whatever becomes of the first.
        due = {on_gpu: _due(lanes, on_gpu, shift) for on_gpu in ratios}
        begun = {
            on_gpu: book.begin([lane.levels[-1].marks for lane in of_side], ratio=ratios[on_gpu])
            for on_gpu, of_side in due.items()
            if of_side
        }
        for on_gpu, of_side in due.items():
            placed = book.take(begun[on_gpu], ratio=ratios[on_gpu]) if of_side else []
            for lane, json in zip(of_side, placed, strict=False):
                lane.written.append({"shift": lane.levels.pop().shift, **json})
            ratios[on_gpu] = book.ratio
            if of_side and not placed:
                del ratios[on_gpu]


def _due(lanes: Sequence[Lane], on_gpu: bool, shift: int) -> list[Lane]:
    """Return the lanes of one side whose next level is at least so wide."""
    least = shift - FINER if on_gpu else shift
    return [lane for lane in lanes if lane.on_gpu is on_gpu and lane.levels and lane.levels[-1].shift >= least]
