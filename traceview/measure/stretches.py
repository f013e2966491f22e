"""The time of every thread, cut where ranges open or close: all through a stretch the same ones are open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times, blocks
from traceview.measure.nesting import Nesting


@dataclass(frozen=True, slots=True)
class Stretches:
    """Nesting asked once a stretch, so that each of millions of moments costs two binary searches.

    Stretch 0 stands for all time with nothing open. `keys` holds the first moment of the others as
    thread * (len(times) + 1) + its rank in `times`; a rank, because thread * ns could overflow.
    `first` is that moment, and `place` the innermost range open there: a place of `nesting`, or -1.
    """

    nesting: Nesting
    times: Times
    keys: Times
    first: Times
    place: Times

    @classmethod
    def of(cls, start: Times, end: Times, thread: Times) -> Stretches:
        """Cut the threads at every start and end of their ranges, which may overlap in any way."""
        nesting = Nesting.of(start, end, thread.astype(np.int64))
        times = _distinct(np.concatenate([start, end]))
        size = len(times) + 1
        both = np.concatenate([np.searchsorted(times, start), np.searchsorted(times, end)]) + 1
        keys = _distinct(np.tile(thread.astype(np.int64), 2) * size + both)
        first = times[keys % size - 1]
        place = nesting.innermost(keys // size, first)
        none = np.array([-1], np.int64)
        return cls(nesting, times, keys, np.concatenate([none, first]), np.concatenate([none, place]))

    def at(self, thread: Times, moment: Times) -> Times:
        """Return the stretch of each moment on each thread; 0 where no range is open."""
        found = np.empty(len(moment), np.int64)
        for block in blocks(len(moment)):
            rank = np.searchsorted(self.times, moment[block], side="right")
            keys = thread[block].astype(np.int64) * (len(self.times) + 1) + rank
            stretch = np.searchsorted(self.keys, keys, side="right")
            found[block] = np.where(self.place[stretch] >= 0, stretch, 0)
        return found

    def innermost(self) -> Times:
        """Return the row of the innermost open range of each stretch, or -1."""
        return np.append(self.nesting.rows, np.int64(-1))[self.place]

    def open_ranges(self, stretch: NDArray[np.integer]) -> tuple[Times, Times]:
        """Return every pair of (index into `stretch`, row of a range open there)."""
        indices, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for level in self.nesting.levels(self.place[stretch], self.first[stretch]):
            index = np.flatnonzero(level >= 0)
            indices.append(index)
            rows.append(self.nesting.rows[level[index]])
        return np.concatenate(indices), np.concatenate(rows)


def _distinct(values: Times) -> Times:
    """Sort and keep one of each: ten times faster than np.unique, which hashes first."""
    ordered = np.sort(values)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]
