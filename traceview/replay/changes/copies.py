"""Changes to copies and streams: pin memory, prefetch batches, copy results apart, run micro-batches concurrently.

docs/whatif.md "The changes". Micro-batches run concurrently only with gradient accumulation: with one batch a step, the
next forward pass needs this step's weights, and autograd runs a backward pass on the stream of its forward pass.
"""

from __future__ import annotations

import numpy as np

from traceview.intervals import Intervals, Times, covered_length, union
from traceview.model.trace import MEMORIES
from traceview.replay.changes.base import (
    COMPUTE,
    D2H,
    H2D,
    LARGE_COPY,
    MEMSET,
    GraphChange,
    backward_passes,
    launching_calls,
    without_other_waits,
)
from traceview.replay.constants import ASYNC_CALL, BESIDE_COPY, BESIDE_SLOW, COPY_LATENCY, FILLED, ROOM
from traceview.replay.graph import CALL, EVENT, GAP, LAUNCH, RUN, STREAM, WAIT, DependencyGraph, Mask, replay

PREPARED = (
    "the loop pauses before each batch, and may prepare and pin it there; workers that pin it (num_workers) gain more"
)
PAGEABLE, PINNED = MEMORIES.index("pageable"), MEMORIES.index("pinned")


NOT_PAGEABLE = "no copy from or to pageable memory, except values that the host reads"


