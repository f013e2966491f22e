"""Fuse storms of small operations.

Symptom: the same few operations repeat, each shorter than its launch, because Python code loops over elements. With the
change, each operation of the repeated pattern runs once. The other rounds take no time on the GPU or the host. The host
time directly before and after a storm, and before and after its backward pass, is shorter for each element: views,
list entries and autograd nodes are not needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceview.intervals import Times
from traceview.whatif.changes.base import GraphChange, without_launches
from traceview.whatif.constants import Constants
from traceview.whatif.graph import GAP, RUN, Codes, DependencyGraph
from traceview.whatif.storms import MAX_SMALL, MIN_ROUNDS, Storm, find_storms


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    """Return the graph with only the first round of each storm."""
    storms = find_storms(graph)
    if not storms:
        return f"no loop launches operations below {MAX_SMALL // 1000} µs for {MIN_ROUNDS} rounds or more"
    repeats = np.zeros(len(graph.operations.row), np.bool_)
    for storm in storms:
        repeats[storm.members[~storm.kept]] = True
    weight = shorter_host_gaps(graph, storms, constants.element)
    run = graph.operation_edges(RUN, repeats)
    weight[run] = (weight[run] * constants.fused).astype(np.int64)
    return without_launches(graph, weight, repeats)


def shorter_host_gaps(graph: DependencyGraph, storms: Sequence[Storm], element: int) -> Times:
    """Return the edge weights with less host time around storms, but not below the median time between calls.

    `element` is that time in ns for each round of a storm.
    """
    edges, calls = graph.edges, graph.calls
    weight = edges.weight.copy()
    gap = np.flatnonzero(edges.kind == GAP)
    source, target = edges.source[gap] // 2, edges.target[gap] // 2
    threads = calls.thread[target]
    usual = {thread: int(np.median(weight[gap[threads == thread]])) for thread in np.unique(threads)}
    for storm in storms:
        own = graph.operations.call[storm.members]
        first, last = int(own.min()), int(own.max())
        same = calls.iteration[target] == calls.iteration[first]
        ends = same & ((target == first) | (source == last))
        crosses = same & (calls.thread[source] != calls.thread[target]) & (source >= first)
        for edge in (*gap[ends].tolist(), *_handovers(gap[crosses], source[crosses])):
            least = usual.get(int(calls.thread[edges.target[edge] // 2]), 0)
            weight[edge] = max(min(int(weight[edge]), least), int(weight[edge]) - element * storm.rounds)
    return weight


def _handovers(gap: Codes, source: Codes) -> list[int]:
    """Return the first two edges between threads: to autograd's thread and back, or only back."""
    edges: list[int] = gap[np.argsort(source, kind="stable")][:2].tolist()
    return edges


FUSE = GraphChange(
    "fuse",
    "Fuse storms of small kernels",
    "one kernel that does the work of all rounds of a loop",
    apply,
    in_pytorch="a loop over elements that one operation on the full tensor can replace, in the backward pass too",
)
