"""The time that a thread spends in CUDA calls, from the trace's own columns, without a copy of millions of calls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import EMPTY, Coverage, Intervals, Rows, Times

BLOCK = 1 << 14  # calls (an even number) or queries in a block: temporary arrays stay small
MAX_CALLS_PER_QUERY = 16  # add up all calls near a block of queries if there are at most this many for each query


@dataclass(frozen=True, slots=True)
class CallTimeIndex:
    """The CUDA calls of one thread: `rows` of `start` and `end` (None: all), ordered by time, without overlaps.

    `running` is the length of all calls before every second call.
    """

    start: Times
    end: Times
    rows: Rows | None
    running: Times

    @classmethod
    def build(cls, start: Times, end: Times, rows: Rows | None) -> CallTimeIndex:
        """Index calls that are ordered by start. Calls that overlap are replaced by their union."""
        count = len(start) if rows is None else len(rows)
        running = np.zeros((count + 1) // 2, np.int64)
        reach = intervals.BEFORE_ALL
        for index in range(0, count, BLOCK):
            first, last = _select_calls(start, end, rows, slice(index, min(index + BLOCK, count)))
            if first[0] < reach or (first[1:] < last[:-1]).any():
                own = slice(None) if rows is None else rows
                return cls.build(*intervals.union(start[own], end[own], ordered=True), None)
            reach = last[-1]
            sums = np.add.reduceat(last - first, np.arange(0, len(first), 2))
            running[index // 2 :][: len(sums)] = sums
        running[1:] = np.cumsum(running)[:-1]
        running[:1] = 0
        return cls(start, end, rows, running)

    def length_between(self, start: Times, end: Times) -> Times:
        """Return how long the thread was in calls in each [start, end), in ns; 0 where end <= start."""
        in_calls = np.zeros(len(start), np.int64)
        if len(self.running) == 0:
            return in_calls
        for index in range(0, len(start), BLOCK):
            block = slice(index, index + BLOCK)
            first, last = start[block], np.maximum(start[block], end[block])
            low, high = self._count_started(np.array([first.min(), last.max()])).tolist()
            near = slice(max(low - 1, 0), high)
            # Queries mostly ascend as calls do, so the calls near a block are few enough to add up.
            if near.stop - near.start <= MAX_CALLS_PER_QUERY * len(first):
                calls = _select_calls(self.start, self.end, self.rows, near)
                in_calls[block] = Coverage.from_union(calls).length_between(first, last)
            else:
                in_calls[block] = self._length_before(last) - self._length_before(first)
        return in_calls

    def calls_near(self, members: Intervals) -> Intervals:
        """Return the union of the calls that may overlap the members of a union."""
        if len(self.running) == 0 or len(members.start) == 0:
            return EMPTY
        first = np.maximum(self._count_started(members.start) - 1, 0)
        some = intervals.index_ranges(first, self._count_started(members.end) - first)
        return intervals.union(*_select_calls(self.start, self.end, self.rows, some), ordered=True)

    def _count_started(self, moments: Times) -> Times:
        """Return the number of calls that start at or before each moment."""
        before = np.searchsorted(self.start, moments, side="right")
        # searchsorted converts all of `rows` unless both arguments have its type.
        return before if self.rows is None else np.searchsorted(self.rows, before.astype(self.rows.dtype))

    def _length_before(self, moments: Times) -> Times:
        """Return how long the thread was in calls before each moment."""
        started = self._count_started(moments)
        last = np.maximum(started - 1, 0)
        odd = last % 2
        before: Times = self.running[last // 2]
        start, end = _select_calls(self.start, self.end, self.rows, last - odd)
        before += (end - start) * odd
        start, end = _select_calls(self.start, self.end, self.rows, last)
        before += np.minimum(moments, end) - start
        before[started == 0] = 0
        return before


def _select_calls(start: Times, end: Times, rows: Rows | None, some: slice | NDArray[np.integer]) -> Intervals:
    chosen = some if rows is None else rows[some].astype(np.intp)  # one conversion for both columns
    return Intervals(start[chosen], end[chosen])
