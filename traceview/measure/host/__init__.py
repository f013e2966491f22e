"""What the host did in idle time of a GPU: the state of its threads, and the source lines where they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import EMPTY, Coverage, Intervals, Times
from traceview.measure.base import CaptureInput, Measure
from traceview.measure.gaps import ThreadStates
from traceview.measure.host.lines import (
    IdleStacks,
    StackTimes,
    ThreadIdle,
    idle_by_thread,
    idle_cells,
    idle_stacks,
    line_times,
    measure_lines,
    stack_times,
)
from traceview.measure.host.stack_cells import CALLS, PYTHON, SAMPLES, StackIndex
from traceview.model.analysis import DeviceUse, Gaps, HostStates
from traceview.model.columns import Table
from traceview.model.frozen import dataclass
from traceview.model.rows import SourceLine
from traceview.model.stacks import EVENT_STATES, StackFrame
from traceview.model.trace import Trace, Window


class StateIndex:
    """When each thread had each of EVENT_STATES, from events and stacks. Each is computed at its first use."""

    def __init__(self, stacks: StackIndex) -> None:
        self._stacks = stacks
        self._times: dict[tuple[int, str], Intervals] = {}

    def times(self, thread: int, state: str) -> Intervals:
        """Return the union of the times in which a thread has a state."""
        key = thread, state
        if key not in self._times:
            pieces = [*self._of_events(thread, state), *self._of_stacks(thread, state), EMPTY]
            self._times[key] = intervals.union(*(np.concatenate(sides) for sides in zip(*pieces, strict=True)))
        return self._times[key]

    def waits(self, thread: int, during: Intervals) -> Iterator[tuple[str, str, int]]:
        """Yield the calls in which a thread waits during a union, what it waits for ("": unknown), and the ns in each.

        A call inside another counts once, for the outer one.
        """
        calls = self._events.get((thread, "waiting"))
        if calls is None or len(during.start) == 0:
            return
        start, end = calls["start"].to_numpy(), calls["end"].to_numpy()
        inside = Coverage.from_union(during).length_between(end - intervals.own_lengths(start, end), end)
        known = calls.select("name", "waits_for", pl.Series("ns", inside))
        sums = known.group_by("name", "waits_for").agg(pl.col("ns").sum())
        yield from sums.filter(pl.col("ns") > 0).iter_rows()

    @cached_property
    def _events(self) -> dict[tuple[int, str], pl.DataFrame]:
        """The events of each thread and state."""
        tables = self._stacks.evidence.events.partition_by("thread", "state", as_dict=True)
        return {(int(thread), str(state)): table for (thread, state), table in tables.items()}

    def _of_events(self, thread: int, state: str) -> Iterator[Intervals]:
        events = self._events.get((thread, state))
        if events is not None:
            yield Intervals(events["start"].to_numpy(), events["end"].to_numpy())

    def _of_stacks(self, thread: int, state: str) -> Iterator[Intervals]:
        """Yield the times in which stacks show a state: a compiler is in the stack, or the thread runs."""
        by_kind = {kind: self._stacks.cells(thread, kind) for kind in (PYTHON, CALLS, SAMPLES)}
        if state == "compiling":
            for cells in by_kind.values():
                if cells is not None:
                    yield cells.where(self._stacks.compiles[cells.stack])
        elif state == "running":
            python, native = by_kind[PYTHON], by_kind[SAMPLES]
            if python is not None:
                yield python.where(python.holds_gil)
            if native is not None:
                yield Intervals(native.start, native.end)


def measure_states(index: StateIndex, idle_times: Iterable[tuple[int, Intervals]], host_ns: int) -> HostStates:
    """Divide `host_ns` of `host` idle time by state, given the known times of it and the thread of each."""
    states = dict.fromkeys(EVENT_STATES, 0)
    waits: dict[str, int] = {}
    waits_for: dict[str, int] = {}
    for thread, idle in idle_times:
        left = idle
        for state in EVENT_STATES:
            if len(left.start) == 0:
                break
            if state == "waiting":
                for name, awaited, ns in index.waits(thread, left):
                    waits[name] = waits.get(name, 0) + ns
                    if awaited:
                        waits_for[awaited] = waits_for.get(awaited, 0) + ns
            inside = intervals.intersect(left, index.times(thread, state))
            states[state] += intervals.length(inside)
            left = intervals.subtract(left, inside)
    known = states | {"unattributed": host_ns - sum(states.values())}
    return HostStates(known, longest_first(waits), longest_first(waits_for))


def longest_first(times: Mapping[str, int]) -> dict[str, int]:
    """Return times in ns by name, the longest first."""
    return dict(sorted(times.items(), key=lambda item: (-item[1], item[0])))


THREAD_STACKS = ("start", "end", "stack", "thread")
MAX_RECENT = 2  # frames of gaps whose idle time is kept: those of a window and of its steady part


@dataclass(frozen=True, slots=True)
class HostIdle:
    """Answers what the host did in any idle gaps, which are given as rows of Gaps.frame."""

    trace: Trace
    threads: ThreadStates
    stacks: StackIndex
    state_index: StateIndex
    recent: list[tuple[pl.DataFrame, tuple[ThreadIdle, ...]]] = field(default_factory=list, repr=False)

    @classmethod
    def build(cls, trace: Trace, threads: ThreadStates) -> HostIdle | None:
        """Prepare a capture; None if CUDA calls are its only evidence on the host."""
        if not trace.evidence.shows_idle_host:
            return None
        stacks = StackIndex(trace)
        return cls(trace, threads, stacks, StateIndex(stacks))

    def _idle(self, gaps: pl.DataFrame) -> tuple[ThreadIdle, ...]:
        """Return the idle time of each launching thread in gaps; the most recent results are kept."""
        known = next((idle for frame, idle in self.recent if frame is gaps), None)
        if known is not None:
            return known
        idle = tuple(idle_by_thread(self.trace, self.threads, gaps))
        self.recent[:] = [*self.recent[1 - MAX_RECENT :], (gaps, idle)]
        return idle

    def lines(self, gaps: Sequence[pl.DataFrame]) -> tuple[SourceLine, ...]:
        """Return the source lines in the gaps of some devices, the most idle time first."""
        return () if self.stacks.is_empty else measure_lines(self.stacks, self._idle_stacks(gaps))

    def stack_times(self, gaps: Sequence[pl.DataFrame], windows: Sequence[Window]) -> StackTimes:
        """Return the idle time in the gaps of some devices by stack, and the time of threads inside windows."""
        start, end = (np.array([getattr(window, edge) for window in windows], np.int64) for edge in ("start", "end"))
        return stack_times(self.stacks, self._idle_stacks(gaps), intervals.union(start, end))

    def _idle_stacks(self, gaps: Sequence[pl.DataFrame]) -> IdleStacks:
        """Return the stacks of the idle time in gaps."""
        return idle_stacks(self.stacks, (each for frame in gaps for each in self._idle(frame)))

    def line_cells(self, gaps: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Return the idle time in the gaps of some devices by line: file, line, function, moment and idle_ns."""
        idle = (each for frame in gaps for each in self._idle(frame))
        cells, evidence = idle_cells(self.stacks, idle).frame, self.trace.evidence
        cells = cells.filter(pl.col("until") < 0)
        frame = evidence.stacks["frame"].to_numpy()[self.stacks.own_nodes[cells["stack"].to_numpy()]]
        return cells.select("moment", "idle_ns").hstack(evidence.frames.select("file", "line", "function")[frame])

    def thread_stacks(self) -> pl.DataFrame:
        """Return the stacks of threads by time: start, end, stack (row of HostEvidence.stacks) and thread.

        A sample stands for the time nearest to it. A thread has its Python stacks; without these, its CPU samples.
        """
        tables = []
        for thread in range(len(self.trace.threads)):
            cells = self.stacks.cells(thread, PYTHON) or self.stacks.cells(thread, SAMPLES)
            if cells is not None:
                columns = {"start": cells.start, "end": cells.end, "stack": cells.stack}
                tables.append(pl.DataFrame(columns).filter(pl.col("stack") >= 0).with_columns(thread=pl.lit(thread)))
        return pl.concat(tables) if tables else pl.DataFrame(schema=dict.fromkeys(THREAD_STACKS, pl.Int64))

    def lines_at(self, thread: Times, moments: Times) -> list[str]:
        """Return the line where each thread (row of Trace.threads) is at a moment; "" if its best stacks lack it."""
        stack = np.full(len(moments), -1, np.int64)
        for caller in np.unique(thread[thread >= 0]).tolist():
            own = np.flatnonzero(thread == caller)
            cells = next(self.stacks.sources(caller), None)
            if cells is not None:
                at = np.maximum(np.searchsorted(cells.start, moments[own], side="right") - 1, 0)
                inside = (cells.start[at] <= moments[own]) & (moments[own] < cells.end[at])
                stack[own] = np.where(inside, cells.stack[at], -1)
        rows = np.append(self.stacks.own_frames, -1)[stack].tolist()
        texts = {row: StackFrame(*self.trace.evidence.frames.row(row)).text for row in set(rows) - {-1}}
        return [texts.get(row, "") for row in rows]

    def states(self, gaps: pl.DataFrame, line: SourceLine | None = None) -> HostStates:
        """Return the states of threads in the gaps of a device, or in their time at a line."""
        idle = self._idle(gaps)
        if line is None:
            idle_times, host_ns = [(each.thread, each.host) for each in idle], int(gaps["host"].sum())
        else:
            idle_times = [(each.thread, line_times(self.stacks, each, line)) for each in idle]
            host_ns = sum(intervals.length(times) for _, times in idle_times)
        return measure_states(self.state_index, idle_times, host_ns)