def pin(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph with all pageable copies pinned, by the loop itself where it pauses before each batch."""
    chosen = pageable_copies(graph)
    if not chosen.any():
        return NOT_PAGEABLE
    prepared = _prepared_in_loop(graph, chosen)
    pinned = _with_pinned(graph, chosen, prepared)
    return pinned._replace(remarks=(*graph.remarks, PREPARED)) if prepared.any() else pinned


def pageable_copies(graph: DependencyGraph) -> Mask:
    """Return the mask of the copies to pin. The host needs a small copy to it at once, wherever the value goes."""
    ops = graph.operations
    chosen: Mask = (ops.memory == PAGEABLE) & (ops.kind >= 0) & ((ops.kind != D2H) | (ops.size >= LARGE_COPY))
    return chosen


def _with_pinned(graph: DependencyGraph, chosen: Mask, fill: Times) -> DependencyGraph:
    """Return the graph with these copies pinned, and `fill` ns more of the host before each call."""
    ops, calls, edges = graph.operations, graph.calls, graph.edges
    blocking = np.zeros(len(calls.row), np.bool_)
    blocking[ops.call[chosen & (ops.call >= 0)]] = True
    blocking &= calls.blocking
    own = _next_synchronizations(graph, blocking & launching_calls(graph, ops.kind == H2D))
    weight = edges.weight.copy()
    run = graph.operation_edges(RUN, chosen)
    operation = graph.operations_at(edges.target[run])
    taken = (ops.size[operation] / graph.facts.pinned_rate).astype(np.int64)
    weight[run] = np.where(ops.size[operation] >= LARGE_COPY, taken, np.minimum(weight[run], taken + ASYNC_CALL))
    call = graph.call_edges(CALL, blocking)
    weight[call] = np.minimum(weight[call], ASYNC_CALL)
    launch = graph.operation_edges(LAUNCH, chosen)
    weight[launch] = np.minimum(weight[launch], COPY_LATENCY)
    weight[graph.call_edges(CALL, own)] = 0
    reads = launching_calls(graph, chosen & (ops.kind == D2H))  # the host needs a result before it goes on
    gone = graph.call_edges(WAIT, (blocking & ~reads) | own)
    pinned = ops._replace(memory=np.where(chosen, PINNED, ops.memory))
    gap = graph.call_edges(GAP, fill > 0)
    weight[gap] += fill[edges.target[gap] // 2]
    return graph._replace(operations=pinned, edges=edges.with_weight(weight).keep(~gone))


def _fill_time(graph: DependencyGraph, chosen: Mask) -> Times:
    """Return the ns that the host needs to fill the pinned buffer of each call's copies."""
    ops = graph.operations
    rows = np.flatnonzero(chosen & (ops.call >= 0) & (ops.kind == H2D))
    cost = np.zeros(len(graph.calls.row), np.int64)
    np.add.at(cost, ops.call[rows], (ops.size[rows] / graph.facts.staging_rate).astype(np.int64))
    return cost


def _prepared_in_loop(graph: DependencyGraph, chosen: Mask) -> Times:
    """Return the fill time of each call before which the host pauses long enough to prepare the batch itself.

    A loader without workers pins its batches in the loop as well. A loader whose workers do not keep up gains nothing
    from pinning, because the loop then waits longer for the batch.
    """
    cost = _fill_time(graph, chosen & (graph.operations.size >= LARGE_COPY))
    gap = np.zeros(len(cost), np.int64)
    into = graph.call_edges(GAP, cost > 0)
    gap[graph.edges.target[into] // 2] = graph.edges.weight[into]
    return np.where(gap >= cost, cost, 0)


def pin_in_loop(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the same, but the loop fills the pinned buffer of each batch itself (`batch.pin_memory()`)."""
    chosen = pageable_copies(graph)
    return _with_pinned(graph, chosen, _fill_time(graph, chosen)) if chosen.any() else NOT_PAGEABLE


def _next_synchronizations(graph: DependencyGraph, blocking: Mask) -> Mask:
    """Return the mask of synchronizations that directly follow a blocking call on its thread."""
    calls, mask = graph.calls, np.zeros(len(graph.calls.row), np.bool_)
    for thread in np.unique(calls.thread[blocking]):
        rows = np.flatnonzero(calls.thread == thread)
        mask[rows[1:][blocking[rows[:-1]] & calls.sync[rows[1:]]]] = True
    return mask


PIN = GraphChange(
    "pin",
    "Pin host memory",
    "host buffers of cudaMallocHost or cudaHostRegister that are filled outside the loop, and asynchronous copies",
    pin,
    repeats=True,  # pinning memory takes about as long as one copy of it saves
    in_pytorch="non_blocking=True, and batches pinned outside the loop (DataLoader(pin_memory=True))",
    effort="one line",
)
PIN_HERE = GraphChange(
    "pin-here",
    "Pin each batch in the loop",
    "the loop fills the pinned buffer itself, at the rate of pageable copies",
    pin_in_loop,
    in_pytorch="batch.pin_memory() in the loop: the host fills the pinned buffer at the rate of pageable copies",
    programs=("pytorch",),
    repeats=True,
    effort="one line",
)


def prefetch(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph with the copies one batch ahead. A copy over the link widens the gaps between kernels."""
    ops = graph.operations
    kernels = np.unique(ops.stream[ops.code == COMPUTE])
    # A batch is all that an iteration copies to the GPU, small tensors included.
    chosen = (ops.kind == H2D) & np.isin(ops.stream, kernels) & (ops.iteration >= 0)
    if not (chosen & (ops.size >= LARGE_COPY)).any():
        ahead = (ops.kind == H2D) & (ops.size >= LARGE_COPY)
        return "the copies have a separate stream already" if ahead.any() else "no large copy to the GPU"
    if (ops.memory[chosen & (ops.size >= LARGE_COPY)] == MEMORIES.index("pageable")).any():
        return "the copies are from pageable memory and block the host; pin that memory first (pin)"
    return _with_contention(_with_copies_ahead(graph, chosen), graph, chosen)


def _with_copies_ahead(graph: DependencyGraph, chosen: Mask) -> DependencyGraph:
    ops, edges = graph.operations, graph.edges
    edge = edges.kind == STREAM
    source, target = map(graph.operations_at, (edges.source, edges.target))
    crosses = edge & (chosen[np.where(edge, source, 0)] != chosen[np.where(edge, target, 0)])
    kept = edges.keep(~without_other_waits(graph, crosses, chosen))
    gap = graph.facts.kernel_gap
    for stream in np.unique(ops.stream[chosen]):
        rows = np.flatnonzero((ops.stream == stream) & ~chosen)
        after = rows[1:][np.diff(np.searchsorted(np.flatnonzero(chosen & (ops.stream == stream)), rows)) > 0]
        earlier = rows[np.searchsorted(rows, after) - 1]
        kept = kept.plus(graph.ends(earlier), graph.starts(after), gap, STREAM)
        for iteration in np.unique(ops.iteration[chosen & (ops.stream == stream)]).tolist():
            copies = np.flatnonzero(chosen & (ops.stream == stream) & (ops.iteration == iteration))
            used = rows[ops.iteration[rows] == iteration + 1][:1]
            free = rows[ops.iteration[rows] == iteration - 1][-1:]
            kept = kept.plus(graph.ends(np.repeat(copies[-1], len(used))), graph.starts(used), gap, EVENT)
            kept = kept.plus(graph.ends(free), graph.starts(np.repeat(copies[0], len(free))), gap, EVENT)
    return graph.with_edges(kept)


def _with_contention(moved: DependencyGraph, graph: DependencyGraph, chosen: Mask) -> DependencyGraph:
    """Lengthen gaps during a copy, because launches share the link, and kernels, because they share the memory."""
    ops = graph.operations
    time, rows = replay(moved).time, np.arange(len(ops.row))
    start, end = time[moved.starts(rows)], time[moved.ends(rows)]
    copies: Intervals = union(np.sort(start[chosen]), end[chosen][np.argsort(start[chosen], kind="stable")])
    beside = (covered_length(copies, start, np.maximum(end, start + 1)) > 0) & (ops.code == COMPUTE)
    weight = moved.edges.weight.copy()
    weight[moved.operation_edges(STREAM, beside)] += BESIDE_COPY
    run = moved.operation_edges(RUN, beside & ~ops.is_matrix)
    weight[run] += (weight[run] * BESIDE_SLOW).astype(np.int64)
    return moved.with_weight(weight)


PREFETCH = GraphChange(
    "prefetch",
    "Copy on a separate stream, one batch ahead",
    "a batch that is ready when the previous iteration begins; two buffers on the GPU",
    prefetch,
    repeats=True,
    effort="a few lines",
)


def copy_output_apart(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph with the copies of results beside the kernels."""
    ops = graph.operations
    kernels = np.unique(ops.stream[ops.code == COMPUTE])
    chosen = (ops.kind == D2H) & (ops.size >= LARGE_COPY) & np.isin(ops.stream, kernels) & (ops.iteration >= 0)
    if not chosen.any():
        return "no large copy to the host on a stream of kernels"
    if (ops.memory[chosen] == MEMORIES.index("pageable")).any():
        return "the copies are to pageable memory and block the host; pin that memory first (pin)"
    edges, gap = graph.edges, graph.facts.kernel_gap
    between = edges.kind == STREAM
    source, target = (np.where(between, graph.operations_at(nodes), 0) for nodes in (edges.source, edges.target))
    kept = edges.keep(~without_other_waits(graph, between & (chosen[source] != chosen[target]), chosen))
    for stream in np.unique(ops.stream[chosen]):
        rows = np.flatnonzero((ops.stream == stream) & ~chosen)
        copies = np.flatnonzero((ops.stream == stream) & chosen)
        place = np.searchsorted(rows, copies)
        known = place > 0
        kept = kept.plus(graph.ends(rows[place[known] - 1]), graph.starts(copies[known]), gap, EVENT)
        after = np.unique(place[known & (place < len(rows))])
        kept = kept.plus(graph.ends(rows[after - 1]), graph.starts(rows[after]), gap, STREAM)
    return _with_contention(graph.with_edges(kept), graph, chosen)


OUTPUT = GraphChange(
    "output",
    "Copy results on a separate stream",
    "results that the host reads later; two buffers on the GPU",
    copy_output_apart,
    effort="a few lines",
)


MIN_SHARE = 0.5  # share of a kernel's time that always remains


def stage_micro_batches(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph with micro-batches on two streams."""
    ops = graph.operations
    chosen = np.isin(ops.code, [COMPUTE, MEMSET]) & (ops.iteration >= 0)
    if len(np.unique(ops.stream[chosen])) > 1:
        return "compute has several streams already"
    iterations = np.unique(ops.iteration[chosen]).tolist()
    micro = float(np.median([len(backward_passes(graph, index)) for index in iterations])) if iterations else 0
    if micro < 2:
        return (
            "one batch a step: the next forward pass needs the updated weights (with gradient accumulation, "
            "micro-batches can run concurrently)"
        )
    beside = (micro - 1) / micro
    weight = graph.edges.weight.copy()
    gap = graph.operation_edges(STREAM, chosen)
    weight[gap] = (weight[gap] * (1 - FILLED * beside)).astype(np.int64)
    run = graph.operation_edges(RUN, chosen)
    weight[run] = np.maximum((weight[run] * MIN_SHARE).astype(np.int64), weight[run] - int(ROOM * beside))
    return graph.with_weight(weight)


STAGED = GraphChange(
    "staged",
    "Run micro-batches concurrently on two streams",
    "a separate thread for backward passes, and separate weights for each stream (instrument's staged)",
    stage_micro_batches,
    programs=("training",),
    repeats=True,
)
