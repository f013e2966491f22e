"""Launch overhead gone: the kernels of an iteration are one CUDA graph.

Symptom: kernels wait for their launches, or a microsecond and a half for each other.
With the change the first of an iteration's kernels waits for one launch; the rest follow back to back with a
small gap; the host's work for their launches is gone; each batch is copied once more, into the graph's inputs.
"""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times
from traceview.model.trace import KINDS
from traceview.whatif.changes.base import COMPUTE, COPY, H2D, MEMSET, Change, launching
from traceview.whatif.constants import DEVICE_RATE, GRAPH_LAUNCH, GRAPH_NODE, Constants
from traceview.whatif.graph import CALL, GAP, LAUNCH, QUEUE, RUN, STREAM, Graph, Mask

FEWEST = 10  # kernels an iteration
D2D = KINDS.index("d2d")


def apply(graph: Graph, constants: Constants) -> Graph | str:
    """Return the graph with one launch an iteration."""
    of, calls, edges = graph.operations, graph.calls, graph.edges
    chosen = np.isin(of.code, [COMPUTE, MEMSET]) | ((of.code == COPY) & (of.kind == D2D))
    chosen &= (of.call >= 0) & (of.iteration >= 0)
    iterations = np.unique(of.iteration[chosen])
    if np.count_nonzero(chosen) < FEWEST * max(1, len(iterations)):
        return "few kernels are launched one by one (CUDA graphs already, or nearly no kernels)"
    first = np.zeros(len(of.row), np.bool_)
    members = np.flatnonzero(chosen)
    first[members[np.unique(of.iteration[members], return_index=True)[1]]] = True
    weight = edges.weight.copy()
    launched, heads = launching(graph, chosen), launching(graph, first)
    weight[graph.of_calls(CALL, launched)] = 0
    weight[graph.of_calls(GAP, launched & ~heads)] = 0
    call = graph.of_calls(CALL, heads)
    per = np.bincount(of.iteration[members], minlength=int(iterations.max()) + 1)
    weight[call] = GRAPH_LAUNCH + GRAPH_NODE * per[calls.iteration[edges.target[call] // 2]]
    weight[graph.of_operations(LAUNCH, chosen & ~first)] = 0
    inside = graph.of_operations(STREAM, chosen & ~first)
    source = (edges.source - 2 * len(calls.row)) // 2
    inside &= chosen[np.where(inside, source, 0)]
    weight[inside] = np.minimum(weight[inside], constants.graph_gap)
    weight[graph.of_operations(RUN, first)] += _inputs(graph, first)
    return graph.with_edges(edges.weighing(weight).keep(~graph.of_calls(QUEUE, launched)))


def _inputs(graph: Graph, first: Mask) -> Times:
    """Return what copying each iteration's batch into the graph's inputs takes, by its first kernel."""
    of = graph.operations
    batch = (of.kind == H2D) & (of.iteration >= 0)
    size = np.zeros(max(int(of.iteration.max()) + 1, 1), np.int64)
    np.add.at(size, of.iteration[batch], of.size[batch])
    edge = graph.of_operations(RUN, first)
    operation = (graph.edges.target[edge] - 2 * len(graph.calls.row)) // 2
    taken: Times = (size[of.iteration[operation]] / DEVICE_RATE).astype(np.int64)
    return taken


GRAPH = Change(
    "graph",
    "Launch each iteration as one CUDA graph",
    "static shapes, and no synchronization or branch on data inside",
    apply,
)
