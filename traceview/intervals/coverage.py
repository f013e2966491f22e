"""The length of a union before moments and inside queries, for many at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals.algebra import EMPTY, Intervals
from traceview.intervals.arrays import Times, blocks, index_ranges, is_sorted

MEMBER_SEARCH_RATIO = 32  # when members are this many times fewer than queries, search members in queries


class Coverage(NamedTuple):
    """A union with running lengths, for the length of the union before any moment.

    `starts` are the members' starts. `running` is the length of all members before each member, and the total as one
    more entry.
    """

    starts: Times
    running: Times

    @classmethod
    def from_union(cls, members: Intervals) -> Coverage:
        """Compute the running lengths of a union."""
        running = np.zeros(len(members.start) + 1, np.int64)
        np.subtract(members.end, members.start, out=running[1:])
        np.cumsum(running, out=running)
        return cls(members.start, running)

    def union(self) -> Intervals:
        """Return the union."""
        return Intervals(self.starts, self.starts + np.diff(self.running))

    def member_at(self, moments: Times) -> Times:
        """Return the index of the last member that starts at or before each moment; -1 where there is none."""
        if len(self.starts) == 0 or len(moments) == 0:
            return np.full(len(moments), -1, np.int64)
        low, high = self._member_range(moments)
        index = np.searchsorted(self.starts[low:high], moments, side="right")
        index += low - 1
        return index

    def length_up_to(self, member: NDArray[np.integer], moments: Times) -> Times:
        """Return the length before each moment, in ns, given the `member_at` of each moment."""
        if len(self.starts) == 0 or len(moments) == 0:
            return np.zeros(len(moments), np.int64)
        before: Times = moments - self.starts[member]
        before += self.running[member]
        np.minimum(before, self.running[1:][member], out=before)
        if member.min() < 0:
            before[member < 0] = 0
        return before

    def length_before(self, moments: Times) -> Times:
        """Return the length of the union before each moment, in ns."""
        before = np.zeros(len(moments), np.int64)
        if len(self.starts):
            for block in blocks(len(moments)):
                before[block] = self._block_length_before(moments[block])
        return before

    def length_between(self, start: Times, end: Times) -> Times:
        """Return the covered length of each [start, end), in ns; 0 where end <= start."""
        covered = np.zeros(len(start), np.int64)
        if len(self.starts):
            for block in blocks(len(start)):
                first, last = start[block], end[block]
                after = self._block_length_before(np.maximum(first, last))
                np.subtract(after, self._block_length_before(first), out=covered[block])
        return covered

    def overlapping_rows(self, start: Times, end: Times) -> Times:
        """Return the rows of [start, end) that overlap a member, ascending."""
        if len(self.starts) == 0 or len(start) == 0:
            return EMPTY.start
        if is_sorted(start) and is_sorted(end):
            low, high = self._member_range(np.array([start[0], end[-1]]))
            few = Coverage(self.starts[low:high], self.running[low : high + 1])
            few_members = len(few.starts) * MEMBER_SEARCH_RATIO <= len(start)
            if few_members and (rows := few._search_members(start, end)) is not None:
                return rows
        return np.flatnonzero(self.length_between(start, end))

    def _search_members(self, start: Times, end: Times) -> Times | None:
        """Return `overlapping_rows` of sorted rows; None if the search needs more memory than the rows."""
        first = np.searchsorted(end, self.starts, side="right")
        stop = np.searchsorted(start, self.union().end, side="left")
        count = np.maximum(stop - first, 0)
        if count.sum() > len(start):
            return None
        overlaps = np.zeros(len(start), np.bool_)
        overlaps[index_ranges(first, count)] = True
        return np.flatnonzero(overlaps & (end > start))

    def _block_length_before(self, moments: Times) -> Times:
        low, high = self._member_range(moments)
        few = Coverage(self.starts[low:high], self.running[low : high + 1])
        if len(few.starts) > 1:
            return few.length_up_to(np.searchsorted(few.starts, moments, side="right") - 1, moments)
        if len(few.starts) == 0:
            return np.zeros(len(moments), np.int64)
        before: Times = moments - few.starts
        before += few.running[0]
        return np.clip(before, few.running[0], few.running[1], out=before)

    def _member_range(self, moments: Times) -> tuple[int, int]:
        """Return the slice bounds of the members that can contain the moments.

        Moments mostly ascend, so a block of them needs few members, often one.
        """
        low, high = np.searchsorted(self.starts, (moments.min(), moments.max()), side="right").tolist()
        return max(low - 1, 0), high


def covered_length(members: Intervals, start: Times, end: Times) -> Times:
    """Return the length of each [start, end) that a union covers, in ns; 0 where end <= start.

    The queries may overlap each other and come in any order.
    """
    return Coverage.from_union(members).length_between(start, end)