def with_host_states(host_idle: HostIdle | None, device: DeviceUse) -> DeviceUse:
    """Return the device with the states of its `host` idle time, in its window and in its steady part."""

    def measured(gaps: Gaps) -> Gaps:
        unknown = replace(gaps.host_states, ns={**gaps.host_states.ns, "unattributed": gaps.causes["host"]})
        return replace(gaps, host_states=unknown if host_idle is None else host_idle.states(gaps.frame))

    window = measured(device.gaps)
    steady = window if device.steady.gaps is device.gaps else measured(device.steady.gaps)
    return replace(device, gaps=window, steady=replace(device.steady, gaps=steady))


def source_lines(given: CaptureInput) -> tuple[SourceLine, ...]:
    """Return the lines with the most idle time of all devices, in the time that findings cover."""
    if given.host_time is None:
        return ()
    covered = given.devices if given.whole else [device.steady for device in given.devices]
    return given.host_time.lines([each.gaps.frame for each in covered])


LINES = Measure(
    Table(
        name="lines",
        title="Lines that made the GPU wait",
        row_type=SourceLine,
        note="Where the launching thread was while a GPU was idle. A sampled share has a confidence interval of 95%.",
        shown=("place", "idle_ns", "host_ns", "samples", "function", "inner", "interval"),
        first=5,
    ),
    source_lines,
    "capture",
)
