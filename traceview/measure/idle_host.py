"""What threads did while a device was idle, before any moment: what its streams' gaps are attributed by."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times
from traceview.measure.host import Host

FEW = 4  # a union of so many times fewer members than there are gaps is cut to them; of others each gap is asked


@dataclass(frozen=True, slots=True)
class IdleHost:
    """A host, of which only the time inside a device's gaps counts (see host.View)."""

    of: Host
    gaps: Intervals
    idle: Coverage
    profiled: Coverage  # the profiler's part of the gaps
    _parts: dict[tuple[int, int], Coverage | Times] = field(default_factory=dict)
    _making: Lock = field(default_factory=Lock)

    @classmethod
    def inside(cls, of: Host, gaps: Intervals) -> IdleHost:
        """Look at a host inside the gaps of a device."""
        return cls(of, gaps, Coverage.of(gaps), Coverage.of(intervals.intersect(gaps, of.profiler)))

    @property
    def profiler(self) -> Intervals:
        """Return the union of the profiler's own intervals."""
        return self.of.profiler

    def before(self, at: Times) -> tuple[Times, Times]:
        """Return the idle time before each moment, and the same less the profiler's own part."""
        idle = self.idle.before(at)
        return idle, idle - self.profiled.before(at) if len(self.profiled.starts) else idle

    def held(self, thread: int, role: int, start: Times, end: Times) -> Times | None:
        """Return how much idle time of each [start, end) is a thread's, in one of ROLES; None where it has none."""
        union = self.of.roles[thread][role]
        if len(union.starts) == 0:
            return None
        with self._making:
            part = self._part(thread, role, union)
        if isinstance(part, Coverage):
            return part.between(start, end)
        before_end: Times = self._before(union, part, np.maximum(start, end))
        before_end -= self._before(union, part, start)
        return before_end

    def _part(self, thread: int, role: int, union: Coverage) -> Coverage | Times:
        found = self._parts.get((thread, role))
        if found is None:
            if len(union.starts) * FEW < len(self.gaps.start):
                found = Coverage.of(intervals.intersect(Intervals(union.starts, union.ends[1:]), self.gaps))
            else:
                running = np.zeros(len(self.gaps.start) + 1, np.int64)
                np.cumsum(union.between(*self.gaps), out=running[1:])
                found = running
            self._parts[thread, role] = found
        return found

    def _before(self, union: Coverage, running: Times, at: Times) -> Times:
        """Return the union's part inside the gaps before each moment; `running` is that before each gap."""
        if len(self.gaps.start) == 0:
            return np.zeros(len(at), np.int64)
        after = np.searchsorted(self.gaps.start, at, side="right")
        gap = np.maximum(after - 1, 0)
        start = self.gaps.start[gap]
        # Before the first gap there is nothing; in or after a gap, its own part up to the moment or its end.
        stop = np.where(after > 0, np.minimum(at, self.gaps.end[gap]), start)
        found: Times = running[gap] + union.between(start, stop)
        return found
