"""Pin the host memory of copies, so that they no longer block the host (`pin_memory`, `non_blocking=True`).

Symptom: copies from or to pageable memory. The driver stages them, and the call returns when that is done. With the
change, a copy runs at the pinned rate, and its call takes as long as an asynchronous one. A synchronization that
directly follows a copy to the GPU on its thread belongs to it (`tensor.to` makes it) and is removed, too.
"""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times
from traceview.model.trace import MEMORIES
from traceview.whatif.changes.base import D2H, H2D, LARGE_COPY, GraphChange, launching_calls
from traceview.whatif.constants import ASYNC_CALL, COPY_LATENCY, Constants
from traceview.whatif.graph import CALL, GAP, LAUNCH, RUN, WAIT, DependencyGraph, Mask

PREPARED = (
    "the loop pauses before each batch, and may prepare and pin it there; with workers that pin it (num_workers), the "
    "lower end of the range"
)
PAGEABLE, PINNED = MEMORIES.index("pageable"), MEMORIES.index("pinned")


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    """Return the graph with all pageable copies pinned."""
    ops, calls, edges = graph.operations, graph.calls, graph.edges
    # The host needs a small copy to it at once, wherever the value goes.
    chosen = (ops.memory == PAGEABLE) & (ops.kind >= 0) & ((ops.kind != D2H) | (ops.size >= LARGE_COPY))
    if not chosen.any():
        return "no copy from or to pageable memory, except values that the host reads"
    blocking = np.zeros(len(calls.row), np.bool_)
    blocking[ops.call[chosen & (ops.call >= 0)]] = True
    blocking &= calls.blocking
    own = _next_synchronizations(graph, blocking & launching_calls(graph, ops.kind == H2D))
    weight = edges.weight.copy()
    run = graph.operation_edges(RUN, chosen)
    operation = graph.operations_at(edges.target[run])
    taken = (ops.size[operation] / (graph.facts.pinned_rate * constants.rate)).astype(np.int64)
    weight[run] = np.where(ops.size[operation] >= LARGE_COPY, taken, np.minimum(weight[run], taken + ASYNC_CALL))
    call = graph.call_edges(CALL, blocking)
    weight[call] = np.minimum(weight[call], ASYNC_CALL)
    launch = graph.operation_edges(LAUNCH, chosen)
    weight[launch] = np.minimum(weight[launch], COPY_LATENCY)
    weight[graph.call_edges(CALL, own)] = 0
    gone = graph.call_edges(WAIT, blocking | own)
    pinned = ops._replace(memory=np.where(chosen, PINNED, ops.memory))
    prepared = _prepared_in_loop(graph, chosen)
    if prepared.any():
        gap = graph.call_edges(GAP, prepared > 0)
        weight[gap] += (prepared[edges.target[gap] // 2] * constants.fills).astype(np.int64)
        graph = graph._replace(remarks=(*graph.remarks, PREPARED))
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


def apply_in_loop(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    """Return the same, but the loop fills the pinned buffer of each batch itself (`batch.pin_memory()`)."""
    pinned = apply(graph, constants._replace(fills=0))
    if isinstance(pinned, str):
        return pinned
    ops = graph.operations
    cost = _fill_time(graph, (ops.memory == PAGEABLE) & (ops.kind >= 0))
    weight = pinned.edges.weight.copy()
    gap = pinned.call_edges(GAP, cost > 0)
    weight[gap] += cost[pinned.edges.target[gap] // 2]
    return pinned.with_weight(weight)


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
    apply,
    in_pytorch="non_blocking=True, and batches pinned outside the loop (DataLoader(pin_memory=True))",
)
PIN_HERE = GraphChange(
    "pin-here",
    "Pin each batch in the loop",
    "the loop fills the pinned buffer itself, at the rate of pageable copies",
    apply_in_loop,
    in_pytorch="batch.pin_memory() in the loop: the host fills the pinned buffer at the rate of pageable copies",
)
