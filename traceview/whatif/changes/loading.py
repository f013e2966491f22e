"""Data loading hidden: the batch is there when the loop asks for it.

Symptom: host time in a range whose name speaks of data, batches or loading.
With the change that time is gone from the thread that launches (workers, one batch ahead).
"""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import Change
from traceview.whatif.constants import Constants
from traceview.whatif.graph import GAP, Graph


def apply(graph: Graph, constants: Constants) -> Graph | str:
    """Return the graph without the host's time in data-loading ranges."""
    loading = graph.calls.loading
    if not loading.any():
        return "no host time in a range named after data, batches or loading"
    edges, weight = graph.edges, graph.edges.weight.copy()
    gap = graph.of_calls(GAP, loading > 0)
    weight[gap] = np.maximum(0, weight[gap] - loading[edges.target[gap] // 2])
    return graph.with_edges(edges.weighing(weight))


LOADING = Change("load", "Hide data loading", "workers that keep up: num_workers, persistent_workers", apply)
