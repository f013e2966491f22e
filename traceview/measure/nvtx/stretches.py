"""The time of every thread, cut where ranges open or close: all through a stretch the same ones are open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times, distinct
from traceview.measure.nvtx.nesting import Nesting


@dataclass(frozen=True, slots=True)
class Stretches:
    """Nesting asked once a stretch, so that each of millions of calls costs one binary search.

    By (thread, first moment). Stretch 0 stands for all time with nothing open, on thread -1. `first` is a stretch's
    first moment, and `place` the innermost range open there: a place of `nesting`, or -1.
    """

    nesting: Nesting
    thread: Times
    first: Times
    place: Times

    @classmethod
    def of(cls, start: Times, end: Times, thread: Times) -> Stretches:
        """Cut the threads at every start and end of their ranges, which may overlap in any way."""
        nesting = Nesting.of(start, end, thread.astype(np.int64))
        times = distinct(np.concatenate([start, end]))
        # A rank stands in for the moment, because thread * ns could overflow.
        both = np.concatenate([np.searchsorted(times, start), np.searchsorted(times, end)])
        owner, rank = np.divmod(distinct(np.tile(thread.astype(np.int64), 2) * len(times) + both), max(len(times), 1))
        first = times[rank]
        place = nesting.innermost(owner, first)
        none = np.array([-1], np.int64)
        return cls(nesting, *(np.concatenate([none, of]) for of in (owner, first, place)))

    def among(self, moments: Times) -> Among:
        """Prepare for questions about moments that ascend."""
        size = len(moments) + 1
        rank = np.searchsorted(moments, self.first, side="left")
        return Among(self.thread * size + rank, size, self.place)

    def open_ranges(self, stretch: NDArray[np.integer]) -> tuple[Times, Times]:
        """Return every pair of (index into `stretch`, row of a range open there)."""
        indices, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for index, place in self.nesting.levels(self.place[stretch], self.first[stretch]):
            indices.append(index)
            rows.append(self.nesting.rows[place])
        return np.concatenate(indices), np.concatenate(rows)


class Among(NamedTuple):
    """Stretches by (thread, row of the first moment in it), as thread * size + row."""

    keys: Times
    size: int
    place: Times

    def at(self, thread: Times, row: Times) -> Times:
        """Return the stretch of each moment, by its row, on each thread; 0 where no range is open."""
        found = np.searchsorted(self.keys, thread * np.int64(self.size) + row, side="right") - 1
        found[self.place[found] < 0] = 0
        return found

    def passed(self) -> NDArray[np.int32]:
        """Return how many moments so far were the first in a stretch of any thread, for each; -1 as a last entry."""
        rows = distinct(self.keys[1:] % self.size)
        count = np.diff(rows, prepend=0, append=self.size - 1)
        numbers = np.arange(len(rows) + 2, dtype=np.int32)
        numbers[-1] = -1
        return np.repeat(numbers, np.append(count, 1))
