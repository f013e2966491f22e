"""The state of launching threads in `host` idle time. The states of a device add up to its `host`, exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Coverage, Intervals
from traceview.measure.host.idle_pieces import ThreadIdle
from traceview.measure.host.stack_cells import StackIndex, compiling_stacks
from traceview.model.devices import HostStates
from traceview.model.stacks import EVENT_STATES
from traceview.model.trace import Trace


def measure_states(trace: Trace, index: StackIndex, idle: Iterable[ThreadIdle], host_ns: int) -> HostStates:
    """Divide the `host` idle time of a device."""
    states = dict.fromkeys(EVENT_STATES, 0)
    waits: dict[str, int] = {}
    for part in idle:
        left = part.host
        for state in EVENT_STATES:
            if len(left.start) == 0:
                break
            evidence = _evidence(trace, index, part.thread, state)
            if state == "waiting":
                _add_waits(trace, part.thread, left, waits)
            inside = intervals.intersect(left, evidence)
            states[state] += intervals.length(inside)
            left = intervals.subtract(left, inside)
    longest = sorted(waits.items(), key=lambda item: (-item[1], item[0]))
    return HostStates(states | {"unattributed": host_ns - sum(states.values())}, dict(longest))


def _evidence(trace: Trace, index: StackIndex, thread: int, state: str) -> Intervals:
    """Return the union of the times in which a thread has a state."""
    events = trace.evidence.events.filter((pl.col("thread") == thread) & (pl.col("state") == state))
    parts = [Intervals(events["start"].to_numpy(), events["end"].to_numpy()), *_of_stacks(trace, index, thread, state)]
    return intervals.union(*(np.concatenate(sides) for sides in zip(*parts, strict=True)))


def _of_stacks(trace: Trace, index: StackIndex, thread: int, state: str) -> Iterator[Intervals]:
    """Yield the times in which stacks show a state: a compiler is in the stack, or the thread runs."""
    python, native = index.cells(thread, True), index.cells(thread, False)
    if state == "compiling" and python is not None:
        yield python.where(compiling_stacks(trace)[python.stack])
    if state == "running":
        if python is not None:
            yield python.where(python.holds_gil)
        if native is not None:
            yield Intervals(native.start, native.end)


def _add_waits(trace: Trace, thread: int, left: Intervals, waits: dict[str, int]) -> None:
    """Add the ns of `left` that a thread waits in each call. A call inside another counts once, for the outer one."""
    calls = trace.evidence.events.filter((pl.col("thread") == thread) & (pl.col("state") == "waiting"))
    start, end = calls["start"].to_numpy(), calls["end"].to_numpy()
    first = end - intervals.own_lengths(start, end)
    inside = Coverage.from_union(left).length_between(first, end)
    sums = calls.select("name", pl.Series("ns", inside)).group_by("name").agg(pl.col("ns").sum())
    for name, ns in sums.filter(pl.col("ns") > 0).iter_rows():
        waits[name] = waits.get(name, 0) + ns
