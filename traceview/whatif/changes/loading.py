"""Hide data loading: workers prepare the batch before the loop needs it.

Symptom: host time in a range named after data, batches or loading. With the change, the thread that launches does not
spend this time.
"""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import GraphChange
from traceview.whatif.constants import Constants
from traceview.whatif.graph import GAP, DependencyGraph


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    """Return the graph without the host's time in data-loading ranges."""
    loading = graph.calls.loading
    if not loading.any():
        return "no host time in a range named after data, batches or loading"
    edges, weight = graph.edges, graph.edges.weight.copy()
    gap = graph.call_edges(GAP, loading > 0)
    weight[gap] = np.maximum(0, weight[gap] - loading[edges.target[gap] // 2])
    return graph.with_edges(edges.with_weight(weight))


LOADING = GraphChange("load", "Hide data loading", "workers that keep up: num_workers, persistent_workers", apply)
