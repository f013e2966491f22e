"""The GPU's part of the graph: launches, order on streams, shared copy engines, waits for other streams.

Each operation's start is explained by exactly one edge, the one that came last; the slack that is left is put on
that edge, so that the unchanged graph starts everything when it did.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.model.trace import KINDS, MEMORIES, Trace
from traceview.whatif.constants import KERNEL_GAP, LAUNCH_LATENCY, STAGING_RATE, pinned_rate
from traceview.whatif.graph import ENGINE, EVENT, LAUNCH, RUN, STREAM, Calls, Codes, Edges, Facts, Operations
from traceview.whatif.select import Selection
from traceview.whatif.storms import families

LARGE = 1_000_000  # bytes: a copy whose time is its rate's
SHORT = 5_000  # ns: a longer gap between operations is a wait, not the hardware's own
FEWEST = 10
SILENT = 200_000  # ns: a thread that waits for an event on a stream and launches no sooner has handed on
NEVER = np.iinfo(np.int64).min // 4


def operations_of(trace: Trace, at: Selection, calls: Calls, begin: int) -> Operations:
    """Return what the calls launched, and what was launched before `begin` and ended after it."""
    rows = np.arange(len(trace.operations))
    end = trace.operations["end"].to_numpy()
    launch = trace.operations["launch"].fill_null(-1).to_numpy()
    process = trace.operations["process"].to_numpy() == at.process
    api_start = trace.api["start"].to_numpy()
    early = np.where(launch >= 0, api_start[launch], begin) < begin
    outer = _outer(trace, calls, launch)
    chosen = rows[process & ((outer >= 0) | (early & (end > begin)))]
    frame = trace.operations[chosen]
    column = {name: frame[name].to_physical().fill_null(-1).to_numpy().astype(np.int64) for name in ("kind", "memory")}
    call = outer[chosen]
    return Operations(
        chosen,
        frame["start"].to_numpy(),
        frame["end"].to_numpy(),
        call,
        np.where(call >= 0, at.iteration[chosen], -1),
        frame["stream"].to_numpy().astype(np.int64),
        frame["device"].to_numpy().astype(np.int64),
        frame["class"].to_physical().to_numpy().astype(np.int64),
        column["kind"],
        column["memory"],
        frame["bytes"].to_numpy(),
        frame["name"].to_physical().to_numpy().astype(np.int64),
        families(frame["name"]),
    )


def _outer(trace: Trace, calls: Calls, launch: Codes) -> Codes:
    """Return the call of the model that each operation was launched by or in; -1 for none."""
    table = np.full(len(trace.api) + 1, -1, np.int64)
    table[calls.row] = np.arange(len(calls.row))
    found: Codes = table[launch]
    return np.where(launch >= 0, found, -1)


def facts_of(trace: Trace, calls: Calls, of: Operations) -> Facts:
    """Measure the latencies and rates that the capture holds."""
    before = _previous(of.stream)
    launched = of.call >= 0
    idle = of.start - np.where(before >= 0, of.end[before], NEVER)
    since = of.start - calls.start[of.call] if len(calls.row) else idle
    ended = np.where(launched, calls.end[of.call], of.start) if len(calls.row) else of.start
    # Behind the launch's own return there is room for the latency: what is left is the wait for the one before.
    behind = (before >= 0) & (of.start - ended > SHORT) & (idle >= 0) & (idle < SHORT) & (of.kind < 0)
    first = launched & (idle > 2 * SHORT) & (since < 10 * LAUNCH_LATENCY) & (of.kind < 0)
    gpu = trace.devices["name"][int(of.device[0])] if len(of.row) else ""
    pinned, staged = (_rate(trace, memory) for memory in ("pinned", "pageable"))
    return Facts(
        _middle(since[first], LAUNCH_LATENCY),
        _middle(idle[behind], KERNEL_GAP),
        pinned or pinned_rate(gpu),
        bool(pinned),
        staged or STAGING_RATE,
        gpu or "",
    )


def _middle(values: Times, otherwise: int) -> int:
    return int(np.median(values)) if len(values) >= FEWEST else otherwise


def _rate(trace: Trace, memory: str) -> float:
    """Return the rate in bytes a ns of the capture's large h2d copies from a kind of memory; 0 where it has none."""
    copies = trace.operations.filter(
        (pl.col("kind").to_physical() == KINDS.index("h2d"))
        & (pl.col("memory").to_physical() == MEMORIES.index(memory))
        & (pl.col("bytes") >= LARGE)
    )
    length = (copies["end"] - copies["start"]).to_numpy()
    return float(np.median(copies["bytes"].to_numpy() / np.maximum(length, 1))) if len(copies) else 0.0


