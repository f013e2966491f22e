"""Hide data loading: workers prepare the batch before the loop needs it.

Symptom: host time in a range named after data, batches or loading; without such a range, a pause of the host before it
copies a batch. With the change, the thread that launches does not spend this time.
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
        return "the host does not pause before it copies a batch, and no range is named after data, batches or loading"
    edges, weight = graph.edges, graph.edges.weight.copy()
    gap = graph.call_edges(GAP, loading > 0)
    hidden = (loading[edges.target[gap] // 2] * (1 - constants.loading)).astype(np.int64)
    weight[gap] = np.maximum(0, weight[gap] - hidden)
    return graph.with_weight(weight)


LOADING = GraphChange(
    "load",
    "Hide data loading",
    "other threads or processes that prepare the input and keep up",
    apply,
    in_pytorch="workers that keep up: num_workers, persistent_workers",
)
