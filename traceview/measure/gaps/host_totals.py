"""What threads did while a device was idle, before any moment: what its streams' gaps are attributed by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

import numpy as np

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times
from traceview.measure.host import Calls, Host, Moments


class _InGaps(NamedTuple):
    """A thread in a device's gaps.

    `running` is how long it was in calls in the gaps before each, and in all (one entry more); `calls` has the parts
    inside gaps.
    """

    running: Times
    calls: Calls


@dataclass(frozen=True, slots=True)
class IdleHost:
    """A host, of which only the time inside a device's gaps counts (see host.View)."""

    of: Host
    gaps: Intervals
    idle: Coverage
    profiled: Coverage
    _threads: dict[int, _InGaps] = field(default_factory=dict)
    _making: Lock = field(default_factory=Lock)

    @classmethod
    def inside(cls, of: Host, gaps: Intervals) -> IdleHost:
        """Look at a host inside the gaps of a device."""
        return cls(of, gaps, Coverage.of(gaps), Coverage.of(intervals.intersect(gaps, of.profiler.union())))

    @property
    def profiler(self) -> Coverage:
        """Return the union of the profiler's own intervals."""
        return self.of.profiler

    def moments(self, at: Times) -> Moments:
        """Look up the last gap that began before each moment, -1 for none, and how much idle time lies before it."""
        gap = self.idle.place(at)
        return Moments(at, self.idle.upto(gap, at), gap)

    def roles(self, thread: int, start: Moments, end: Moments) -> Iterator[tuple[int, Times, Times]]:
        """Yield each of ROLES, the rows that have some of it in idle time, and how much (see View)."""
        with self._making:
            mine = self._inside(thread)
        return mine.calls.split(self._held(mine, end) - self._held(mine, start), start.at, end.at, self.profiler)

    def _inside(self, thread: int) -> _InGaps:
        found = self._threads.get(thread)
        if found is None:
            calls = self.of.threads[thread]
            running = np.zeros(len(self.gaps.start) + 1, np.int64)
            for block in intervals.blocks(len(self.gaps.start)):
                running[1:][block] = calls.all.between(self.gaps.start[block], self.gaps.end[block])
            np.cumsum(running, out=running)
            parts = tuple(self._cut(part) for part in calls.parts)
            found = _InGaps(running, Calls(calls.all, parts, self._cut(calls.profiled)))
            self._threads[thread] = found
        return found

    def _cut(self, part: Coverage) -> Coverage:
        return Coverage.of(intervals.intersect(part.union(), self.gaps))

    def _held(self, mine: _InGaps, at: Moments) -> Times:
        """Return the idle time that a thread was in calls before each moment."""
        whole = at.before == self.idle.running[at.gap + 1]
        ended = at.gap + whole  # so many gaps ended before it
        found: Times = mine.running[ended]
        within = np.flatnonzero(at.before - self.idle.running[ended])
        if len(within):
            found[within] += mine.calls.all.between(self.gaps.start[ended[within]], at.at[within])
        return found
