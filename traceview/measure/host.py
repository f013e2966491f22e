"""What each thread was doing, as disjoint unions: the ground of "why did the GPU wait"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times
from traceview.model import ROLES, Trace


class View(Protocol):
    """The time that counts, and what threads did of it: all of it (Host), or a device's idle time (idle_host.py)."""

    @property
    def profiler(self) -> Intervals:
        """Return the union of the profiler's own intervals."""

    def before(self, at: Times) -> tuple[Times, Times]:
        """Return how much of all time before each moment counts, and the same less the profiler's own part."""

    def held(self, thread: int, role: int, start: Times, end: Times) -> Times | None:
        """Return how much of each [start, end) counts and is a thread's, in one of ROLES; None where it has none."""


@dataclass(frozen=True, slots=True)
class Host:
    """For each thread that called CUDA, one union for each of ROLES; a ns belongs to the first role that has it.

    `overhead` is the union of the profiler's own intervals; it is taken out of every role.
    `start`, `end` and `thread` are the columns of Trace.api.
    """

    roles: Mapping[int, tuple[Coverage, ...]]
    overhead: Coverage
    start: Times
    end: Times
    thread: Times
    profiler: Intervals

    def before(self, at: Times) -> tuple[Times, Times]:
        """Return all time before each moment, and the same less the profiler's own part."""
        return at, at - self.overhead.before(at) if len(self.overhead.starts) else at

    def held(self, thread: int, role: int, start: Times, end: Times) -> Times | None:
        """Return how much of each [start, end) is a thread's, in one of ROLES; None where it has none."""
        union = self.roles[thread][role]
        return union.between(start, end) if len(union.starts) else None


def host(trace: Trace) -> Host:
    """Collect what every thread of the trace was doing (METRICS.md "Idle gaps", cause 4)."""
    overhead = intervals.union(trace.overhead["start"].to_numpy(), trace.overhead["end"].to_numpy())
    start = trace.api["start"].to_numpy()
    end = trace.api["end"].to_numpy()
    role = trace.api["role"].to_physical().to_numpy()
    thread = trace.api["thread"].to_numpy()
    callers = np.flatnonzero(np.bincount(thread)).tolist() if len(thread) else []
    roles = {}
    for one in callers:
        rows = slice(None) if len(callers) == 1 else np.flatnonzero(thread == one)
        roles[one] = _disjoint(start[rows], end[rows], role[rows], overhead)
    return Host(roles, Coverage.of(overhead), start, end, thread, overhead)


def _disjoint(start: Times, end: Times, role: NDArray[np.uint8], overhead: Intervals) -> tuple[Coverage, ...]:
    # Mostly a call returns before the next one begins: then no two roles share a ns, and calls are a union as they are.
    apart = bool((end[:-1] <= start[1:]).all())
    taken = overhead
    found = []
    for code in range(len(ROLES)):
        members = np.flatnonzero(role == code)
        calls = Intervals(start[members], end[members])
        calls = calls if apart else intervals.union(*calls, ordered=True)
        found.append(Coverage.of(intervals.subtract(calls, taken)))
        if apart or code == len(ROLES) - 1 or len(calls.start) == 0:
            continue
        taken = intervals.union(np.concatenate([taken.start, calls.start]), np.concatenate([taken.end, calls.end]))
    return tuple(found)
