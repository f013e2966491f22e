"""Storms of small operations become one operation for each kind in them.

Symptom: the same few operations over and over, each shorter than its launch: a Python loop over elements.
With the change each operation of the repeated pattern runs once; the other rounds take no time, on the GPU nor
on the host. The host's time right before and behind a storm, and before and behind the backward pass that comes
after it, is shorter for each element that needs no view, no place in a list and no nodes of autograd's.
"""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times
from traceview.whatif.changes.base import Change, launching
from traceview.whatif.constants import Constants
from traceview.whatif.graph import CALL, GAP, LAUNCH, QUEUE, RUN, STREAM, Codes, Graph
from traceview.whatif.storms import ROUNDS, TINY, Storm, storms


def apply(graph: Graph, constants: Constants) -> Graph | str:
    """Return the graph with every storm's rounds but the first one gone."""
    found = storms(graph)
    if not found:
        return f"nothing below {TINY // 1000} µs is launched over and over, {ROUNDS} rounds or more"
    repeats = np.zeros(len(graph.operations.row), np.bool_)
    for storm in found:
        repeats[storm.members[~storm.kept]] = True
    weight = _edges_of(graph, found, constants.element)
    run = graph.of_operations(RUN, repeats)
    weight[run] = (weight[run] * constants.fused).astype(np.int64)
    weight[graph.of_operations(STREAM, repeats)] = 0
    weight[graph.of_operations(LAUNCH, repeats)] = 0
    calls = launching(graph, repeats) & ~launching(graph, ~repeats)
    weight[graph.of_calls(CALL, calls)] = 0
    weight[graph.of_calls(GAP, calls)] = 0
    return graph.with_edges(graph.edges.weighing(weight).keep(~graph.of_calls(QUEUE, calls)))


def _edges_of(graph: Graph, found: list[Storm], element: int) -> Times:
    """Return the weights with the host's time around storms shorter, down to what is usual between calls."""
    edges, calls = graph.edges, graph.calls
    weight = edges.weight.copy()
    gap = np.flatnonzero(edges.kind == GAP)
    source, target = edges.source[gap] // 2, edges.target[gap] // 2
    usual = {one: int(np.median(weight[gap[calls.thread[target] == one]])) for one in np.unique(calls.thread[target])}
    for storm in found:
        own = graph.operations.call[storm.members]
        first, last = int(own.min()), int(own.max())
        same = calls.iteration[target] == calls.iteration[first]
        ends = same & ((target == first) | (source == last))
        crosses = same & (calls.thread[source] != calls.thread[target]) & (source >= first)
        for edge in (*gap[ends].tolist(), *_there_and_back(gap[crosses], source[crosses])):
            least = usual.get(int(calls.thread[edges.target[edge] // 2]), 0)
            weight[edge] = max(min(int(weight[edge]), least), int(weight[edge]) - element * storm.rounds)
    return weight


def _there_and_back(gap: Codes, source: Codes) -> list[int]:
    """Return the first two edges between threads: to autograd's and back, or back alone from inside it."""
    found: list[int] = gap[np.argsort(source, kind="stable")][:2].tolist()
    return found


FUSE = Change(
    "fuse",
    "Fuse storms of small kernels",
    "a loop over elements that can be written as one operation on the whole tensor, its backward likewise",
    apply,
)
