"""How long a thread was in CUDA calls, as the trace's own columns say: its millions of calls are not held again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import EMPTY, Coverage, Intervals, Rows, Times

AT_ONCE = 1 << 14  # calls, an even number, or questions: temporary arrays are small
NEAR = 16  # so many calls a question may lie near to, on average, to have all of them added up


@dataclass(frozen=True, slots=True)
class InCalls:
    """The calls of one thread: `rows` of `start` and `end`, None for all, by time and without overlap.

    `running` is the length of all calls before every other one.
    """

    start: Times
    end: Times
    rows: Rows | None
    running: Times

    @classmethod
    def of(cls, start: Times, end: Times, rows: Rows | None) -> InCalls:
        """Take some calls, of which all are by time; those that overlap become their union."""
        count = len(start) if rows is None else len(rows)
        running = np.zeros((count + 1) // 2, np.int64)
        reach = intervals.BEFORE_ALL
        for at in range(0, count, AT_ONCE):
            first, last = _chosen(start, end, rows, slice(at, min(at + AT_ONCE, count)))
            if first[0] < reach or (first[1:] < last[:-1]).any():
                own = slice(None) if rows is None else rows
                return cls.of(*intervals.union(start[own], end[own], ordered=True), None)
            reach = last[-1]
            sums = np.add.reduceat(last - first, np.arange(0, len(first), 2))
            running[at // 2 :][: len(sums)] = sums
        running[1:] = np.cumsum(running)[:-1]
        running[:1] = 0
        return cls(start, end, rows, running)

    def between(self, start: Times, end: Times) -> Times:
        """Return how long the thread was in calls in each [start, end), in ns; 0 where end <= start."""
        found = np.zeros(len(start), np.int64)
        if len(self.running) == 0:
            return found
        for at in range(0, len(start), AT_ONCE):
            block = slice(at, at + AT_ONCE)
            first, last = start[block], np.maximum(start[block], end[block])
            low, high = self._begun(np.array([first.min(), last.max()])).tolist()
            near = slice(max(low - 1, 0), high)
            # Questions mostly follow each other as calls do: what they are about is near, and short enough to add up.
            if near.stop - near.start <= NEAR * len(first):
                found[block] = Coverage.of(_chosen(self.start, self.end, self.rows, near)).between(first, last)
            else:
                found[block] = self._before(last) - self._before(first)
        return found

    def meeting(self, of: Intervals) -> Intervals:
        """Return the union of the calls that may meet some members of a union."""
        if len(self.running) == 0 or len(of.start) == 0:
            return EMPTY
        first = np.maximum(self._begun(of.start) - 1, 0)
        some = intervals.consecutive(first, self._begun(of.end) - first)
        return intervals.union(*_chosen(self.start, self.end, self.rows, some), ordered=True)

    def _begun(self, at: Times) -> Times:
        """Return how many of the calls began at or before each moment."""
        before = np.searchsorted(self.start, at, side="right")
        # Of another type than what is searched, numbers would have all of that converted.
        return before if self.rows is None else np.searchsorted(self.rows, before.astype(self.rows.dtype))

    def _before(self, at: Times) -> Times:
        """Return how long the thread was in calls before each moment."""
        begun = self._begun(at)
        last = np.maximum(begun - 1, 0)
        odd = last % 2
        found: Times = self.running[last // 2]
        start, end = _chosen(self.start, self.end, self.rows, last - odd)
        found += (end - start) * odd
        start, end = _chosen(self.start, self.end, self.rows, last)
        found += np.minimum(at, end) - start
        found[begun == 0] = 0
        return found


def _chosen(start: Times, end: Times, rows: Rows | None, some: slice | NDArray[np.integer]) -> Intervals:
    chosen = some if rows is None else rows[some].astype(np.intp)  # converted once
    return Intervals(start[chosen], end[chosen])