def _previous(group: Codes) -> Codes:
    """Return the row before each one in its group, in the order of rows; -1 for none."""
    order = np.argsort(group, kind="stable")
    found = np.full(len(group), -1, np.int64)
    same = group[order][1:] == group[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    return found


def gpu_edges(trace: Trace, calls: Calls, of: Operations, facts: Facts) -> tuple[Edges, Codes]:
    """Return the edges into operations, and the operations that nothing comes before."""
    base, rows = 2 * len(calls.row), np.arange(len(of.row))
    launch = np.where(of.call >= 0, calls.start[of.call], NEVER) if len(calls.row) else np.full(len(rows), NEVER)
    # A copy's engine: one a direction and device. Negative groups are rows of their own.
    engine = np.where(np.isin(of.kind, [KINDS.index("h2d"), KINDS.index("d2h")]), of.device * 16 + of.kind, -1 - rows)
    shared = _previous(engine)
    before, event = _previous(of.stream), _awaited(trace, calls, of)
    shared = np.where(shared == before, -1, shared)
    sources = (2 * of.call, *(base + 2 * other + 1 for other in (before, shared, event)))
    moments = [launch, *(np.where(other >= 0, of.end[other], NEVER) for other in (before, shared, event))]
    least = (facts.launch_latency, facts.kernel_gap, facts.kernel_gap, facts.kernel_gap)
    weights = [np.minimum(most, of.start - moment) for most, moment in zip(least, moments, strict=True)]
    reached = np.stack([moment + weight for moment, weight in zip(moments, weights, strict=True)])
    reached[np.stack(moments) == NEVER] = NEVER
    binding, latest = reached.argmax(axis=0), reached.max(axis=0)
    none = np.zeros(0, np.int64)
    edges = Edges(none, none, none, none)
    for index, kind in enumerate((LAUNCH, STREAM, ENGINE, EVENT)):
        weight = weights[index] + np.where(binding == index, of.start - latest, 0)
        there = moments[index] != NEVER
        edges = edges.plus(sources[index][there], base + 2 * rows[there], weight[there], kind)
    edges = edges.plus(base + 2 * rows, base + 2 * rows + 1, of.end - of.start, RUN)
    return edges, rows[latest == NEVER]


def _awaited(trace: Trace, calls: Calls, of: Operations) -> Codes:
    """Return the other stream's operation that each one waits for by an event; -1 for none.

    The operation launched next after cudaStreamWaitEvent waits. The export names neither stream nor record of
    most events, so what it waits for is the last work launched before the call that had ended by then.
    """
    found = np.full(len(of.row), -1, np.int64)
    launched = np.flatnonzero(of.call >= 0)
    names = trace.api["name"].gather(calls.row).cast(pl.String).str.contains("StreamWaitEvent").to_numpy()
    waits = np.flatnonzero(names)
    if not len(waits) or not len(launched):
        return found
    launched = launched[np.argsort(of.call[launched], kind="stable")]
    # Both keyed by (thread, call), so that the search finds the next launch of the same thread.
    width = len(calls.row) + 1
    keys = calls.thread[of.call[launched]] * width + of.call[launched]
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], calls.thread[waits] * width + waits)
    sound = place < len(order)
    later = np.where(sound, launched[order[np.minimum(place, len(order) - 1)]], -1)
    later = np.where(calls.thread[of.call[later]] == calls.thread[waits], later, -1)
    # A silent thread has handed on: what DDP waits for behind the backward pass, the optimizer waits for.
    following = np.searchsorted(of.call[launched], waits, side="right")
    anyone = np.where(following < len(launched), launched[np.minimum(following, len(launched) - 1)], -1)
    silent = (later < 0) | (calls.start[of.call[later]] - calls.end[waits] > SILENT)
    later = np.where(silent & (anyone >= 0), anyone, later)
    return _latest(calls, of, found, waits[later >= 0], later[later >= 0])


def _latest(calls: Calls, of: Operations, found: Codes, waits: Codes, later: Codes) -> Codes:
    ended = np.full(len(later), NEVER, np.int64)
    for stream in np.unique(of.stream):
        rows = np.flatnonzero(of.stream == stream)
        began = np.where(of.call[rows] >= 0, calls.start[of.call[rows]], NEVER)
        known = np.searchsorted(np.maximum.accumulate(began), calls.start[waits], side="left")
        gone = np.searchsorted(np.maximum.accumulate(of.end[rows]), of.start[later], side="right")
        at = np.minimum(known, gone) - 1
        better = (at >= 0) & (of.stream[later] != stream)
        ends = np.where(better, of.end[rows[at]], NEVER)
        better &= ends > ended
        found[later[better]] = rows[at[better]]
        ended = np.where(better, ends, ended)
    return found
