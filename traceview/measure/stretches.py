"""The time of every thread, cut where a range opens or closes: inside one stretch the same ranges are open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceview.intervals import Times
from traceview.measure.nesting import Nesting


@dataclass(frozen=True, slots=True)
class Stretches:
    """Ranges asked once per stretch, so that millions of moments cost two binary searches each.

    Stretch 0 is all time in which nothing is known to be open. `keys` are the stretches' first moments as
    thread * (len(times) + 1) + rank of the time among `times` (ranks, for a product of a thread
    and a time in ns could overflow). `place` is the innermost open range of each, as a place of `nesting`,
    or -1; `first` is a moment inside each.
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
        times = np.unique(np.concatenate([start, end]))
        size = len(times) + 1
        both = np.concatenate([np.searchsorted(times, start), np.searchsorted(times, end)]) + 1
        keys = np.unique(np.tile(thread.astype(np.int64), 2) * size + both)
        first = times[keys % size - 1]
        place = nesting.innermost(keys // size, first)
        none = np.array([-1], np.int64)
        return cls(nesting, times, keys, np.concatenate([none, first]), np.concatenate([none, place]))

    def at(self, thread: Times, moment: Times) -> Times:
        """Return the stretch of each moment on each thread; 0 where no range is open."""
        rank = np.searchsorted(self.times, moment, side="right")
        keys = thread.astype(np.int64) * (len(self.times) + 1) + rank
        stretch = np.searchsorted(self.keys, keys, side="right")
        return np.where(self.place[stretch] >= 0, stretch, 0)

    def innermost(self) -> Times:
        """Return the row of the innermost open range of each stretch, or -1."""
        return _rows(self.nesting, self.place)

    def open_ranges(self, stretch: Times) -> tuple[Times, Times]:
        """Return every pair of (index into `stretch`, row of a range open there)."""
        indices, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for level in self.nesting.levels(self.place[stretch], self.first[stretch]):
            index = np.flatnonzero(level >= 0)
            indices.append(index)
            rows.append(self.nesting.rows[level[index]])
        return np.concatenate(indices), np.concatenate(rows)


def _rows(nesting: Nesting, place: Times) -> Times:
    rows = np.append(nesting.rows, np.int64(-1))
    return rows[place]
