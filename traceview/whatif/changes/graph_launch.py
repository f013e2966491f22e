"""Launch the kernels of an iteration as one CUDA graph.

Symptom: kernels wait for their launches, or 1.5 µs for each other. With the change, the first kernel of an iteration
waits for one launch, and the others follow with a small gap. The host no longer launches them one by one. Each batch is
copied once more, into the inputs of the graph.
"""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times
from traceview.model.trace import KINDS
from traceview.whatif.changes.base import COMPUTE, COPY, H2D, MEMSET, GraphChange, launching_calls
from traceview.whatif.constants import DEVICE_RATE, GRAPH_LAUNCH, GRAPH_NODE, Constants
from traceview.whatif.graph import CALL, GAP, LAUNCH, QUEUE, RUN, STREAM, DependencyGraph, Mask

MIN_KERNELS = 10  # per iteration
D2D = KINDS.index("d2d")


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    """Return the graph with one launch for each iteration."""
    ops, calls, edges = graph.operations, graph.calls, graph.edges
    chosen = np.isin(ops.code, [COMPUTE, MEMSET]) | ((ops.code == COPY) & (ops.kind == D2D))
    chosen &= (ops.call >= 0) & (ops.iteration >= 0)
    iterations = np.unique(ops.iteration[chosen])
    if np.count_nonzero(chosen) < MIN_KERNELS * max(1, len(iterations)):
        return "few kernels are launched one by one (CUDA graphs are in use, or there are few kernels)"
    first = np.zeros(len(ops.row), np.bool_)
    members = np.flatnonzero(chosen)
    first[members[np.unique(ops.iteration[members], return_index=True)[1]]] = True
    weight = edges.weight.copy()
    launched, heads = launching_calls(graph, chosen), launching_calls(graph, first)
    weight[graph.call_edges(CALL, launched)] = 0
    weight[graph.call_edges(GAP, launched & ~heads)] = 0
    call = graph.call_edges(CALL, heads)
    per = np.bincount(ops.iteration[members], minlength=int(iterations.max()) + 1)
    weight[call] = GRAPH_LAUNCH + GRAPH_NODE * per[calls.iteration[edges.target[call] // 2]]
    weight[graph.operation_edges(LAUNCH, chosen & ~first)] = 0
    inside = graph.operation_edges(STREAM, chosen & ~first)
    source = (edges.source - 2 * len(calls.row)) // 2
    inside &= chosen[np.where(inside, source, 0)]
    weight[inside] = np.minimum(weight[inside], constants.graph_gap)
    weight[graph.operation_edges(RUN, first)] += _input_copies(graph, first)
    return graph.with_edges(edges.with_weight(weight).keep(~graph.call_edges(QUEUE, launched)))


def _input_copies(graph: DependencyGraph, first: Mask) -> Times:
    """Return the ns to copy each iteration's batch into the graph's inputs, for each first kernel."""
    ops = graph.operations
    batch = (ops.kind == H2D) & (ops.iteration >= 0)
    size = np.zeros(max(int(ops.iteration.max()) + 1, 1), np.int64)
    np.add.at(size, ops.iteration[batch], ops.size[batch])
    edge = graph.operation_edges(RUN, first)
    operation = (graph.edges.target[edge] - 2 * len(graph.calls.row)) // 2
    taken: Times = (size[ops.iteration[operation]] / DEVICE_RATE).astype(np.int64)
    return taken


GRAPH = GraphChange(
    "graph",
    "Launch each iteration as one CUDA graph",
    "static shapes; no synchronization and no data-dependent branch inside",
    apply,
)
