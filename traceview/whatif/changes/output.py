"""Copy results to the host on a separate stream.

Symptom: large d2h copies on the kernels' stream, which all later kernels wait for. With the change, a copy waits for
the work before it, and later kernels do not wait for the copy.
"""

from __future__ import annotations

import numpy as np

from traceview.model.trace import MEMORIES
from traceview.whatif.changes.base import COMPUTE, D2H, LARGE_COPY, GraphChange
from traceview.whatif.constants import Constants
from traceview.whatif.graph import EVENT, STREAM, DependencyGraph


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
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
    kept = edges.keep(~(between & (chosen[source] != chosen[target])))
    for stream in np.unique(ops.stream[chosen]):
        rows = np.flatnonzero((ops.stream == stream) & ~chosen)
        copies = np.flatnonzero((ops.stream == stream) & chosen)
        place = np.searchsorted(rows, copies)
        known = place > 0
        kept = kept.plus(graph.ends(rows[place[known] - 1]), graph.starts(copies[known]), gap, EVENT)
        after = np.unique(place[known & (place < len(rows))])
        kept = kept.plus(graph.ends(rows[after - 1]), graph.starts(rows[after]), gap, STREAM)
    return graph.with_edges(kept)


OUTPUT = GraphChange(
    "output",
    "Copy results on a separate stream",
    "results that the host reads later; two buffers on the GPU",
    apply,
)
