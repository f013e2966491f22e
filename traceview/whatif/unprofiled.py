"""The run without the profiler: every traced call and range costs the host time that a run without nsys does not spend.

`without_profiler` is a function from a graph to the same graph with these times taken off its edges. The replay then
decides what that gives: a stretch that waits for the host shrinks, one that waits for the GPU does not
(docs/unprofiled.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.frozen import frozen
from traceview.intervals import Times, covered_length, union
from traceview.model.analysis import Analysis, Iterations
from traceview.model.devices import CAUSES, DevicePart, DeviceUse
from traceview.model.trace import Trace
from traceview.model.unprofiled import (
    CALL_FIXED,
    CALL_SHARE,
    MAX_CALL,
    OWN_CALLS,
    RANGE_EVENT,
    ProfilerCosts,
    UnprofiledTime,
)
from traceview.whatif.build import build
from traceview.whatif.constants import CAPTURE_NOISE
from traceview.whatif.graph import CALL, ENGINE, EVENT, GAP, LAUNCH, QUEUE, STREAM, WAIT, Codes, DependencyGraph
from traceview.whatif.replay import CycleError, Replay, replay
from traceview.whatif.select import select

Floats = NDArray[np.float64]
MIN_HOST = 0.15  # share of the host time between two calls that stays, whatever the calls cost
MIN_CALL = 0.3  # share of a call that stays
INSIDE = 0.5  # share of the profiler's cost of a call that lies inside the call's recorded times
MIN_LATENCY = 3_000  # ns, from a launch call to its kernel on an idle GPU
MIN_GAP = 400  # ns between two kernels
MAX_OPERATIONS = 2_000  # in the graph of an analysis; that of `whatif` is larger
MAX_ERROR = 0.25  # share of the measured time; iterations that differ by more do not represent the run
MAX_SCALE = 8.0  # largest scale of the costs that is tried to meet a given time
STEPS = 12  # steps of the search for that scale
LOW, MIDDLE, HIGH = range(3)
# Idle time of these causes is the host's; the rest of a gap is the GPU's own.
HOST_CAUSES = tuple(CAUSES.index(name) for name in CAUSES if name not in ("queued", "unknown"))
QUEUED = CAUSES.index("queued")


@frozen
class TracedEvents:
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
    """Return the events from the first to the last call of a graph."""
    calls = graph.calls
    begin, end, process = int(calls.start[0]), int(calls.end.max()), int(trace.api["process"][int(calls.row[0])])
    api = _from_to(trace.api.with_row_index("row"), begin, end, process)
    # A call inside another call is part of what the outer one costs.
    api = api.filter(pl.col("end") >= pl.col("end").cum_max().over("thread"))
    ranges = _from_to(trace.ranges, begin, end, process)
    length = (api["end"] - api["start"]).to_numpy()
    own = api["name"].cast(pl.String).str.contains(OWN_CALLS).to_numpy()
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


def without_profiler(
    trace: Trace, graph: DependencyGraph, costs: ProfilerCosts, bound: int = MIDDLE
) -> DependencyGraph:
    """Return the graph with what the profiler adds taken off; `bound` chooses LOW, MIDDLE or HIGH costs."""
    if not len(graph.calls.row):
        return graph
    events = traced_events(trace, graph)
    return _shortened(trace, graph, events, events.ns * costs.scale[bound], costs.kernel_gap[bound])


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
    launch = ops.call[np.clip((edges.target - 2 * len(calls.row)) // 2, 0, max(len(ops.row) - 1, 0))]
    shorten((GAP,), lambda at: before[at], lambda old: MIN_HOST * old)
    shorten((CALL, WAIT, QUEUE), lambda at: inside_call[target[at]], lambda old: MIN_CALL * old)
    shorten((LAUNCH,), lambda at: inside_call[launch[at]], lambda old: np.minimum(old, MIN_LATENCY))
    shorten((STREAM, ENGINE, EVENT), lambda at: np.full(len(at), between), lambda old: np.minimum(old, MIN_GAP))
    return graph.with_edges(edges.with_weight(weight.astype(np.int64)))


def _cost_between(graph: DependencyGraph, gap: Codes, events: TracedEvents, ns: Floats) -> Floats:
    """Return the ns of the events between the return of a call and the start of the next, for each edge of `gap`.

    Where the next call is on another thread, what the first costs after its return delays that thread.
    """
    calls = graph.calls
    source, target = graph.edges.source[gap] // 2, graph.edges.target[gap] // 2
    returned, begins = calls.end[source], calls.start[target]
    total = np.zeros(len(gap))
    for thread in np.unique(events.thread):
        mine = np.flatnonzero(events.thread == thread)
        mine = mine[np.argsort(events.at[mine], kind="stable")]
        at, until = events.at[mine], np.concatenate([[0], np.cumsum(ns[mine])])
        own, handed = calls.thread[target] == thread, calls.thread[source] == thread
        for edges, stop in ((own, begins), (handed & ~own, returned)):
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


def with_unprofiled_time(analysis: Analysis, costs: ProfilerCosts, given_ns: int | None = None) -> Analysis:
    """Return the analysis with the time of an iteration without the profiler, and its part of each device's idle time.

    `given_ns` is a time measured without the profiler; the costs are then scaled to give this time. The analysis stays
    the same without iterations, if their graph does not represent the run, or for profilers other than nsys without a
    given time.
    """
    iterations = analysis.iterations
    if not isinstance(iterations, Iterations):
        return analysis
    if analysis.info.profiler != "nsys":
        given = None if given_ns is None else UnprofiledTime(given_ns, given_ns, given_ns, "given", costs.scaled(0))
        return replace(analysis, iterations=replace(iterations, unprofiled=given))
    time = _unprofiled_time(analysis, iterations.time_ns, costs, given_ns)
    if time is None:
        return analysis
    return replace(
        analysis,
        iterations=replace(iterations, unprofiled=time),
        devices=tuple(_with_profiler_part(device, time.shares.get(device.device)) for device in analysis.devices),
    )


def _unprofiled_time(
    analysis: Analysis, measured_ns: int, costs: ProfilerCosts, given_ns: int | None
) -> UnprofiledTime | None:
    selection = select(analysis, MAX_OPERATIONS)
    if isinstance(selection, str):
        return None
    graph = build(analysis.trace, selection)
    try:
        base = replay(graph)
        # Shorter iterations stand for the run too: the rest of the mean is host time, for example a checkpoint.
        if base.per_iteration > (1 + MAX_ERROR) * selection.measured_ns:
            return None
        if given_ns is not None:
            costs = _scaled_to(analysis.trace, graph, base, costs, measured_ns - given_ns)
        replays = [replay(without_profiler(analysis.trace, graph, costs, bound)) for bound in (LOW, MIDDLE, HIGH)]
    except CycleError:
        return None
    shares = {
        use.device: _idle_shares(use, graph, base, replays[MIDDLE])
        for use in analysis.devices
        if (graph.operations.device == use.device).any()
    }
    high, middle, low = (max(measured_ns - max(base.per_iteration - run.per_iteration, 0), 1) for run in replays)
    if given_ns is not None:
        return UnprofiledTime(given_ns, given_ns, given_ns, "given", costs, shares)
    low, high = int(min(low, middle) * (1 - CAPTURE_NOISE)), int(max(high, middle) * (1 + CAPTURE_NOISE))
    return UnprofiledTime(middle, low, high, costs.source, costs, shares)


def _scaled_to(
    trace: Trace, graph: DependencyGraph, base: Replay, costs: ProfilerCosts, saved_ns: int
) -> ProfilerCosts:
    """Return the costs times the factor with which the replay of an iteration becomes shorter by `saved_ns`."""
    low, high = 0.0, MAX_SCALE
    for _ in range(STEPS):
        middle = (low + high) / 2
        run = replay(without_profiler(trace, graph, costs.scaled(middle)))
        low, high = (middle, high) if base.per_iteration - run.per_iteration < saved_ns else (low, middle)
    return costs.scaled(low)


def _idle_shares(use: DeviceUse, graph: DependencyGraph, base: Replay, run: Replay) -> Mapping[str, float]:
    """Return the fraction of a device's idle time of each cause that a run without the profiler does not have.

    A gap loses the host's part first, in proportion to its causes, then the GPU's own.
    """
    ops, gaps = graph.operations, use.gaps.frame
    counted = np.flatnonzero((ops.device == use.device) & (ops.iteration >= graph.first))
    if not len(counted) or gaps.is_empty():
        return {}
    removed = np.maximum(_idle_before(graph, base, counted) - _idle_before(graph, run, counted), 0)
    ending = gaps["operation"].fill_null(-1).to_numpy()
    ending = ending[: len(ending) - int(ending[-1] < 0)]  # only the last gap can end without an operation
    place = np.searchsorted(ending, ops.row[counted])
    ends_gap = ending.take(place, mode="clip") == ops.row[counted] if len(ending) else np.zeros(len(counted), np.bool_)
    rows, removed = place[ends_gap], removed[ends_gap]
    causes = np.array([gaps[name].to_numpy()[rows] for name in CAUSES], np.float64)
    host = causes[list(HOST_CAUSES)]
    fraction = np.minimum(removed / np.maximum(host.sum(axis=0), 1), 1)
    taken = np.zeros(len(CAUSES))
    taken[list(HOST_CAUSES)] = (host * fraction).sum(axis=1)
    taken[QUEUED] = np.minimum(np.maximum(removed - host.sum(axis=0), 0), causes[QUEUED]).sum()
    shares = taken / np.maximum(causes.sum(axis=1), 1)
    return {name: float(share) for name, share in zip(CAUSES, shares, strict=True)}


def _idle_before(graph: DependencyGraph, run: Replay, members: Codes) -> Times:
    """Return the ns before each operation in which none of `members` runs, in a replay."""
    start, end = run.time[graph.starts(members)], run.time[graph.ends(members)]
    order = np.argsort(start, kind="stable")
    until = np.maximum.accumulate(end[order])
    idle = np.zeros(len(members), np.int64)
    idle[order[1:]] = np.maximum(start[order[1:]] - until[:-1], 0)
    return idle


def _with_profiler_part(use: DeviceUse, shares: Mapping[str, float] | None) -> DeviceUse:
    """Return a device with the profiler's part of its idle time; outside the steady part it is unknown and counts 0."""
    if shares is None:
        return use
    steady: DevicePart = use.steady
    profiler = {cause: int(ns * shares.get(cause, 0.0)) for cause, ns in steady.gaps.causes.items()}
    return replace(
        use,
        gaps=replace(use.gaps, profiler=profiler),
        steady=replace(steady, gaps=replace(steady.gaps, profiler=profiler)),
    )
