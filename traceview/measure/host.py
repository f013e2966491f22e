"""What each thread was doing, as disjoint unions: the ground of "why did the GPU wait"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Rows, Times
from traceview.measure.gaps.call_times import InCalls
from traceview.model.trace import ROLES, Trace

ANY_OTHER = len(ROLES) - 1  # the role of most calls by far


class Moments(NamedTuple):
    """Moments, how much of the time that counts lies before each, and the last gap that began (see IdleHost)."""

    at: Times
    before: Times
    gap: Times

    def of(self, rows: Times) -> Moments:
        """Return some of them."""
        return Moments(self.at[rows], self.before[rows], self.gap[rows])


class View(Protocol):
    """The time that counts, and what threads did of it: all of it (Host), or a device's idle time (idle_host.py)."""

    @property
    def profiler(self) -> Coverage:
        """Return the union of the profiler's own intervals."""

    @property
    def profiled(self) -> Coverage:
        """Return the profiler's part of the time that counts."""

    def moments(self, at: Times) -> Moments:
        """Look up how much of all time before each moment counts."""

    def roles(self, thread: int, start: Moments, end: Moments) -> Iterator[tuple[int, Times, Times]]:
        """Yield each of ROLES, the rows of [start, end) in which a thread had some of it, and how much.

        Only what counts is meant, less the profiler's own part.
        """


@dataclass(frozen=True, slots=True)
class Calls:
    """When a thread was in calls: in `all`, and of it what is each of ROLES' but the last, or the profiler's.

    A ns belongs to the profiler, else to the first role that has it: the parts share none, and the last role has
    what they leave.
    """

    all: InCalls
    parts: tuple[Coverage, ...]
    profiled: Coverage

    @classmethod
    def of(
        cls, start: Times, end: Times, role: NDArray[np.uint8], rows: Rows | None, profiler: Intervals
    ) -> Calls:
        """Return a thread's calls, `rows` (None: all) of those in order of `start`, each with a code of ROLES."""
        every = InCalls.of(start, end, rows)
        own = role if rows is None else role[rows]
        taken = profiler
        parts = []
        for code in range(ANY_OTHER):
            some = np.flatnonzero(own == code)
            chosen = some if rows is None else rows[some]
            calls = intervals.union(start[chosen], end[chosen], ordered=True)
            parts.append(Coverage.of(intervals.subtract(calls, taken)))
            if len(some):
                both = (np.concatenate(sides) for sides in zip(taken, calls, strict=True))
                taken = intervals.union(*both)
        return cls(every, tuple(parts), Coverage.of(intervals.intersect(every.meeting(profiler), profiler)))

    def split(self, held: Times, start: Times, end: Times, profiler: Coverage) -> Iterator[tuple[int, Times, Times]]:
        """Yield each role, the rows of [start, end) that have some of it, and the ns of each.

        `held` is what all calls held of [start, end), and is changed; `profiler` knows which rows it met.
        """
        met = profiler.meeting(start, end)
        held[met] -= self.profiled.between(start[met], end[met])
        for role, part in enumerate(self.parts):
            rows = part.meeting(start, end)
            length = part.between(start[rows], end[rows])
            held[rows] -= length
            yield role, rows, length
        rows = np.flatnonzero(held)
        yield ANY_OTHER, rows, held[rows]


@dataclass(frozen=True, slots=True)
class Host:
    """What every thread that called CUDA was doing, at any time."""

    threads: Mapping[int, Calls]
    profiler: Coverage

    @property
    def profiled(self) -> Coverage:
        """Return the profiler's part of all time."""
        return self.profiler

    def moments(self, at: Times) -> Moments:
        """Return the moments: all time before each counts."""
        return Moments(at, at, at)

    def roles(self, thread: int, start: Moments, end: Moments) -> Iterator[tuple[int, Times, Times]]:
        """Yield each of ROLES, the rows that have some of it, and how much (see View)."""
        calls = self.threads[thread]
        return calls.split(calls.all.between(start.at, end.at), start.at, end.at, self.profiler)


def host(trace: Trace) -> Host:
    """Collect what every thread of the trace was doing (METRICS.md "Idle gaps", cause 4)."""
    profiler = intervals.union(trace.overhead["start"].to_numpy(), trace.overhead["end"].to_numpy())
    start, end, thread = (trace.api[name].to_numpy() for name in ("start", "end", "thread"))
    role = trace.api["role"].to_physical().to_numpy()
    callers = np.flatnonzero(np.bincount(thread)).tolist() if len(thread) else []
    threads = {}
    for one in callers:
        rows = None if len(callers) == 1 else intervals.rows_where(thread == one)
        threads[one] = Calls.of(start, end, role, rows, profiler)
    return Host(threads, Coverage.of(profiler))
