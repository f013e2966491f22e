"""How much detail the page holds: everything where the budget allows, else levels and the places that matter.

The page's columns come in chunks. The first holds every row at a glance; the others follow behind it, the
coarse before the fine, so that a page of any size draws at once and sharpens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import EMPTY, Intervals, Times
from traceview.report.html.columns import Columns
from traceview.report.html.marks import Marks
from traceview.report.html.pyramid import Level, levels

SAMPLE = 1 << 14  # marks from which the size of a lane in full is foretold
UNPACKED = 7  # a byte of the budget may unpack to so many, lest the page outgrow its tab
CHUNK = 1_000_000  # bytes of memory, after which the next chunk begins: the page unpacks one at a time
ISLANDS = 0.35  # of the budget, for the places that stay in full
MARK_BYTES = 12  # of one mark in full, in the file; only to bound the places
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
class Book:
    """The chunks that are full, and what is left of the budget, in bytes of the file and of memory."""

    zero: int
    left: int
    memory: int
    ratio: float = 0.0  # of the last chunks: bytes of the file for a byte of memory
    chunks: list[str] = field(default_factory=list)
    names: list[Times] = field(default_factory=list)  # the numbers of those that the page shows

    @classmethod
    def of(cls, zero: int, budget: int) -> Book:
        """Begin with an empty book."""
        return cls(zero, budget, budget * UNPACKED)

    def try_add(self, made: Sequence[Marks], *, must: bool = False, ratio: float = 0.0) -> list[Json]:
        """Write marks as more chunks if they fit; return where each lies, or nothing if they do not.

        `ratio` is what they may be expected to pack to: packing takes time, and hopeless cases are not tried.
        """
        parts, places = self._parted(made)
        if not self._take(parts, must, ratio):
            return []
        self.names.extend(np.unique(marks.name) for marks in made)
        first = len(self.chunks) - len(parts)
        return [{"chunk": first + part, "marks": place} for part, place in places]

    def add(self, columns: Columns) -> int:
        """Take the columns as one more chunk, whatever is left; return its number."""
        self._take([columns], must=True, ratio=0.0)
        return len(self.chunks) - 1

    def _parted(self, made: Sequence[Marks]) -> tuple[list[Columns], list[tuple[int, Json]]]:
        parts, places = [Columns()], []
        for marks in made:
            if parts[-1].size > CHUNK:
                parts.append(Columns())
            places.append((len(parts) - 1, marks.write(parts[-1], self.zero)))
        return parts, places

    def _take(self, parts: Sequence[Columns], must: bool, ratio: float) -> bool:
        size = sum(part.size for part in parts)
        if not must and (size > self.memory or size * ratio * 0.9 > self.left):
            return False
        with ThreadPoolExecutor(2) as pool:
            texts = list(pool.map(Columns.packed, parts))
        packed = sum(len(text) for text in texts)
        self.ratio = packed / max(size, 1)
        if not must and packed > self.left:
            return False
        self.chunks.extend(texts)
        self.left -= packed
        self.memory -= size
        return True


def prepare(lanes: Sequence[Lane], zero: int, widths: range) -> None:
    """Merge every lane into its levels; NumPy lets two lanes be merged at once."""
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda lane: list(levels(lane.marks, zero, widths)), lanes)
        for lane, of_lane in zip(lanes, found, strict=True):
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
    for lane, level, json in zip(lanes, coarsest, book.try_add(made, must=True), strict=True):
        if level is None:
            lane.exact, lane.whole = json, True
        else:
            lane.written.append({"shift": level.shift, **json})


def _foretold(lanes: Sequence[Lane], book: Book) -> float:
    """Return what all that is not written yet would take in full, in bytes of the file."""
    total = 0.0
    for lane in lanes:
        if lane.whole:
            continue
        first = max(0, (len(lane.marks) - SAMPLE) // 2)
        sample = lane.marks.take(slice(first, first + SAMPLE))
        columns = Columns()
        sample.write(columns, book.zero)
        times = len(lane.marks) / len(sample)
        if columns.size * times > book.memory:
            return float("inf")
        total += len(columns.packed()) * times
    return total


def _in_full(lane: Lane, book: Book) -> None:
    if not lane.whole and (made := book.try_add([lane.marks])):
        lane.exact, lane.whole = made[0], True
        # Bins that hardly merge are no better than the events themselves.
        lane.levels = [level for level in lane.levels if len(level.marks) * 2 < len(lane.marks)]


def _islands(lanes: Sequence[Lane], book: Book, cover: Intervals) -> None:
    """Write what touches the places in full, and of host calls what launched it."""
    rest = [lane for lane in lanes if not lane.whole]
    touching = {id(lane): _touching(lane.marks, cover) for lane in lanes}
    for lane in rest:
        if not lane.on_gpu and "correlation" in lane.marks.details:
            touching[id(lane)] |= _launching(lane, lanes, touching)
    kept = [lane.marks.take(touching[id(lane)]) for lane in rest]
    for lane, json in zip(rest, book.try_add(kept, must=True), strict=True):
        lane.exact = json


def _launching(host: Lane, lanes: Sequence[Lane], touching: Mapping[int, NDArray[np.bool_]]) -> NDArray[np.bool_]:
    launched = [
        lane.marks.details["correlation"][touching[id(lane)]]
        for lane in lanes
        if lane.on_gpu and lane.process == host.process and "correlation" in lane.marks.details
    ]
    numbers = np.unique(np.concatenate([np.empty(0, np.int64), *launched]))
    return np.isin(host.marks.details["correlation"], numbers[numbers > 0])


def _touching(marks: Marks, cover: Intervals) -> NDArray[np.bool_]:
    kept: NDArray[np.bool_] = np.searchsorted(cover.start, marks.end, "right") > np.searchsorted(
        cover.end, marks.start, "left"
    )
    return kept


def _sharpen(lanes: Sequence[Lane], book: Book) -> None:
    """Write finer and finer levels while they fit, those of the GPU's rows ahead of the host's."""
    ratios = {True: 0.0, False: 0.0}
    top = max((lane.levels[-1].shift for lane in lanes if lane.levels), default=-1)
    for shift in range(top + FINER, -1 - FINER, -1):
        for on_gpu in (True, False):
            least = shift - FINER if on_gpu else shift
            due = [lane for lane in lanes if lane.on_gpu is on_gpu and lane.levels and lane.levels[-1].shift >= least]
            if on_gpu in ratios and due and not _one_finer(due, book, ratios[on_gpu]):
                del ratios[on_gpu]
            elif on_gpu in ratios:
                ratios[on_gpu] = book.ratio


def _one_finer(due: Sequence[Lane], book: Book, ratio: float) -> bool:
    made = book.try_add([lane.levels[-1].marks for lane in due], ratio=ratio)
    for lane, json in zip(due, made, strict=False):
        lane.written.append({"shift": lane.levels.pop().shift, **json})
    return bool(made)
