"""Idle gaps of devices: the state of each host thread over time, and the cause of each nanosecond.

Each ns of each gap has exactly one cause (docs/definitions.md "Idle gaps"). The state of a thread is profiler overhead,
a CUDA call of some role, or other code.

Gaps are attributed by cumulative times.
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
from traceview.measure.shared_work import codes_of, launch_rows, measuring_threads, once_per_frame
from traceview.model.analysis import CAUSES, CHANGES, Gaps
from traceview.model.trace import ROLES, Trace

OTHER_CALLS = len(ROLES) - 1  # the last role, which most calls have
MEMORY_ROLE = ROLES.index("memory")
MIN_LOCK = 1_000_000  # ns; a call on memory that takes as long holds the driver's lock, for which other launches wait


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
    """The states of threads that called CUDA.

    `locked` is when other threads of a thread's process are in long calls on memory; threads without such are missing.
    """

    threads: Mapping[int, ThreadCalls]
    profiler: Coverage
    locked: Mapping[int, Coverage]

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
        return cls(threads, Coverage.from_union(profiler), _locked(trace.api, threads, profiler))

    def role_times(self, thread: int, start: Times, end: Times) -> Iterator[tuple[int, Times, Times]]:
        """Yield each role (index into ROLES), the rows of [start, end) in which a thread has it, and the ns in each.

        Only time without profiler overhead is included.
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


def _locked(api: pl.DataFrame, threads: Collection[int], profiler: Intervals) -> dict[int, Coverage]:
    """Return ThreadStates.locked."""
    rows = np.flatnonzero(codes_of(api, "role") == MEMORY_ROLE)
    rows = rows[api["end"].to_numpy()[rows] - api["start"].to_numpy()[rows] >= MIN_LOCK]
    if not len(rows):
        return {}
    long, locked = api.select("start", "end", "thread", "process")[rows], {}
    processes = dict(api.select("thread", "process").unique().iter_rows())
    for (process,), own in long.group_by("process"):
        callers = set(own["thread"].to_list())
        every = _union_without(own, -1, profiler)
        for thread in (thread for thread in threads if processes[thread] == process):
            others = _union_without(own, thread, profiler) if thread in callers else every
            if len(others.starts):
                locked[thread] = others
    return locked


def _union_without(calls: pl.DataFrame, thread: int, without: Intervals) -> Coverage:
    """Return when threads but one are in some calls, without other times."""
    others = calls.filter(pl.col("thread") != thread)
    times = intervals.union(others["start"].to_numpy(), others["end"].to_numpy())
    return Coverage.from_union(intervals.subtract(times, without))


PROFILER, QUEUED, LAUNCH = (CAUSES.index(name) for name in ("profiler", "queued", "launch"))
HOST, UNKNOWN = CAUSES.index("host"), CAUSES.index("unknown")
ROLE_CAUSES = tuple(CAUSES.index(role) for role in ROLES)

Integer = TypeVar("Integer", bound=np.signedinteger)


class _LaunchColumns(NamedTuple):
    """The columns of Trace.api that causes depend on, and the call that launched each operation (-1 for none).

    The calls of operations on a device whose clock cannot be compared with the host's are unknown.
    """

    start: Times
    end: Times
    thread: NDArray[np.int16]
    launch: Rows
    device: NDArray[np.int16]
    disagree: NDArray[np.bool_]  # by device

    @classmethod
    def from_trace(cls, trace: Trace) -> _LaunchColumns:
        start, end, thread = (trace.api[name].to_numpy() for name in ("start", "end", "thread"))
        device, disagree = trace.operations["device"].to_numpy(), clocks_disagree(trace.devices)
        return cls(start, end, thread, launch_rows(trace.operations), device, disagree)

    def launch_of(self, operation: Rows) -> Rows:
        launch = values_at(self.launch, operation, -1)
        if self.disagree.any():
            launch[self.disagree[values_at(self.device, operation, 0)]] = -1
        return launch


@once_per_frame
def clocks_disagree(devices: pl.DataFrame) -> NDArray[np.bool_]:
    """Return the devices whose clocks cannot be compared with the host's."""
    unknown = devices["clock_offset"].is_null() & (devices["clock_contradictions"] > 0)
    return unknown.fill_null(value=False).to_numpy()


def launching_threads(trace: Trace, operation: Rows) -> NDArray[np.int16]:
    """Return the thread (row of Trace.threads) that launched each operation (row, -1 for none); -1 for none."""
    calls = _LaunchColumns.from_trace(trace)
    return values_at(calls.thread, calls.launch_of(operation), -1)


def attribute(trace: Trace, states: ThreadStates, start: Times, end: Times, operation: Rows) -> list[Times]:
    """Split idle pieces [start, end) by cause. An operation (row, -1 for none) ends each piece.

    Returns the ns of each of CAUSES in each piece, which add up to its length. Pieces may overlap each other.
    """
    # An array for each cause, so that those of causes that do not occur can go.
    causes = [np.zeros(len(start), np.int64) for _ in CAUSES]
    calls = _LaunchColumns.from_trace(trace)

    def attribute_block(block: slice) -> None:
        call = calls.launch_of(operation[block]).astype(np.int64)
        _attribute_block(states, calls, start[block], end[block], call, [each[block] for each in causes])

    with measuring_threads(len(start)) as pool:  # NumPy releases the interpreter lock
        deque(pool.map(attribute_block, intervals.blocks(len(start))), maxlen=0)
    return causes


