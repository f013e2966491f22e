"""The NVTX ranges that are open at a moment on a thread, for many moments at once.

`Nesting` answers by moment. `Stretches` cuts each thread's time where ranges open or close, so that millions of calls
need one binary search each.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times, sorted_unique


class Nesting(NamedTuple):
    """Ranges by (thread, start, longest first). A place is an index in this order.

    `rows` are the caller's rows in this order. `before` is, for each place, the latest earlier place of the same thread
    whose range ends no sooner, or -1; all ranges between them end earlier. `edges` maps a thread to its first and last
    place.
    """

    rows: Times
    start: Times
    end: Times
    before: Times
    edges: dict[int, tuple[int, int]]

    @classmethod
    def build(cls, start: Times, end: Times, thread: Times, moments: Times | None = None) -> Nesting:
        """Index ranges, which may overlap in any way; with `moments`, those that may be open at one of them."""
        rows = np.arange(len(start))
        if moments is not None:
            rows = np.flatnonzero((start <= moments.max()) & (end > moments.min())) if len(moments) else rows[:0]
        own_start, own_end, ordered = start[rows], end[rows], thread[rows].astype(np.int64)
        order = np.lexsort((-own_end, own_start, ordered))
        rows, ordered = rows[order], ordered[order]
        borders = np.flatnonzero(np.diff(ordered, prepend=-2, append=-2)) if len(rows) else rows
        edges = {int(ordered[first]): (int(first), int(last)) for first, last in pairwise(borders)}
        return cls(rows, start[rows], end[rows], _earlier_places(end[rows], borders), edges)

    def rows_at(self, place: Times) -> Times:
        """Return the caller's row of each place; -1 for place -1."""
        rows: Times = np.append(self.rows, -1)[place]
        return rows

    def innermost(self, thread: Times, moments: Times) -> Times:
        """Return the place of the open range with the latest start on each thread at each moment, or -1.

        A range is open at t if start <= t < end. If two ranges start together, the shorter one is inside.
        """
        place = np.full(len(moments), -1, np.int64)
        order = np.argsort(thread, kind="stable")
        ordered = thread[order]
        for known_thread, (first, last) in self.edges.items():
            low, high = np.searchsorted(ordered, (known_thread, known_thread + 1))
            queries = order[low:high]
            latest = first - 1 + np.searchsorted(self.start[first:last], moments[queries], side="right")
            place[queries] = np.where(latest < first, -1, latest)
        return self._first_open(place, moments)

    def enclosing(self, place: Times, moments: Times) -> Times:
        """Return the place of the next outer range that is open at each moment, or -1."""
        first = np.zeros(len(self.rows), np.bool_)
        first[[low for low, _ in self.edges.values()]] = True
        return self._first_open(np.where(first[place], -1, place - 1), moments)

    def levels(self, place: Times, moments: Times) -> Iterator[tuple[Times, Times]]:
        """Yield the queries that have an open range, and its place: innermost ranges first, then outwards."""
        query = np.flatnonzero(place >= 0)
        place = place[query]
        while len(query):
            yield query, place
            outer = self.enclosing(place, moments[query])
            some = np.flatnonzero(outer >= 0)
            query, place = query[some], outer[some]

    def _first_open(self, place: Times, moments: Times) -> Times:
        """Follow `before` from each place to a range that is open at the moment, or -1."""
        place = place.copy()
        queries = np.flatnonzero(place >= 0)
        while len(queries := queries[self.end[place[queries]] <= moments[queries]]):
            place[queries] = self.before[place[queries]]
            queries = queries[place[queries] >= 0]
        return place


def _earlier_places(end: Times, borders: Times) -> Times:
    """Return, for each place, the latest earlier place of its thread whose range ends no sooner, or -1.

    Each round follows the pointers found so far, so that chains halve and rounds are few.
    """
    before = np.arange(-1, len(end) - 1)
    before[borders[:-1]] = -1
    short = np.flatnonzero(before >= 0)
    while len(short := short[end[before[short]] < end[short]]):
        before[short] = before[before[short]]
        short = short[before[short] >= 0]
    return before


def innermost_ranges(start: Times, end: Times, thread: Times, query_thread: Times, moments: Times) -> Times:
    """Return the row of the innermost range that is open on each thread at each moment, or -1."""
    if len(start) == 0:
        return np.full(len(moments), -1, np.int64)
    nesting = Nesting.build(start, end, thread, moments)
    place = nesting.innermost(query_thread.astype(np.int64), moments)
    return nesting.rows_at(place)


class Stretches(NamedTuple):
    """The time of every thread, cut where ranges open or close: the same ranges are open throughout a stretch.

    Stretches are ordered by (thread, first moment). Stretch 0 stands for all time without open ranges, on thread -1.
    `first` is a stretch's first moment. `place` is the innermost open range as a place of `nesting`, or -1.
    """

    nesting: Nesting
    thread: Times
    first: Times
    place: Times

    @classmethod
    def build(cls, start: Times, end: Times, thread: Times, moments: Times | None = None) -> Stretches:
        """Cut the threads at every start and end of their ranges; `moments` are those of Nesting.build."""
        nesting = Nesting.build(start, end, thread, moments)
        edges = np.concatenate([nesting.start, nesting.end])
        times = sorted_unique(edges)
        # Ranks replace moments because thread * ns may overflow.
        threads = thread[nesting.rows].astype(np.int64)
        keys = sorted_unique(np.tile(threads, 2) * len(times) + np.searchsorted(times, edges))
        owner, rank = np.divmod(keys, max(len(times), 1))
        first = times[rank]
        place = nesting.innermost(owner, first)
        none = np.array([-1], np.int64)
        return cls(nesting, *(np.concatenate([none, column]) for column in (owner, first, place)))

    def lookup(self, moments: Times) -> StretchLookup:
        """Prepare look-ups at moments that ascend."""
        size = len(moments) + 1
        row = np.searchsorted(moments, self.first, side="left")
        return StretchLookup(self.thread * size + row, size, self.place)

    def open_ranges(self, stretch: NDArray[np.integer]) -> tuple[Times, Times]:
        """Return every pair of an index into `stretch` and the row of a range that is open there."""
        indices, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for index, place in self.nesting.levels(self.place[stretch], self.first[stretch]):
            indices.append(index)
            rows.append(self.nesting.rows[place])
        return np.concatenate(indices), np.concatenate(rows)


class StretchLookup(NamedTuple):
    """Finds the stretch of (thread, row), where rows number ascending moments.

    `keys` are thread * size + the row of the first moment in each stretch.
    """

    keys: Times
    size: int
    place: Times

    def stretch_at(self, thread: Times, row: Times) -> Times:
        """Return the stretch on each thread at the moment of each row; 0 where no range is open."""
        stretch = np.searchsorted(self.keys, thread * np.int64(self.size) + row, side="right") - 1
        stretch[self.place[stretch] < 0] = 0
        return stretch

    def borders_passed(self) -> NDArray[np.int32]:
        """Return, for each row, how many rows up to it are the first in a stretch of any thread; -1 as a last entry."""
        rows = sorted_unique(self.keys[1:] % self.size)
        count = np.diff(rows, prepend=0, append=self.size - 1)
        numbers = np.arange(len(rows) + 2, dtype=np.int32)
        numbers[-1] = -1
        return np.repeat(numbers, np.append(count, 1))
