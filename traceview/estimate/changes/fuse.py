"""Storms of small operations become one operation for each kind in them.

Symptom: the same few operations over and over, each shorter than its launch: a Python loop over elements.
With the change each operation of the repeated pattern runs once; the other rounds take no time, on the GPU nor
on the host.
"""

from __future__ import annotations

import numpy as np

from traceview.estimate.changes.base import COMMUNICATION, Change, launching
from traceview.estimate.constants import Constants
from traceview.estimate.graph import CALL, GAP, LAUNCH, QUEUE, RUN, STREAM, Codes, Graph, Mask
from traceview.model import CLASSES

TINY = 10_000  # ns: such a kernel takes less than its own launch
ROUNDS = 10  # of a pattern, one after the other
IRREGULAR = 2  # rounds that may differ between two stretches of a pattern
LONGEST = 16  # operations in a pattern
COUNT = len(CLASSES)


def apply(graph: Graph, constants: Constants) -> Graph | str:
    """Return the graph with every storm's rounds but the first one gone."""
    repeats = repeated(graph)
    if not repeats.any():
        return f"no pattern of up to {LONGEST} operations below {TINY // 1000} µs repeats {ROUNDS} times"
    weight = graph.edges.weight.copy()
    run = graph.of_operations(RUN, repeats)
    weight[run] = (weight[run] * constants.fused).astype(np.int64)
    weight[graph.of_operations(STREAM, repeats)] = 0
    weight[graph.of_operations(LAUNCH, repeats)] = 0
    calls = launching(graph, repeats) & ~launching(graph, ~repeats)
    weight[graph.of_calls(CALL, calls)] = 0
    gap = graph.of_calls(GAP, calls)
    weight[gap] = 0
    return graph.with_edges(graph.edges.weighing(weight).keep(~graph.of_calls(QUEUE, calls)))


def repeated(graph: Graph) -> Mask:
    """Return the operations that repeat one of a storm's first round."""
    of = graph.operations
    found = np.zeros(len(of.row), np.bool_)
    usable = (of.iteration >= 0) & (of.code != COMMUNICATION) & (of.call >= 0)
    tiny = (of.end - of.start <= TINY) & usable
    for stream in np.unique(of.stream):
        rows = np.flatnonzero(of.stream == stream)
        code = of.name[rows] * COUNT + of.code[rows]
        # Iterations never belong to one storm; neither do the stretches before and after a long kernel.
        part = np.cumsum(~tiny[rows]) * (of.iteration.max() + 2) + of.iteration[rows]
        for period in range(1, LONGEST + 1):
            found[rows[_repeats(code, part, period)]] = True
    return found


def _repeats(code: Codes, part: Codes, period: int) -> Codes:
    """Return the places that repeat the one a period before, in long stretches, over small irregularities."""
    same = np.zeros(len(code), np.bool_)
    same[period:] = (code[period:] == code[:-period]) & (part[period:] == part[:-period])
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
    begin, end = edges[::2], edges[1::2]
    kept = end - begin >= period * (ROUNDS - 1)
    begin, end = begin[kept], end[kept]
    if not len(begin):
        return begin
    # A round with one operation less is still a round: what lies between two stretches of the pattern is bridged.
    bridged = (begin[1:] - end[:-1] <= IRREGULAR * period) & (part[begin[1:]] == part[end[:-1] - 1])
    begin, end = begin[np.concatenate([[True], ~bridged])], end[np.concatenate([~bridged, [True]])]
    marks = np.zeros(len(code) + 1, np.int64)
    marks[begin], marks[end] = 1, -1
    return np.flatnonzero(np.cumsum(marks[:-1]))


FUSE = Change(
    "fuse",
    "Fuse storms of small kernels",
    "a loop over elements that can be written as one operation on the whole tensor, its backward likewise",
    apply,
)
