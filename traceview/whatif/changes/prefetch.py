"""Copies of batches on a stream of their own, one batch ahead.

Symptom: large h2d copies on the stream of the kernels: every kernel after them waits.
With the change the copy that an iteration issues is the next one's batch: it waits for the copy engine and for
the iteration before to give its buffer back, and the next iteration's kernels wait for it.
"""

from __future__ import annotations

import numpy as np

from traceview.intervals import Intervals, covered_length, union
from traceview.model.trace import MEMORIES
from traceview.whatif.changes.base import COMPUTE, H2D, LARGE, Change
from traceview.whatif.constants import Constants
from traceview.whatif.graph import EVENT, RUN, STREAM, Codes, Graph, Mask
from traceview.whatif.replay import replay
from traceview.whatif.storms import FAMILIES


def apply(graph: Graph, constants: Constants) -> Graph | str:
    """Return the graph with the copies ahead; a copy over the link widens the kernels' gaps meanwhile."""
    of = graph.operations
    kernels = np.unique(of.stream[of.code == COMPUTE])
    # A batch is what an iteration copies; small tensors of a batch go with the large ones.
    chosen = (of.kind == H2D) & np.isin(of.stream, kernels) & (of.iteration >= 0)
    if not (chosen & (of.size >= LARGE)).any():
        ahead = (of.kind == H2D) & (of.size >= LARGE)
        return "the copies have a stream of their own" if ahead.any() else "no large copy to the GPU"
    if (of.memory[chosen & (of.size >= LARGE)] == MEMORIES.index("pageable")).any():
        return "the copies are from pageable memory and hold the host: pin it first"
    moved = _moved(graph, chosen)
    return _widened(moved, graph, chosen, constants)


def _moved(graph: Graph, chosen: Mask) -> Graph:
    of, edges = graph.operations, graph.edges
    base = 2 * len(graph.calls.row)
    edge = edges.kind == STREAM
    source, target = ((nodes - base) // 2 for nodes in (edges.source, edges.target))
    crosses = edge & (chosen[np.where(edge, source, 0)] != chosen[np.where(edge, target, 0)])
    kept = edges.keep(~crosses)
    gap = graph.facts.kernel_gap
    for stream in np.unique(of.stream[chosen]):
        rows = np.flatnonzero((of.stream == stream) & ~chosen)
        after = rows[1:][np.diff(np.searchsorted(np.flatnonzero(chosen & (of.stream == stream)), rows)) > 0]
        earlier = rows[np.searchsorted(rows, after) - 1]
        kept = kept.plus(graph.ends(earlier), graph.starts(after), gap, STREAM)
        for iteration in np.unique(of.iteration[chosen & (of.stream == stream)]).tolist():
            copies = np.flatnonzero(chosen & (of.stream == stream) & (of.iteration == iteration))
            used = _first_after(rows, of.iteration, iteration + 1)
            free = _last_of(rows, of.iteration, iteration - 1)
            kept = kept.plus(graph.ends(np.repeat(copies[-1], len(used))), graph.starts(used), gap, EVENT)
            kept = kept.plus(graph.ends(free), graph.starts(np.repeat(copies[0], len(free))), gap, EVENT)
    return graph.with_edges(kept)


def _first_after(rows: Codes, iterations: Codes, iteration: int) -> Codes:
    found: Codes = rows[iterations[rows] == iteration]
    return found[:1]


def _last_of(rows: Codes, iterations: Codes, iteration: int) -> Codes:
    found: Codes = rows[iterations[rows] == iteration]
    return found[-1:]


def _widened(moved: Graph, graph: Graph, chosen: Mask, constants: Constants) -> Graph:
    """Lengthen what runs beside a copy: gaps, as launches share the link, and kernels that share the memory."""
    of = graph.operations
    time, rows = replay(moved).time, np.arange(len(of.row))
    start, end = time[moved.starts(rows)], time[moved.ends(rows)]
    copies: Intervals = union(np.sort(start[chosen]), end[chosen][np.argsort(start[chosen], kind="stable")])
    beside = (covered_length(copies, start, np.maximum(end, start + 1)) > 0) & (of.code == COMPUTE)
    weight = moved.edges.weight.copy()
    weight[moved.of_operations(STREAM, beside)] += constants.beside_copy
    run = moved.of_operations(RUN, beside & (of.family != FAMILIES.index("matrix")))
    weight[run] += (weight[run] * constants.beside_slow).astype(np.int64)
    return moved.with_edges(moved.edges.weighing(weight))


PREFETCH = Change(
    "prefetch",
    "Copy on a stream of its own, one batch ahead",
    "a batch that is ready when the iteration before it begins, and two buffers on the GPU",
    apply,
)
