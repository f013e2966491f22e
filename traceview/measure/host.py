"""What each thread was doing, as disjoint unions: the ground of "why did the GPU wait"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times
from traceview.model import ROLES, Trace


@dataclass(frozen=True, slots=True)
class Host:
    """For each thread that called CUDA, one union for each of ROLES; a ns belongs to the first role that has it.

    `overhead` is the union of the profiler's own intervals; it is taken out of every role.
    `start`, `end` and `thread` are the columns of Trace.api. `within` is set on a Host that `inside`
    made: then only what lies inside that union counts, and `free` is the union less `overhead`.
    """

    roles: Mapping[int, tuple[Intervals, ...]]
    overhead: Coverage
    start: Times
    end: Times
    thread: Times
    profiler: Intervals
    within: Coverage | None = None
    free: Coverage | None = None

    def inside(self, within: Intervals) -> Host:
        """Return the same host, seen only inside a union (a device's idle time, say)."""
        roles = {
            thread: tuple(intervals.intersect(union, within) for union in unions)
            for thread, unions in self.roles.items()
        }
        free = Coverage.of(intervals.subtract(within, self.profiler))
        return replace(self, roles=roles, within=Coverage.of(within), free=free)

    def counted(self, at: Times) -> Times:
        """Return how much of all time before each moment counts: all of it, or the part `within`."""
        return at if self.within is None else self.within.before(at)

    def unprofiled(self, at: Times) -> Times:
        """Return the same, less the profiler's own part."""
        return at - self.overhead.before(at) if self.free is None else self.free.before(at)


def host(trace: Trace) -> Host:
    """Collect what every thread of the trace was doing (METRICS.md "Idle gaps", cause 4)."""
    overhead = intervals.union(trace.overhead["start"].to_numpy(), trace.overhead["end"].to_numpy())
    start = trace.api["start"].to_numpy()
    end = trace.api["end"].to_numpy()
    role = trace.api["role"].to_physical().to_numpy()
    thread = trace.api["thread"].to_numpy()
    order = np.argsort(thread, kind="stable")
    edges = np.flatnonzero(np.diff(thread[order], prepend=-1, append=-1)) if len(order) else order
    roles = {}
    for first, last in pairwise(edges):
        rows = order[first:last]
        roles[int(thread[rows[0]])] = _disjoint(start[rows], end[rows], role[rows], overhead)
    return Host(roles, Coverage.of(overhead), start, end, thread, overhead)


def _disjoint(start: Times, end: Times, role: Times, overhead: Intervals) -> tuple[Intervals, ...]:
    taken = overhead
    found = []
    for code in range(len(ROLES)):
        members = role == code
        calls = intervals.union(start[members], end[members], ordered=True)
        found.append(intervals.subtract(calls, taken))
        if code == len(ROLES) - 1 or len(calls.start) == 0:
            continue
        taken = intervals.union(np.concatenate([taken.start, calls.start]), np.concatenate([taken.end, calls.end]))
    return tuple(found)
