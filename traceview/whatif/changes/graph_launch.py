"""Launch the kernels of an iteration as one CUDA graph.

Symptom: kernels wait for their launches, or 1.5 µs for each other. With the change, the first kernel of an iteration
waits for one launch, and the others follow with a small gap. The host no longer launches them one by one. If the host
pauses much longer than usual between two launches, it does something else, and the pause stays. Each batch is copied
once more, into the inputs of the graph. If an iteration has few kernels, a graph holds several iterations.
"""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times
from traceview.model.trace import KINDS
from traceview.whatif.changes.base import COMPUTE, COPY, H2D, MEMSET, GraphChange, launching_calls
from traceview.whatif.constants import DEVICE_RATE, GRAPH_LAUNCH, GRAPH_NODE, Constants
from traceview.whatif.graph import CALL, GAP, LAUNCH, QUEUE, RUN, STREAM, Codes, DependencyGraph, Mask

MIN_KERNELS = 10  # in a graph
# The host pauses (it reads data, logs or sleeps) if it takes this many times the median between two calls, in bounds.
PAUSE_FACTOR, MIN_PAUSE, MAX_PAUSE = 20, 500_000, 2_000_000  # ns
D2D = KINDS.index("d2d")


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    """Return the graph with one launch for each iteration."""
    ops, calls, edges = graph.operations, graph.calls, graph.edges
    chosen = np.isin(ops.code, [COMPUTE, MEMSET]) | ((ops.code == COPY) & (ops.kind == D2D))
    chosen &= (ops.call >= 0) & (ops.iteration >= 0)
    members = np.flatnonzero(chosen)
    joined = _iterations_per_graph(ops.iteration[members])
    waits = np.unique(calls.iteration[(calls.sync | calls.blocking) & (calls.iteration >= 0)])
    if not joined or (joined > 1 and 2 * len(waits) > graph.counted):
        return "few kernels are launched one by one (CUDA graphs are in use, or there are few kernels)"
    number = ops.iteration // joined
    first = np.zeros(len(ops.row), np.bool_)
    first[members[np.unique(number[members], return_index=True)[1]]] = True
    weight = edges.weight.copy()
    launched, heads = launching_calls(graph, chosen), launching_calls(graph, first)
    weight[graph.call_edges(CALL, launched)] = 0
    gap = graph.call_edges(GAP, launched & ~heads)
    weight[gap] = np.where(weight[gap] > _longest_launching_gap(graph), weight[gap], 0)
    call = graph.call_edges(CALL, heads)
    per = np.bincount(number[members], minlength=int(number.max()) + 1)
    weight[call] = GRAPH_LAUNCH + GRAPH_NODE * per[calls.iteration[edges.target[call] // 2] // joined]
    weight[graph.operation_edges(LAUNCH, chosen & ~first)] = 0
    inside = graph.operation_edges(STREAM, chosen & ~first)
    source = graph.operations_at(edges.source)
    inside &= chosen[np.where(inside, source, 0)]
    weight[inside] = np.minimum(weight[inside], constants.graph_gap)
    weight[graph.operation_edges(RUN, first)] += _input_copies(graph, first)
    changed = graph.with_edges(edges.with_weight(weight).keep(~graph.call_edges(QUEUE, launched)))
    if joined == 1:
        return changed
    return changed._replace(remarks=(*graph.remarks, f"an iteration has few kernels: each graph holds {joined}"))


def _iterations_per_graph(iteration: Codes) -> int:
    """Return how many iterations have MIN_KERNELS together, from the iteration of each kernel; 0 if too many."""
    count = len(np.unique(iteration))
    joined = -(-MIN_KERNELS * count // max(len(iteration), 1))
    return joined if 2 * joined <= count or joined == 1 else 0


def _longest_launching_gap(graph: DependencyGraph) -> int:
    """Return the longest time between two calls that counts as launching code."""
    between = graph.edges.weight[graph.edges.kind == GAP]
    usual = int(np.median(between)) if len(between) else 0
    return min(max(MIN_PAUSE, PAUSE_FACTOR * usual), MAX_PAUSE)


def _input_copies(graph: DependencyGraph, first: Mask) -> Times:
    """Return the ns to copy each iteration's batch into the graph's inputs, for each first kernel."""
    ops = graph.operations
    batch = (ops.kind == H2D) & (ops.iteration >= 0)
    size = np.zeros(max(int(ops.iteration.max()) + 1, 1), np.int64)
    np.add.at(size, ops.iteration[batch], ops.size[batch])
    edge = graph.operation_edges(RUN, first)
    operation = graph.operations_at(graph.edges.target[edge])
    taken: Times = (size[ops.iteration[operation]] / DEVICE_RATE).astype(np.int64)
    return taken


GRAPH = GraphChange(
    "graph",
    "Launch each iteration as one CUDA graph",
    "static shapes; no synchronization and no data-dependent branch inside",
    apply,
)
