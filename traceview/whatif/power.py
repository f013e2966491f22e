"""A GPU that works more of the time draws more power; at its cap it clocks lower, and matrix products take longer.

So a change that fills the GPU's pauses gains a little less than the pauses. How much the kernels draw, a capture
does not say: the range goes from nothing to what large products draw (constants.POWER).
"""

from __future__ import annotations

import math

import numpy as np

from traceview.model.trace import CLASSES
from traceview.whatif.constants import Constants, power_of
from traceview.whatif.graph import RUN, Graph, Mask
from traceview.whatif.storms import FAMILIES

LEAST = 0.001  # a smaller difference is none
KERNELS = tuple(CLASSES.index(name) for name in ("compute", "communication", "memset"))


def clocked(before: Graph, measured: int, after: Graph, time: int, constants: Constants) -> Graph:
    """Return `after` with the matrix products as long as the clock makes them; times in ns an iteration."""
    slower = (_slow(after, time) / _slow(before, measured) - 1) * constants.power
    if abs(slower) < LEAST:
        return after
    weight = after.edges.weight.copy()
    run = after.of_operations(RUN, _matrix(after))
    weight[run] += (weight[run] * slower).astype(np.int64)
    return after.with_edges(after.edges.weighing(weight))


def _matrix(graph: Graph) -> Mask:
    found: Mask = graph.operations.family == FAMILIES.index("matrix")
    return found


def _slow(graph: Graph, time: int) -> float:
    """Return how many times as long products take at this time an iteration as at the highest clock."""
    power = power_of(graph.facts.gpu)
    if power is None:
        return 1.0
    of = graph.operations
    counted = np.isin(of.code, KERNELS) & (of.iteration >= graph.first) & (of.iteration < graph.last)
    matrix = _matrix(graph)
    needed = power.rest
    for chosen, watts in ((counted & matrix, power.matrix), (counted & ~matrix, power.other)):
        busy = int(graph.edges.weight[graph.of_operations(RUN, chosen)].sum()) / graph.counted
        needed += watts * min(1.0, busy / max(time, 1))
    return math.sqrt(max(1.0, needed / power.cap))
