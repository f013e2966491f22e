"""Idle gaps of devices and streams: the state of each host thread over time, and the cause of each nanosecond.

Each ns of each gap has exactly one cause (docs/definitions.md "Idle gaps"). The state of a thread is profiler overhead,
a CUDA call of some role, or other code.

Gaps are attributed by cumulative times. In the gaps of streams only the time inside a device's idle gaps counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Rows, Times, values_at
from traceview.measure.activity import Activity
from traceview.measure.shared_work import launch_rows, measuring_threads
from traceview.model.analysis import CAUSES, Gaps
from traceview.model.trace import ROLES, Trace

OTHER_CALLS = len(ROLES) - 1  # the last role, which most calls have


class ThreadCalls(NamedTuple):
    """When a thread was in CUDA calls.

    `all` has all calls. Each ns in calls belongs to the profiler (`profiled`), else to the first role that has it:
    `by_role` has one disjoint union for each role but the last, which has the rest.
    """

    all: Coverage
    by_role: tuple[Coverage, ...]
    profiled: Coverage

    @classmethod
    def build(cls, start: Times, end: Times, role: NDArray[np.uint8], profiler: Intervals) -> ThreadCalls:
        """Split the calls of a thread, in the order of `start`; `role` has codes of ROLES."""
        calls = Coverage.from_union(intervals.union(start, end, ordered=True))
        taken = profiler
        by_role = []
        for code in range(OTHER_CALLS):
            some = np.flatnonzero(role == code)
            role_union = intervals.union(start[some], end[some], ordered=True)
            by_role.append(Coverage.from_union(intervals.subtract(role_union, taken)))
            if len(some):
                both = (np.concatenate(sides) for sides in zip(taken, role_union, strict=True))
                taken = intervals.union(*both)
        profiled = intervals.intersect(calls.members_near(profiler), profiler)
        return cls(calls, tuple(by_role), Coverage.from_union(profiled))


class ThreadStates(NamedTuple):
    """The states of threads that called CUDA in the time that counts: in all time, or in `counted`."""

    threads: Mapping[int, ThreadCalls]
    profiler: Coverage
    counted: Coverage | None = None

    @classmethod
    def from_trace(cls, trace: Trace) -> ThreadStates:
        """Collect the states of every thread (docs/definitions.md "Idle gaps", cause 4)."""
        profiler = intervals.union(trace.overhead["start"].to_numpy(), trace.overhead["end"].to_numpy())
        start, end, thread = (trace.api[name].to_numpy() for name in ("start", "end", "thread"))
        role = trace.api["role"].to_physical().to_numpy()
        threads = {}
        for caller, rows in intervals.rows_by_code(thread):
            own = intervals.adjoining(rows)
            threads[caller] = ThreadCalls.build(start[own], end[own], role[own], profiler)
        return cls(threads, Coverage.from_union(profiler))

    def during(self, counted: Intervals, threads: Collection[int]) -> ThreadStates:
        """Return the states of some threads, of which only the time inside a union counts."""

        def clip(times: Coverage) -> Coverage:
            return Coverage.from_union(intervals.intersect(times.union(), counted))

        chosen = {
            thread: ThreadCalls(clip(calls.all), tuple(map(clip, calls.by_role)), clip(calls.profiled))
            for thread, calls in self.threads.items()
            if thread in threads
        }
        return ThreadStates(chosen, clip(self.profiler), Coverage.from_union(counted))

    def counted_before(self, moments: Times) -> Times:
        """Return the counted time before each moment, from any common origin."""
        return moments if self.counted is None else self.counted.length_before(moments)

    def role_times(self, thread: int, start: Times, end: Times) -> Iterator[tuple[int, Times, Times]]:
        """Yield each role (index into ROLES), the rows of [start, end) in which a thread has it, and the ns in each.

        Only counted time without profiler overhead is included.
        """
        calls = self.threads[thread]
        in_calls = calls.all.length_between(start, end)
        profiled = self.profiler.overlapping_rows(start, end)
        in_calls[profiled] -= calls.profiled.length_between(start[profiled], end[profiled])
        for role, times in enumerate(calls.by_role):
            rows = times.overlapping_rows(start, end)
            length = times.length_between(start[rows], end[rows])
            in_calls[rows] -= length
            yield role, rows, length
        rows = np.flatnonzero(in_calls)
        yield OTHER_CALLS, rows, in_calls[rows]


PROFILER, QUEUED, LAUNCH = (CAUSES.index(name) for name in ("profiler", "queued", "launch"))
HOST, UNKNOWN = CAUSES.index("host"), CAUSES.index("unknown")
ROLE_CAUSES = tuple(CAUSES.index(role) for role in ROLES)

Integer = TypeVar("Integer", bound=np.signedinteger)


class IdleGaps(NamedTuple):
    """The gaps of one device, the operation (row of Trace.operations, -1 for none) that ends each, and the causes.

    `causes` has the ns of each cause in each gap; shape (len(CAUSES), gaps).
    """

    gaps: Intervals
    operation: Rows
    causes: NDArray[np.int64]


class _LaunchColumns(NamedTuple):
    """The columns of Trace.api that causes depend on, and the call that launched each operation (-1 for none).

    The calls of operations on a device whose clock cannot be compared with the host's are unknown.
    """

    start: Times
    end: Times
    thread: NDArray[np.int16]
    launch: Rows

    @classmethod
    def from_trace(cls, trace: Trace) -> _LaunchColumns:
        start, end, thread = (trace.api[name].to_numpy() for name in ("start", "end", "thread"))
        launch = launch_rows(trace.operations)
        disagree = trace.devices["clock_offset"].is_null() & (trace.devices["clock_contradictions"] > 0)
        if disagree.any():
            unknown = disagree.fill_null(value=False).to_numpy()[trace.operations["device"].to_numpy()]
            launch = np.where(unknown, launch.dtype.type(-1), launch)
        return cls(start, end, thread, launch)

    def launch_of(self, operation: Rows) -> Rows:
        return values_at(self.launch, operation, -1)


def launching_threads(trace: Trace, operation: Rows) -> NDArray[np.int16]:
    """Return the thread (row of Trace.threads) that launched each operation (row, -1 for none); -1 for none."""
    calls = _LaunchColumns.from_trace(trace)
    return values_at(calls.thread, calls.launch_of(operation), -1)


def attribute(trace: Trace, states: ThreadStates, start: Times, end: Times, operation: Rows) -> NDArray[np.int64]:
    """Split idle pieces [start, end) by cause. An operation (row, -1 for none) ends each piece.

    Returns ns in an array of shape (len(CAUSES), pieces). A column adds up to the counted length of its piece (see
    ThreadStates). Pieces may overlap each other.
    """
    # Rows of causes that do not occur are never written, so the system gives them no memory.
    causes = np.zeros((len(CAUSES), len(start)), np.int64)
    calls = _LaunchColumns.from_trace(trace)

    def attribute_block(block: slice) -> None:
        call = calls.launch_of(operation[block]).astype(np.int64)
        _attribute_block(states, calls, start[block], end[block], call, causes[:, block])

    with measuring_threads(len(start)) as pool:  # NumPy releases the interpreter lock
        deque(pool.map(attribute_block, intervals.blocks(len(start))), maxlen=0)
    return causes


def _attribute_block(
    states: ThreadStates, calls: _LaunchColumns, start: Times, end: Times, call: Times, causes: NDArray[np.int64]
) -> None:
    thread = values_at(calls.thread, call, -1)
    call_start = np.minimum(np.maximum(values_at(calls.start, call, 0), start), end)
    unknown = np.flatnonzero(thread < 0)
    call_end = np.minimum(np.maximum(values_at(calls.end, call, 0), call_start), end)
    call_start[unknown] = call_end[unknown] = start[unknown]
    at_start, at_call, at_return, at_end = map(states.counted_before, (start, call_start, call_end, end))
    np.subtract(at_end, at_return, out=causes[QUEUED])
    np.subtract(at_return, at_call, out=causes[LAUNCH])
    np.subtract(at_call, at_start, out=causes[HOST])
    _move_profiler_time(states, (start, call_start, call_end, end), causes)
    if len(unknown):
        causes[UNKNOWN, unknown] = causes[QUEUED, unknown]
        causes[QUEUED, unknown] = 0
    waits = np.flatnonzero(call_start > start)
    waiting = thread[waits]
    for caller in np.flatnonzero(np.bincount(waiting)).tolist():
        rows = waits[waiting == caller]
        for role, some, ns in states.role_times(caller, start[rows], call_start[rows]):
            causes[ROLE_CAUSES[role], rows[some]] = ns
            causes[HOST, rows[some]] -= ns


def _move_profiler_time(
    states: ThreadStates, moments: tuple[Times, Times, Times, Times], causes: NDArray[np.int64]
) -> None:
    """Move the profiler's overhead from host, launch and queued to its own cause.

    `moments` are each piece's start, the launch call's start and end, and the piece's end.
    """
    rows = states.profiler.overlapping_rows(moments[0], moments[-1])
    if len(rows) == 0:
        return
    before = [states.profiler.length_before(at[rows]) for at in moments]
    causes[PROFILER, rows] = before[-1] - before[0]
    for cause, start, end in zip((HOST, LAUNCH, QUEUED), before, before[1:], strict=False):
        causes[cause, rows] -= end - start


def find_idle_gaps(trace: Trace, threads: ThreadStates, device: Activity) -> IdleGaps:
    """Find the gaps of one device and attribute them."""
    gaps, operation = device.idle_gaps()
    return IdleGaps(gaps, operation, attribute(trace, threads, gaps.start, gaps.end, operation))


def device_gaps(trace: Trace, idle: IdleGaps) -> Gaps:
    """Return the gaps of one device as a frame (see model.Gaps for its columns) and sums."""
    sums = {name: int(values.sum()) for name, values in zip(CAUSES, idle.causes, strict=True)}
    frame = pl.DataFrame(
        {
            "start": idle.gaps.start,
            "end": idle.gaps.end,
            "operation": _nullable_rows(idle.operation),
            "thread": _nullable_rows(launching_threads(trace, idle.operation)),
        }
    ).with_columns(
        # A cause that does not occur is stored as one literal zero.
        *(
            pl.Series(name, values) if sums[name] else pl.lit(0, pl.Int64).alias(name)
            for name, values in zip(CAUSES, idle.causes, strict=True)
        )
    )
    return Gaps(count=len(idle.gaps.start), total_ns=intervals.length(idle.gaps), causes=sums, frame=frame)


def _nullable_rows(rows: NDArray[Integer]) -> pl.Series:
    """Return rows as a column with null for -1; without a copy if there is no -1."""
    column = pl.Series(rows)
    return column.set(column < 0, None) if len(rows) and rows.min() < 0 else column
