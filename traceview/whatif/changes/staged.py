"""Micro-batches side by side: one's backward pass on a stream, the next one's forward pass on another.

Symptom: gradient accumulation, and kernels that leave the GPU room. With one batch a step there is nothing to run
beside: the next forward pass needs this step's weights, and autograd runs a backward pass on its forward's stream.
With the change each kernel but those of the first forward and last backward pass takes less, by the room it leaves.
"""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import COMPUTE, MEMSET, Change
from traceview.whatif.changes.passes import passes
from traceview.whatif.constants import Constants
from traceview.whatif.graph import RUN, STREAM, Graph

LEAST = 0.5  # of a kernel, what another stream's cannot take from it


def apply(graph: Graph, constants: Constants) -> Graph | str:
    """Return the graph with micro-batches on two streams."""
    of = graph.operations
    chosen = np.isin(of.code, [COMPUTE, MEMSET]) & (of.iteration >= 0)
    if len(np.unique(of.stream[chosen])) > 1:
        return "compute has several streams already"
    iterations = np.unique(of.iteration[chosen]).tolist()
    micro = float(np.median([len(passes(graph, one)) for one in iterations])) if iterations else 0
    if micro < 2:
        return (
            "one batch a step: the next forward pass needs this step's weights, and autograd runs a backward pass on "
            "its forward's stream; nothing can run side by side (with gradient accumulation, micro-batches can)"
        )
    beside = (micro - 1) / micro
    weight = graph.edges.weight.copy()
    gap = graph.of_operations(STREAM, chosen)
    weight[gap] = (weight[gap] * (1 - constants.filled * beside)).astype(np.int64)
    run = graph.of_operations(RUN, chosen)
    weight[run] = np.maximum((weight[run] * LEAST).astype(np.int64), weight[run] - int(constants.room * beside))
    return graph.with_edges(graph.edges.weighing(weight))


STAGED = Change(
    "staged",
    "Run micro-batches side by side on two streams",
    "a thread of its own for backward passes, and weights of its own for each stream (instrument's staged)",
    apply,
)
