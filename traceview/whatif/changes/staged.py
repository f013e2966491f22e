"""Run micro-batches concurrently: the backward pass of one and the forward pass of the next on separate streams.

Symptom: gradient accumulation, and kernels that do not fill the GPU. With one batch a step nothing can run
concurrently: the next forward pass needs this step's weights, and autograd runs a backward pass on the stream of its
forward pass. With the change, kernels take less time, except in the first forward and the last backward pass.
"""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import COMPUTE, MEMSET, GraphChange, backward_passes
from traceview.whatif.constants import Constants
from traceview.whatif.graph import RUN, STREAM, DependencyGraph

MIN_SHARE = 0.5  # share of a kernel's time that always remains


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    """Return the graph with micro-batches on two streams."""
    ops = graph.operations
    chosen = np.isin(ops.code, [COMPUTE, MEMSET]) & (ops.iteration >= 0)
    if len(np.unique(ops.stream[chosen])) > 1:
        return "compute has several streams already"
    iterations = np.unique(ops.iteration[chosen]).tolist()
    micro = float(np.median([len(backward_passes(graph, index)) for index in iterations])) if iterations else 0
    if micro < 2:
        return (
            "one batch a step: the next forward pass needs the updated weights (with gradient accumulation, "
            "micro-batches can run concurrently)"
        )
    beside = (micro - 1) / micro
    weight = graph.edges.weight.copy()
    gap = graph.operation_edges(STREAM, chosen)
    weight[gap] = (weight[gap] * (1 - constants.filled * beside)).astype(np.int64)
    run = graph.operation_edges(RUN, chosen)
    weight[run] = np.maximum((weight[run] * MIN_SHARE).astype(np.int64), weight[run] - int(constants.room * beside))
    return graph.with_weight(weight)


STAGED = GraphChange(
    "staged",
    "Run micro-batches concurrently on two streams",
    "a separate thread for backward passes, and separate weights for each stream (instrument's staged)",
    apply,
    training_only=True,
)
