"""Communication overlapped: nothing waits for it, and it only has to be done when the iteration is.

Symptom: communication kernels that compute waits for.
"""

from __future__ import annotations

import numpy as np

from traceview.estimate.changes.base import COMMUNICATION, Change
from traceview.estimate.constants import Constants
from traceview.estimate.graph import RUN, Graph


def apply(graph: Graph, constants: Constants) -> Graph | str:
    """Return the graph in which work of other kinds does not wait for communication."""
    of, edges = graph.operations, graph.edges
    talks = of.code == COMMUNICATION
    if not talks.any():
        return "no communication"
    base = 2 * len(graph.calls.row)
    source, target = (edges.source - base) // 2, (edges.target - base) // 2
    between = (edges.source >= base) & (edges.target >= base) & (edges.kind != RUN)
    waits = between & talks[np.where(between, source, 0)] & ~talks[np.where(between, target, 0)]
    if not waits.any():
        return "nothing waits for the communication"
    return graph.with_edges(edges.keep(~waits))


OVERLAP = Change(
    "overlap",
    "Overlap communication with compute",
    "buckets small enough to start early, and ranks that arrive together",
    apply,
)
