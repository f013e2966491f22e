"""What a capture shows of the machine and of its launches: latencies, rates, and how alike iterations are."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.intervals import Times, clip, length, union
from traceview.model.peaks import pinned_rate
from traceview.model.trace import CLASSES, KINDS, MEMORIES, Trace, names_match
from traceview.replay.constants import KERNEL_GAP, LAUNCH_LATENCY, STAGING_RATE
from traceview.replay.graph import NEVER, Codes, GraphCalls, MachineFacts, Operations
from traceview.replay.select import Selection

ALLOCATES_MANAGED = "^(?:cuda|hip)MallocManaged|^cuMemAllocManaged"
LARGE_COPY = 1_000_000  # bytes: the time of a larger copy is determined by its rate
SHORT_GAP = 5_000  # ns: a longer gap between operations is a wait, not the hardware's own gap
MIN_SAMPLES = 10


def machine_facts(trace: Trace, calls: GraphCalls, ops: Operations, selection: Selection) -> MachineFacts:
    """Measure the latencies and rates of the machine, and how its work is launched, from the modelled iterations."""
    before = previous_in_group(ops.stream)
    launched = ops.call >= 0
    idle = ops.start - np.where(before >= 0, ops.end[before], NEVER)
    since = ops.start - calls.start[ops.call] if len(calls.row) else idle
    ended = np.where(launched, calls.end[ops.call], ops.start) if len(calls.row) else ops.start
    # An operation that starts well after its launch returned waits only for the previous operation.
    behind = (before >= 0) & (ops.start - ended > SHORT_GAP) & (idle >= 0) & (idle < SHORT_GAP) & (ops.kind < 0)
    first = launched & (idle > 2 * SHORT_GAP) & (since < 10 * LAUNCH_LATENCY) & (ops.kind < 0)
    gpu = trace.devices["name"][int(ops.device[0])] if len(ops.row) else ""
    pinned, staged = (_copy_rate(trace, memory) for memory in ("pinned", "pageable"))
    begin, end = (int(selection.work.edges[at]) for at in (selection.begin, selection.last))
    overhead = union(trace.overhead["start"].to_numpy(), trace.overhead["end"].to_numpy())
    return MachineFacts(
        _median_or(since[first], LAUNCH_LATENCY),
        _median_or(idle[behind], KERNEL_GAP),
        pinned or pinned_rate(gpu),
        bool(pinned),
        staged or STAGING_RATE,
        gpu or "",
        overhead=length(clip(overhead, begin, end)) / max(end - begin, 1),
        sms=int(trace.devices["sm_count"][int(ops.device[0])] or 0) if len(ops.row) else 0,
        managed=bool(names_match(trace.api["name"], ALLOCATES_MANAGED).any()),
        graphed=_graphed_share(trace, calls, ops),
        same_launches=_same_launches(trace, ops, selection),
    )


def _graphed_share(trace: Trace, calls: GraphCalls, ops: Operations) -> float:
    """Return the share of the compute that CUDA graphs launch."""
    launches = names_match(trace.api["name"], "GraphLaunch")[calls.row]
    computing = np.flatnonzero((ops.code == CLASSES.index("compute")) & (ops.call >= 0))
    ns = (ops.end - ops.start)[computing]
    return float(ns[launches[ops.call[computing]]].sum() / max(ns.sum(), 1))


def _same_launches(trace: Trace, ops: Operations, selection: Selection) -> float:
    """Return the share of the kernels that each iteration launches with the same shape, in the same place of a stream.

    Iterations with another number of kernels than most have none of these.
    """
    kernels = np.flatnonzero(
        (ops.code == CLASSES.index("compute")) & (ops.iteration >= selection.first) & (ops.call >= 0)
    )
    kernels = kernels[np.lexsort((ops.call[kernels], ops.stream[kernels], ops.iteration[kernels]))]
    _, first, count = np.unique(ops.iteration[kernels], return_index=True, return_counts=True)
    if len(count) < 2:
        return 1.0
    usual = int(np.bincount(count).argmax())
    alike = first[count == usual]
    shapes = trace.operations["shape"].to_numpy()[ops.row[kernels]][alike[:, None] + np.arange(usual)]
    return float((shapes == shapes[0]).all(axis=0).mean() * len(alike) / len(count))


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


def previous_in_group(group: Codes) -> Codes:
    """Return the previous row of the same group for each row; -1 for none."""
    order = np.argsort(group, kind="stable")
    previous = np.full(len(group), -1, np.int64)
    same = group[order][1:] == group[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous
