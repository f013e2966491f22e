"""The run without the profiler: every traced call and range costs the host time that a run without nsys does not spend.

`without_profiler` is a function from a graph to the same graph with these times taken off its edges. The replay then
decides what that gives: a stretch that waits for the host shrinks, one that waits for the GPU does not
(docs/unprofiled.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, covered_length, rows_by_code, union
from traceview.model.trace import MEMORIES, Trace
from traceview.model.unprofiled import CALL_FIXED, CALL_SHARE, MAX_CALL, OWN_CALL, RANGE_EVENT, ProfilerCosts
from traceview.normalise.codes import categories
from traceview.replay.changes.base import longest_launching_gap
from traceview.replay.graph import CALL, ENGINE, EVENT, GAP, LAUNCH, QUEUE, STREAM, WAIT, Codes, DependencyGraph

Floats = NDArray[np.float64]
MIN_HOST = 0.15  # share of the host time between two calls that stays, whatever the calls cost
MIN_CALL = 0.3  # share of a call that stays
INSIDE = 0.5  # share of the profiler's cost of a call that lies inside the call's recorded times
MIN_LATENCY = 3_000  # ns, from a launch call to its kernel on an idle GPU
MIN_GAP = 400  # ns between two kernels
# The median launch call under nsys on a host of these GPUs at full speed, in ns; elsewhere, that many first deciles.
USUAL_LAUNCH, REFERENCE_GPUS, DECILES = 5_400, "H100|H200", 1.25
MIN_CALLS, MAX_DECILES, MAX_SLOWDOWN = 100, 3, 1.5  # launches that show a slowdown; a longer one waits for room
LOW, MIDDLE, HIGH = range(3)
PAGEABLE = MEMORIES.index("pageable")


class TracedEvents(NamedTuple):
    """The events of a graph's process that the profiler records: outermost calls, starts and ends of ranges.

    `call` is the place of a call in GraphCalls, -1 for other calls and for ranges. `length` is that of a call, 0 for
    ranges. `ns` is what the profiler adds to the event.
    """

    thread: Codes
    at: Times  # the end of a call, the start or end of a range
    length: Times
    call: Codes
    ns: Floats


def traced_events(trace: Trace, graph: DependencyGraph) -> TracedEvents:
    """Return the events from the first to the last call of a graph, which has calls."""
    calls = graph.calls
    begin, end, process = int(calls.start[0]), int(calls.end.max()), int(trace.api["process"][int(calls.row[0])])
    api = _from_to(trace.api.with_row_index("row"), begin, end, process)
    # A call inside another call counts in what the outer one costs.
    api = api.filter(pl.col("end") >= pl.col("end").cum_max().over("thread"))
    ranges = _from_to(trace.ranges, begin, end, process)
    length = (api["end"] - api["start"]).to_numpy()
    own = (api["name"].cast(pl.String) == OWN_CALL).to_numpy()
    row = api["row"].to_numpy().astype(np.int64)
    place = np.minimum(np.searchsorted(calls.row, row), len(calls.row) - 1)
    both = np.tile(ranges["thread"].to_numpy().astype(np.int64), 2)
    return TracedEvents(
        np.concatenate([api["thread"].to_numpy().astype(np.int64), both]),
        np.concatenate([api["end"].to_numpy(), ranges["start"].to_numpy(), ranges["end"].to_numpy()]),
        np.concatenate([length, np.zeros(len(both), np.int64)]),
        np.concatenate([np.where(calls.row[place] == row, place, -1), np.full(len(both), -1, np.int64)]),
        np.concatenate(
            [
                np.where(own, 0.0, np.minimum(CALL_FIXED + CALL_SHARE * length, MAX_CALL)),
                np.full(len(both), float(RANGE_EVENT)),
            ]
        ),
    )


def _from_to(frame: pl.DataFrame, begin: int, end: int, process: int) -> pl.DataFrame:
    """Return the rows of a process that start in [begin, end); the frame is sorted by start."""
    first, last = np.searchsorted(frame["start"].to_numpy(), [begin, end]).tolist()
    return frame[first:last].filter(pl.col("process") == process)


def host_slowdown(trace: Trace, process: int) -> float:
    """Return how much slower than usually the host ran, from its launch calls; at least 1.

    Cores of a shared host switch between two speeds, for seconds or for a whole capture. Where caches are cold, calls
    and what nsys adds to them take longer too.
    """
    launches = [name for name in categories(trace.api["name"]) if "LaunchKernel" in name]
    calls = trace.api.filter(pl.col("name").is_in(launches))
    is_alone = calls["process"].n_unique() == 1  # processes that launch at once delay each other without nsys too
    length = calls.filter(pl.col("process") == process).select(pl.col("end") - pl.col("start"))["end"]
    decile = length.quantile(0.1)
    if len(length) < MIN_CALLS or not decile:
        return 1.0
    median = length.filter(length <= MAX_DECILES * decile).median()
    is_known = is_alone and trace.devices["name"].str.contains(REFERENCE_GPUS).any()
    usual = USUAL_LAUNCH if is_known else DECILES * decile
    return min(max(float(median) / usual, 1.0), MAX_SLOWDOWN) if isinstance(median, float) else 1.0


def without_profiler(
    trace: Trace,
    graph: DependencyGraph,
    events: TracedEvents,
    costs: ProfilerCosts,
    bound: int = MIDDLE,
    slowdown: float = 1.0,
) -> DependencyGraph:
    """Return the graph with what the profiler adds taken off, and the host's time divided by `slowdown`.

    `bound` chooses LOW, MIDDLE or HIGH costs. A pause keeps its length beyond that of launching code: the calls after
    it are slow because caches are cold, and the work in the pause is not.
    """
    faster = _shortened(trace, graph, events, events.ns * costs.scale[bound], costs.kernel_gap[bound])
    weight = faster.edges.weight.astype(np.float64)
    weight[faster.edges.kind == CALL] /= slowdown
    between = faster.edges.kind == GAP
    weight[between] -= np.minimum(weight[between], longest_launching_gap(graph)) * (1 - 1 / slowdown)
    return faster.with_weight(weight.astype(np.int64))


def _shortened(
    trace: Trace, graph: DependencyGraph, events: TracedEvents, ns: Floats, between: float
) -> DependencyGraph:
    """Return the graph with the ns of each event, and those between kernels, taken off its edges."""
    calls, edges, ops = graph.calls, graph.edges, graph.operations
    inside = np.minimum(INSIDE * ns, (1 - MIN_CALL) * events.length)
    inside_call = np.zeros(len(calls.row))
    modelled = events.call >= 0
    inside_call[events.call[modelled]] = inside[modelled]
    weight: Floats = edges.weight.astype(np.float64)
    target = np.minimum(edges.target // 2, len(calls.row) - 1)

    def shorten(kinds: tuple[int, ...], by: Callable[[Codes], Floats], least: Callable[[Floats], Floats]) -> None:
        chosen = np.flatnonzero(np.isin(edges.kind, kinds) & (weight > 0))
        weight[chosen] = np.maximum(weight[chosen] - by(chosen), least(weight[chosen]))

    gap = np.flatnonzero(edges.kind == GAP)
    before = np.zeros(len(weight))
    before[gap] = _cost_between(graph, gap, events, np.where(modelled, ns - inside, ns)) + _overhead(trace, graph, gap)
    launch = ops.call[np.clip(graph.operations_at(edges.target), 0, max(len(ops.row) - 1, 0))]
    shorten((GAP,), lambda at: before[at], lambda old: MIN_HOST * old)
    shorten((CALL, WAIT, QUEUE), lambda at: inside_call[target[at]], lambda old: MIN_CALL * old)
    shorten((LAUNCH,), lambda at: inside_call[launch[at]], lambda old: np.minimum(old, MIN_LATENCY))
    shorten((STREAM, ENGINE, EVENT), lambda at: np.full(len(at), between), lambda old: np.minimum(old, MIN_GAP))
    return graph.with_weight(weight.astype(np.int64))


def _cost_between(graph: DependencyGraph, gap: Codes, events: TracedEvents, ns: Floats) -> Floats:
    """Return the ns of the events between the return of a call and the start of the next, for each edge of `gap`.

    Where the next call is on another thread, what the first costs after its return delays that thread.
    """
    calls = graph.calls
    source, target = graph.edges.source[gap] // 2, graph.edges.target[gap] // 2
    returned, begins = calls.end[source], calls.start[target]
    total = np.zeros(len(gap))
    before, after = calls.thread[source], calls.thread[target]
    own, handed = dict(rows_by_code(after)), np.flatnonzero(before != after)
    handing = {thread: handed[some] for thread, some in rows_by_code(before[handed])}
    for thread, rows in rows_by_code(events.thread):
        mine = rows[np.argsort(events.at[rows], kind="stable")]
        at, until = events.at[mine], np.concatenate([[0], np.cumsum(ns[mine])])
        for groups, stop in ((own, begins), (handing, returned)):
            if (edges := groups.get(thread)) is not None:
                first = np.searchsorted(at, returned[edges], side="left")
                last = np.maximum(np.searchsorted(at, stop[edges], side="right"), first)
                total[edges] += until[last] - until[first]
    return total


def _overhead(trace: Trace, graph: DependencyGraph, gap: Codes) -> Times:
    """Return the profiler's own overhead between two calls, for each edge of `gap`."""
    calls = graph.calls
    overhead = union(trace.overhead["start"].to_numpy(), trace.overhead["end"].to_numpy())
    begins = calls.start[graph.edges.target[gap] // 2]
    return covered_length(overhead, np.minimum(calls.end[graph.edges.source[gap] // 2], begins), begins)
