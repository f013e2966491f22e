"""Which NVTX ranges were open at a moment on a thread: all at once, without a loop over events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traceview.intervals import Times


@dataclass(frozen=True, slots=True)
class Nesting:
    """Ranges by (thread, start, longest first), ready for questions.

    `rows` are the callers' rows in that order; `before` is, for each place in it, the latest earlier
    place of the same thread whose range ends no sooner, or -1: all places between ended earlier.
    `edges` maps a thread to its first and last place.
    """

    rows: Times
    start: Times
    end: Times
    before: Times
    edges: dict[int, tuple[int, int]]

    @classmethod
    def of(cls, start: Times, end: Times, thread: Times) -> Nesting:
        """Prepare ranges, which may overlap in any way."""
        rows = np.lexsort((-end, start, thread))
        ordered = thread[rows]
        borders = np.flatnonzero(np.diff(ordered, prepend=-2, append=-2)) if len(rows) else rows
        edges = {int(ordered[first]): (int(first), int(last)) for first, last in pairwise(borders)}
        return cls(rows, start[rows], end[rows], _before(end[rows], borders), edges)

    def innermost(self, thread: Times, at: Times) -> Times:
        """Return the place of the open range with the latest start on each thread at each moment, or -1.

        A range is open at t when start <= t < end; of two that start together the shorter is inner.
        """
        found = np.full(len(at), -1, np.int64)
        order = np.argsort(thread, kind="stable")
        ordered = thread[order]
        for one, (first, last) in self.edges.items():
            low, high = np.searchsorted(ordered, (one, one + 1))
            asked = order[low:high]
            place = first - 1 + np.searchsorted(self.start[first:last], at[asked], side="right")
            found[asked] = np.where(place < first, -1, place)
        return self._open(found, at)

    def around(self, place: Times, at: Times) -> Times:
        """Return the next range outwards from each one that is open at each moment, or -1."""
        first = np.zeros(len(self.rows), np.bool_)
        first[[low for low, _ in self.edges.values()]] = True
        return self._open(np.where(first[place], -1, place - 1), at)

    def levels(self, place: Times, at: Times) -> Iterator[tuple[Times, Times]]:
        """Yield which queries have a range open, and where; from the innermost outwards, until none has one left."""
        query = np.flatnonzero(place >= 0)
        place = place[query]
        while len(query):
            yield query, place
            outer = self.around(place, at[query])
            some = np.flatnonzero(outer >= 0)
            query, place = query[some], outer[some]

    def _open(self, place: Times, at: Times) -> Times:
        place = place.copy()
        asked = np.flatnonzero(place >= 0)
        while len(asked := asked[self.end[place[asked]] <= at[asked]]):
            place[asked] = self.before[place[asked]]
            asked = asked[place[asked] >= 0]
        return place


def _before(end: Times, borders: Times) -> Times:
    """Return for each place the latest earlier one of its thread that ends no sooner.

    Each round skips what a place's predecessor may skip too, so chains halve and the rounds are few.
    """
    before = np.arange(-1, len(end) - 1)
    before[borders[:-1]] = -1
    short = np.flatnonzero(before >= 0)
    while len(short := short[end[before[short]] < end[short]]):
        before[short] = before[before[short]]
        short = short[before[short] >= 0]
    return before


def innermost(start: Times, end: Times, thread: Times, query_thread: Times, at: Times) -> Times:
    """Return the row of the innermost range open on each thread at each moment, or -1."""
    if len(start) == 0:
        return np.full(len(at), -1, np.int64)
    nesting = Nesting.of(start, end, thread.astype(np.int64))
    place = nesting.innermost(query_thread.astype(np.int64), at)
    return np.where(place >= 0, nesting.rows[np.maximum(place, 0)], -1)