def _attribute_block(
    states: ThreadStates, calls: _LaunchColumns, start: Times, end: Times, call: Times, causes: list[Times]
) -> None:
    thread = values_at(calls.thread, call, -1)
    call_start = np.minimum(np.maximum(values_at(calls.start, call, 0), start), end)
    unknown = np.flatnonzero(thread < 0)
    call_end = np.minimum(np.maximum(values_at(calls.end, call, 0), call_start), end)
    call_start[unknown] = call_end[unknown] = start[unknown]
    np.subtract(end, call_end, out=causes[QUEUED])
    np.subtract(call_end, call_start, out=causes[LAUNCH])
    np.subtract(call_start, start, out=causes[HOST])
    _move_profiler_time(states, (start, call_start, call_end, end), causes)
    if len(unknown):
        causes[UNKNOWN][unknown] = causes[QUEUED][unknown]
        causes[QUEUED][unknown] = 0
    waits = np.flatnonzero(call_start > start)
    waiting = thread[waits]
    for caller, own in intervals.rows_by_code(waiting):
        rows = waits[own]
        for role, some, ns in states.role_times(caller, start[rows], call_start[rows]):
            causes[ROLE_CAUSES[role]][rows[some]] = ns
            causes[HOST][rows[some]] -= ns
    launching = np.flatnonzero(call_end > call_start)
    for caller, own in intervals.rows_by_code(thread[launching]) if states.locked else ():
        if caller in states.locked:
            rows = launching[own]
            ns = states.locked[caller].length_between(call_start[rows], call_end[rows])
            causes[LAUNCH][rows] -= ns
            causes[ROLE_CAUSES[MEMORY_ROLE]][rows] += ns


def _move_profiler_time(states: ThreadStates, moments: tuple[Times, Times, Times, Times], causes: list[Times]) -> None:
    """Move the profiler's overhead from host, launch and queued to its own cause.

    `moments` are each piece's start, the launch call's start and end, and the piece's end.
    """
    rows = states.profiler.overlapping_rows(moments[0], moments[-1])
    if len(rows) == 0:
        return
    before = [states.profiler.length_before(at[rows]) for at in moments]
    causes[PROFILER][rows] = before[-1] - before[0]
    for cause, start, end in zip((HOST, LAUNCH, QUEUED), before, before[1:], strict=False):
        causes[cause][rows] -= end - start


def device_gaps(trace: Trace, threads: ThreadStates, device: Activity) -> Gaps:
    """Return the gaps of one device with their causes, as a frame (see model.Gaps for its columns) and sums."""
    gaps, operation = device.idle_gaps()
    causes = attribute(trace, threads, *gaps, operation)
    sums = {name: int(values.sum()) for name, values in zip(CAUSES, causes, strict=True)}
    before, changes = _work_before(trace, device, gaps.start, operation)
    frame = pl.DataFrame(
        {
            "start": gaps.start,
            "end": gaps.end,
            "before": _nullable_rows(before),
            "operation": _nullable_rows(operation),
            "changes": changes,
            "thread": _nullable_rows(launching_threads(trace, operation)),
        }
    ).with_columns(
        # A cause that does not occur is stored as one literal zero.
        *(
            pl.Series(name, values) if sums[name] else pl.lit(0, pl.Int64).alias(name)
            for name, values in zip(CAUSES, causes, strict=True)
        )
    )
    return Gaps(count=len(frame), total_ns=intervals.length(gaps), causes=sums, frame=frame)


def _work_before(trace: Trace, device: Activity, start: Times, operation: Rows) -> tuple[Rows, NDArray[np.uint8]]:
    """Return the operation that ends last before each gap, -1 for none, and what changes to the one after (CHANGES)."""
    rows, end = device.nonempty_rows, trace.operations["end"].to_numpy()
    known = intervals.adjoining(rows)
    after = operation - known.start if isinstance(known, slice) else np.searchsorted(rows, operation)
    after[operation < 0] = len(rows)  # the end of a window has no operation after it
    before = values_at(rows, after - 1, -1)
    if (late := np.flatnonzero(end[before] != start)).size:  # operations overlap, or the gap begins with the window
        until = end[known]
        latest = np.maximum.accumulate(until)
        last = np.maximum.accumulate(np.where(until == latest, np.arange(len(rows), dtype=np.int32), 0))
        before[late] = values_at(rows, values_at(last, after[late] - 1, -1), -1)
    changes = np.zeros(len(before), np.uint8)
    several = len(trace.streams) > 1, len(trace.devices["processes"][device.device]) > 1
    for code, differ in enumerate(several, 1):
        if differ:
            values = trace.operations[CHANGES[code]].to_numpy()
            changes[values[before] != values[operation]] = code
    changes[(before < 0) | (operation < 0)] = 0
    return before, changes


def _nullable_rows(rows: NDArray[Integer]) -> pl.Series:
    """Return rows as a column with null for -1; without a copy if there is no -1."""
    column = pl.Series(rows)
    return column.set(column < 0, None) if len(rows) and rows.min() < 0 else column
