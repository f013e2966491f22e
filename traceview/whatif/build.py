"""Build the dependency graph of the selected iterations from the host's edges and the GPU's.

The GPU's edges are launches, the order on streams, shared copy engines and waits for other streams. The latest edge of
an operation determines its start. The remaining slack is added to that edge, so that the unchanged graph starts each
operation at its measured time.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.intervals import Times, clip, length, union
from traceview.measure.shared_work import launch_rows
from traceview.model.peaks import pinned_rate
from traceview.model.trace import KINDS, MEMORIES, Trace
from traceview.whatif.constants import KERNEL_GAP, LAUNCH_LATENCY, STAGING_RATE
from traceview.whatif.graph import (
    ENGINE,
    EVENT,
    LAUNCH,
    RUN,
    STREAM,
    Codes,
    DependencyGraph,
    Edges,
    GraphCalls,
    MachineFacts,
    Operations,
)
from traceview.whatif.host_edges import calls_of, host_edges, queue_edges
from traceview.whatif.select import Selection
from traceview.whatif.storms import name_families

NEVER = np.iinfo(np.int64).min // 4  # before any time


def build(trace: Trace, selection: Selection) -> DependencyGraph:
    """Return the graph of the selected iterations, with the operations still running when they begin."""
    begin, end = int(selection.work.edges[selection.begin]), int(selection.work.edges[selection.last])
    calls = calls_of(trace, selection, begin, end)
    ops = operations_of(trace, selection, calls, begin)
    facts = machine_facts(trace, calls, ops)._replace(overhead=_overhead_share(trace, begin, end))
    host, first_calls = host_edges(trace, calls, ops)
    gpu, first_operations = gpu_edges(trace, calls, ops, facts)
    base = 2 * len(calls.row)
    release = np.full(base + 2 * len(ops.row), NEVER, np.int64)
    release[2 * first_calls] = calls.start[first_calls]
    release[base + 2 * first_operations] = ops.start[first_operations]
    parts = ((part.source, part.target, part.weight, part.kind) for part in (host, gpu))
    pairs = zip(*parts, strict=True)
    edges = queue_edges(calls, ops, Edges(*(np.concatenate(pair).astype(np.int64) for pair in pairs)))
    return DependencyGraph(calls, ops, edges, release, selection.first, selection.last, facts)


def _overhead_share(trace: Trace, begin: int, end: int) -> float:
    overhead = union(trace.overhead["start"].to_numpy(), trace.overhead["end"].to_numpy())
    return length(clip(overhead, begin, end)) / max(end - begin, 1)


LARGE_COPY = 1_000_000  # bytes: the time of a larger copy is determined by its rate
SHORT_GAP = 5_000  # ns: a longer gap between operations is a wait, not the hardware's own gap
MIN_SAMPLES = 10
MAX_OWN_GAP = 200_000  # ns: a thread that launches nothing for longer after a wait has handed over to another thread


def operations_of(trace: Trace, selection: Selection, calls: GraphCalls, begin: int) -> Operations:
    """Return the operations that the calls launch, and those launched before `begin` that end after it."""
    end = selection.work.edges[selection.last]
    low, high = np.searchsorted(trace.api["start"].to_numpy(), [begin, end]).tolist()
    launch = launch_rows(trace.operations)
    running = (launch >= low) | (trace.operations["end"].to_numpy() > begin)
    rows = np.flatnonzero((launch >= 0) & (launch < high) & running)
    rows = rows[trace.operations["process"].to_numpy()[rows] == selection.work.process]
    outer = _outer_calls(calls, launch[rows])
    known = (outer >= 0) | (launch[rows] < low)
    chosen, call = rows[known], outer[known]
    frame = trace.operations[chosen]
    column = {name: frame[name].to_physical().fill_null(-1).to_numpy().astype(np.int64) for name in ("kind", "memory")}
    return Operations(
        chosen,
        frame["start"].to_numpy(),
        frame["end"].to_numpy(),
        call,
        np.where(call >= 0, selection.work.iteration[chosen], -1),
        frame["stream"].to_numpy().astype(np.int64),
        frame["device"].to_numpy().astype(np.int64),
        frame["class"].to_physical().to_numpy().astype(np.int64),
        column["kind"],
        column["memory"],
        frame["bytes"].to_numpy(),
        frame["name"].to_physical().to_numpy().astype(np.int64),
        name_families(frame["name"]),
    )


def _outer_calls(calls: GraphCalls, launch: Codes) -> Codes:
    """Return the modelled call that each of these rows of Trace.api is; -1 for none."""
    place = np.minimum(np.searchsorted(calls.row, launch), max(len(calls.row) - 1, 0))
    return np.where(calls.row[place] == launch, place, -1) if len(calls.row) else np.full(len(launch), -1, np.int64)


def machine_facts(trace: Trace, calls: GraphCalls, ops: Operations) -> MachineFacts:
    """Measure the latencies and rates of the machine."""
    before = _previous_in_group(ops.stream)
    launched = ops.call >= 0
    idle = ops.start - np.where(before >= 0, ops.end[before], NEVER)
    since = ops.start - calls.start[ops.call] if len(calls.row) else idle
    ended = np.where(launched, calls.end[ops.call], ops.start) if len(calls.row) else ops.start
    # An operation that starts well after its launch returned waits only for the previous operation.
    behind = (before >= 0) & (ops.start - ended > SHORT_GAP) & (idle >= 0) & (idle < SHORT_GAP) & (ops.kind < 0)
    first = launched & (idle > 2 * SHORT_GAP) & (since < 10 * LAUNCH_LATENCY) & (ops.kind < 0)
    gpu = trace.devices["name"][int(ops.device[0])] if len(ops.row) else ""
    pinned, staged = (_copy_rate(trace, memory) for memory in ("pinned", "pageable"))
    return MachineFacts(
        _median_or(since[first], LAUNCH_LATENCY),
        _median_or(idle[behind], KERNEL_GAP),
        pinned or pinned_rate(gpu),
        bool(pinned),
        staged or STAGING_RATE,
        gpu or "",
    )


def _median_or(values: Times, default: int) -> int:
    return int(np.median(values)) if len(values) >= MIN_SAMPLES else default


def _copy_rate(trace: Trace, memory: str) -> float:
    """Return the median rate of large h2d copies from a kind of memory, in bytes/ns; 0 if there are none."""
    copies = trace.operations.filter(
        (pl.col("kind").to_physical() == KINDS.index("h2d"))
        & (pl.col("memory").to_physical() == MEMORIES.index(memory))
        & (pl.col("bytes") >= LARGE_COPY)
    )
    length = (copies["end"] - copies["start"]).to_numpy()
    return float(np.median(copies["bytes"].to_numpy() / np.maximum(length, 1))) if len(copies) else 0.0


def _previous_in_group(group: Codes) -> Codes:
    """Return the previous row of the same group for each row; -1 for none."""
    order = np.argsort(group, kind="stable")
    previous = np.full(len(group), -1, np.int64)
    same = group[order][1:] == group[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def gpu_edges(trace: Trace, calls: GraphCalls, ops: Operations, facts: MachineFacts) -> tuple[Edges, Codes]:
    """Return the edges into operations, and the operations without a predecessor."""
    base, rows = 2 * len(calls.row), np.arange(len(ops.row))
    launch = np.where(ops.call >= 0, calls.start[ops.call], NEVER) if len(calls.row) else np.full(len(rows), NEVER)
    # Each direction and device has a copy engine. Other operations get a unique negative group.
    uses_engine = np.isin(ops.kind, [KINDS.index("h2d"), KINDS.index("d2h")])
    engine = np.where(uses_engine, ops.device * 16 + ops.kind, -1 - rows)
    shared = _previous_in_group(engine)
    before, event = _previous_in_group(ops.stream), _awaited_operations(trace, calls, ops)
    shared = np.where(shared == before, -1, shared)
    sources = (2 * ops.call, *(base + 2 * other + 1 for other in (before, shared, event)))
    times = [launch, *(np.where(other >= 0, ops.end[other], NEVER) for other in (before, shared, event))]
    limits = (facts.launch_latency, facts.kernel_gap, facts.kernel_gap, facts.kernel_gap)
    weights = [np.minimum(limit, ops.start - time) for limit, time in zip(limits, times, strict=True)]
    reached = np.stack([time + weight for time, weight in zip(times, weights, strict=True)])
    reached[np.stack(times) == NEVER] = NEVER
    binding, latest = reached.argmax(axis=0), reached.max(axis=0)
    none = np.zeros(0, np.int64)
    edges = Edges(none, none, none, none)
    for index, kind in enumerate((LAUNCH, STREAM, ENGINE, EVENT)):
        weight = weights[index] + np.where(binding == index, ops.start - latest, 0)
        valid = times[index] != NEVER
        edges = edges.plus(sources[index][valid], base + 2 * rows[valid], weight[valid], kind)
    edges = edges.plus(base + 2 * rows, base + 2 * rows + 1, ops.end - ops.start, RUN)
    return edges, rows[latest == NEVER]


def _awaited_operations(trace: Trace, calls: GraphCalls, ops: Operations) -> Codes:
    """Return the operation of another stream that each operation waits for by an event; -1 for none.

    The operation launched next after cudaStreamWaitEvent waits. The export has neither the stream nor the record of
    most events, so the awaited operation is the last one launched before the call that ended before the wait did.
    """
    target = np.full(len(ops.row), -1, np.int64)
    launched = np.flatnonzero(ops.call >= 0)
    names = trace.api["name"].gather(calls.row).cast(pl.String).str.contains("StreamWaitEvent").to_numpy()
    waits = np.flatnonzero(names)
    if not len(waits) or not len(launched):
        return target
    launched = launched[np.argsort(ops.call[launched], kind="stable")]
    # Keys are (thread, call), so that the search finds the next launch of the same thread.
    width = len(calls.row) + 1
    keys = calls.thread[ops.call[launched]] * width + ops.call[launched]
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], calls.thread[waits] * width + waits)
    valid = place < len(order)
    later = np.where(valid, launched[order[np.minimum(place, len(order) - 1)]], -1)
    later = np.where(calls.thread[ops.call[later]] == calls.thread[waits], later, -1)
    # If the thread launches nothing more, the next launch of any thread waits: the optimizer waits for DDP's wait.
    following = np.searchsorted(ops.call[launched], waits, side="right")
    anyone = np.where(following < len(launched), launched[np.minimum(following, len(launched) - 1)], -1)
    silent = (later < 0) | (calls.start[ops.call[later]] - calls.end[waits] > MAX_OWN_GAP)
    later = np.where(silent & (anyone >= 0), anyone, later)
    return _fill_awaited(calls, ops, target, waits[later >= 0], later[later >= 0])


def _fill_awaited(calls: GraphCalls, ops: Operations, target: Codes, waits: Codes, later: Codes) -> Codes:
    """Set the latest operation that each operation of `later` can have waited for, and return `target`."""
    ended = np.full(len(later), NEVER, np.int64)
    for stream in np.unique(ops.stream):
        rows = np.flatnonzero(ops.stream == stream)
        began = np.where(ops.call[rows] >= 0, calls.start[ops.call[rows]], NEVER)
        known = np.searchsorted(np.maximum.accumulate(began), calls.start[waits], side="left")
        gone = np.searchsorted(np.maximum.accumulate(ops.end[rows]), ops.start[later], side="right")
        last = np.minimum(known, gone) - 1
        better = (last >= 0) & (ops.stream[later] != stream)
        ends = np.where(better, ops.end[rows[last]], NEVER)
        better &= ends > ended
        target[later[better]] = rows[last[better]]
        ended = np.where(better, ends, ended)
    return target
