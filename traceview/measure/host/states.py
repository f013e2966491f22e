"""The state of launching threads in `host` idle time. The states of a device add up to its `host`, exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import EMPTY, Coverage, Intervals
from traceview.measure.host.stack_cells import CALLS, PYTHON, SAMPLES, StackIndex
from traceview.model.devices import HostStates
from traceview.model.stacks import EVENT_STATES


class StateIndex:
    """When each thread had each of EVENT_STATES, from events and stacks. Each is computed at its first use."""

    def __init__(self, stacks: StackIndex) -> None:
        self._stacks = stacks
        self._times: dict[tuple[int, str], Intervals] = {}

    def times(self, thread: int, state: str) -> Intervals:
        """Return the union of the times in which a thread has a state."""
        key = thread, state
        if key not in self._times:
            parts = [*self._of_events(thread, state), *self._of_stacks(thread, state), EMPTY]
            self._times[key] = intervals.union(*(np.concatenate(sides) for sides in zip(*parts, strict=True)))
        return self._times[key]

    def waits(self, thread: int, during: Intervals) -> Iterator[tuple[str, int]]:
        """Yield the calls in which a thread waits during a union, and the ns in each.

        A call inside another counts once, for the outer one.
        """
        calls = self._events.get((thread, "waiting"))
        if calls is None or len(during.start) == 0:
            return
        start, end = calls["start"].to_numpy(), calls["end"].to_numpy()
        inside = Coverage.from_union(during).length_between(end - intervals.own_lengths(start, end), end)
        sums = calls.select("name", pl.Series("ns", inside)).group_by("name").agg(pl.col("ns").sum())
        yield from sums.filter(pl.col("ns") > 0).iter_rows()

    @cached_property
    def _events(self) -> dict[tuple[int, str], pl.DataFrame]:
        """The events of each thread and state."""
        parts = self._stacks.evidence.events.partition_by("thread", "state", as_dict=True)
        return {(int(thread), str(state)): part for (thread, state), part in parts.items()}

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


def measure_states(index: StateIndex, parts: Iterable[tuple[int, Intervals]], host_ns: int) -> HostStates:
    """Divide `host_ns` of `host` idle time by state, given the known times of it and the thread of each."""
    states = dict.fromkeys(EVENT_STATES, 0)
    waits: dict[str, int] = {}
    for thread, idle in parts:
        left = idle
        for state in EVENT_STATES:
            if len(left.start) == 0:
                break
            if state == "waiting":
                for name, ns in index.waits(thread, left):
                    waits[name] = waits.get(name, 0) + ns
            inside = intervals.intersect(left, index.times(thread, state))
            states[state] += intervals.length(inside)
            left = intervals.subtract(left, inside)
    longest = sorted(waits.items(), key=lambda item: (-item[1], item[0]))
    return HostStates(states | {"unattributed": host_ns - sum(states.values())}, dict(longest))
