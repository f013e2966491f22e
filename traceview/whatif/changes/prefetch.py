"""Copy batches on a separate stream, one batch ahead.

Symptom: large h2d copies on the kernels' stream, which all later kernels wait for. With the change, an iteration issues
the copy of the next batch. The copy waits for the copy engine and for the previous iteration to release its buffer. The
kernels of the next iteration wait for the copy.
"""

from __future__ import annotations

import numpy as np

from traceview.intervals import Intervals, covered_length, union
from traceview.model.trace import MEMORIES
from traceview.whatif.changes.base import COMPUTE, H2D, LARGE_COPY, GraphChange
from traceview.whatif.constants import Constants
from traceview.whatif.graph import EVENT, RUN, STREAM, DependencyGraph, Mask
from traceview.whatif.replay import replay


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
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
    return _with_contention(_with_copies_ahead(graph, chosen), graph, chosen, constants)


def _with_copies_ahead(graph: DependencyGraph, chosen: Mask) -> DependencyGraph:
    ops, edges = graph.operations, graph.edges
    edge = edges.kind == STREAM
    source, target = map(graph.operations_at, (edges.source, edges.target))
    crosses = edge & (chosen[np.where(edge, source, 0)] != chosen[np.where(edge, target, 0)])
    kept = edges.keep(~crosses)
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


def _with_contention(
    moved: DependencyGraph, graph: DependencyGraph, chosen: Mask, constants: Constants
) -> DependencyGraph:
    """Lengthen gaps during a copy, because launches share the link, and kernels, because they share the memory."""
    ops = graph.operations
    time, rows = replay(moved).time, np.arange(len(ops.row))
    start, end = time[moved.starts(rows)], time[moved.ends(rows)]
    copies: Intervals = union(np.sort(start[chosen]), end[chosen][np.argsort(start[chosen], kind="stable")])
    beside = (covered_length(copies, start, np.maximum(end, start + 1)) > 0) & (ops.code == COMPUTE)
    weight = moved.edges.weight.copy()
    weight[moved.operation_edges(STREAM, beside)] += constants.beside_copy
    run = moved.operation_edges(RUN, beside & ~ops.is_matrix)
    weight[run] += (weight[run] * constants.beside_slow).astype(np.int64)
    return moved.with_weight(weight)


PREFETCH = GraphChange(
    "prefetch",
    "Copy on a separate stream, one batch ahead",
    "a batch that is ready when the previous iteration begins; two buffers on the GPU",
    apply,
)
