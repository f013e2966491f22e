"""How much detail the page holds: everything where the budget allows, else levels and the places that matter.

The page's columns come in chunks. The first holds every row at a glance; the others follow behind it, the
coarse before the fine, so that a page of any size draws at once and sharpens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traceview.intervals import Intervals, Times, distinct
from traceview.report.html.book import Book
from traceview.report.html.columns import Columns
from traceview.report.html.lane import Lane
from traceview.report.html.marks import Marks, Numbers, reach
from traceview.report.html.sharpen import Sharpening

SAMPLE = 1 << 14  # marks from which the size of a lane in full is foretold
ISLANDS = 0.33  # of the budget, for the places that stay in full
MARK_BYTES = 12  # of one mark in full, in the file; only to bound the places
LOW_BITS = (1 << 20) - 1


@dataclass(frozen=True, slots=True)
class Extra:
    """What a page has that does not hold every event.

    `columns` are sums and places of names, `content` says where they lie, `names` are the numbers of those names.
    `cover` are the stretches in which every lane is in full, `kept` the marks of each lane there, or that launched
    what is there.
    """

    columns: Columns
    content: Mapping[str, object]
    names: Times
    cover: Intervals
    kept: Sequence[Marks]


def write(lanes: Sequence[Lane], book: Book, extra: Callable[[], Extra]) -> tuple[Extra, int] | None:
    """Fill the book with lanes whose levels are found.

    Return what was needed beside levels, and in which chunk its columns are; None where every event is there.
    """
    _at_a_glance(lanes, book)
    if _foretold(lanes, book) * 1.1 < book.left:
        for lane in sorted(lanes, key=lambda one: not one.on_gpu):
            _in_full(lane, book)
    sharpening = Sharpening.of(lanes, book)
    found = None
    if not all(lane.whole for lane in lanes):
        beside = extra()
        found = beside, book.add(beside.columns)
        book.names.append(beside.names)
        of_rest = [(lane, marks) for lane, marks in zip(lanes, beside.kept, strict=True) if not lane.whole]
        for (lane, _), json in zip(of_rest, book.must([marks for _, marks in of_rest]), strict=True):
            lane.exact = json
    sharpening.write()
    return found


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


def kept(lanes: Sequence[Lane], cover: Intervals) -> list[Marks]:
    """Return of each lane what touches the places in full, and of host calls what launched it."""
    touching = {id(lane): _touching(lane.marks, cover) for lane in lanes}
    for lane in lanes:
        if not lane.on_gpu and "correlation" in lane.marks.details:
            rows = np.concatenate([touching[id(lane)], _launching(lane, lanes, touching)])
            touching[id(lane)] = distinct(rows)
    return [lane.marks.take(touching[id(lane)]) for lane in lanes]


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
    first = np.searchsorted(reach(marks.end), cover.start, "left")
    last = np.maximum(np.searchsorted(marks.start, cover.end, "right"), first)
    first = np.maximum(first, np.append(np.zeros(1, np.int64), last[:-1])[: len(first)])
    stretches = zip(first, last, cover.start, strict=True)
    parts = [at + np.flatnonzero(marks.end[at:to] >= begin) for at, to, begin in stretches]
    return np.concatenate([np.empty(0, np.int64), *parts])
