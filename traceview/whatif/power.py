"""The effect of the GPU's power cap: a busier GPU draws more power, and at the cap matrix products take longer.

A change that fills the GPU's idle time therefore gains a little less than the idle time. A capture does not show how
much power the kernels draw. The range goes from none to that of large matrix products (constants.POWER_LIMITS).
"""

from __future__ import annotations

import math

import numpy as np

from traceview.model.trace import CLASSES
from traceview.whatif.constants import Constants, power_limits
from traceview.whatif.graph import RUN, DependencyGraph, Mask
from traceview.whatif.storms import FAMILIES

MIN_SLOWDOWN = 0.001  # a smaller slowdown is ignored
KERNELS = tuple(CLASSES.index(name) for name in ("compute", "communication", "memset"))


def with_clock(
    before: DependencyGraph, measured: int, after: DependencyGraph, time: int, constants: Constants
) -> DependencyGraph:
    """Return `after` with matrix products slowed by the lower clock. Times are ns per iteration."""
    slower = (_slowdown_at(after, time) / _slowdown_at(before, measured) - 1) * constants.power
    if abs(slower) < MIN_SLOWDOWN:
        return after
    weight = after.edges.weight.copy()
    run = after.operation_edges(RUN, _is_matrix(after))
    weight[run] += (weight[run] * slower).astype(np.int64)
    return after.with_edges(after.edges.with_weight(weight))


def _is_matrix(graph: DependencyGraph) -> Mask:
    mask: Mask = graph.operations.family == FAMILIES.index("matrix")
    return mask


def _slowdown_at(graph: DependencyGraph, time: int) -> float:
    """Return the factor by which matrix products take longer than at the highest clock, for this iteration time."""
    limits = power_limits(graph.facts.gpu)
    if limits is None:
        return 1.0
    ops = graph.operations
    counted = np.isin(ops.code, KERNELS) & (ops.iteration >= graph.first) & (ops.iteration < graph.last)
    matrix = _is_matrix(graph)
    needed = limits.rest
    for chosen, watts in ((counted & matrix, limits.matrix), (counted & ~matrix, limits.other)):
        busy = int(graph.edges.weight[graph.operation_edges(RUN, chosen)].sum()) / graph.counted
        needed += watts * min(1.0, busy / max(time, 1))
    return math.sqrt(max(1.0, needed / limits.cap))
