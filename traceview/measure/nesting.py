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
        """Return the next range outwards that is open at each moment, or -1."""
        start_of_thread = self._first_places()
        previous = np.where(place > 0, place - 1, -1)
        outside = (place >= 0) & (previous < start_of_thread[np.maximum(place, 0)])
        return self._open(np.where((place < 0) | outside, -1, previous), at)

    def levels(self, place: Times, at: Times) -> Iterator[Times]:
        """Yield the open ranges from the innermost outwards, until no query has one left."""
        while (place >= 0).any():
            yield place
            place = self.around(place, at)

    def _open(self, place: Times, at: Times) -> Times:
        place = place.copy()
        while len(self.end):
            ended = np.flatnonzero((place >= 0) & (self.end[np.maximum(place, 0)] <= at))
            if len(ended) == 0:
                break
            place[ended] = self.before[place[ended]]
        return place

    def _first_places(self) -> Times:
        first = np.zeros(len(self.rows), np.int64)
        for low, high in self.edges.values():
            first[low:high] = low
        return first


def _before(end: Times, borders: Times) -> Times:
    """Return for each place the latest earlier one of its thread that ends no sooner.

    Each round skips what a place's predecessor may skip too, so chains halve and the rounds are few.
    """
    before = np.arange(-1, len(end) - 1)
    before[borders[:-1]] = -1
    while True:
        short = np.flatnonzero((before >= 0) & (end[np.maximum(before, 0)] < end))
        if len(short) == 0:
            return before
        before[short] = before[before[short]]


def innermost(start: Times, end: Times, thread: Times, query_thread: Times, at: Times) -> Times:
    """Return the row of the innermost range open on each thread at each moment, or -1."""
    if len(start) == 0:
        return np.full(len(at), -1, np.int64)
    nesting = Nesting.of(start, end, thread.astype(np.int64))
    place = nesting.innermost(query_thread.astype(np.int64), at)
    return np.where(place >= 0, nesting.rows[np.maximum(place, 0)], -1)
