"""Synchronize every tenth step, or wait for an event of an earlier step, instead of synchronizing every step.

Symptom: a synchronization in each iteration. The GPU is idle while the host returns and launches again. With the
change, the host records an event and continues.
"""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import GraphChange
from traceview.whatif.constants import EVENT_CALL, Constants
from traceview.whatif.graph import CALL, WAIT, DependencyGraph

EVERY = 10  # iterations


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    """Return the graph with the waits of only every EVERYth iteration."""
    calls = graph.calls
    inside = calls.sync & (calls.iteration >= 0)
    per = np.bincount(calls.iteration[inside], minlength=1)
    if np.count_nonzero(per) * 2 <= graph.counted:
        return "the host does not synchronize in most iterations"
    last = (calls.iteration - graph.first) % EVERY == EVERY - 1
    gone = inside & ~last
    if not gone.any():
        return "no iteration has a synchronization that could be removed: every tenth one stays"
    weight = graph.edges.weight.copy()
    call = graph.call_edges(CALL, gone)
    weight[call] = np.minimum(weight[call], EVENT_CALL)
    return graph.with_edges(graph.edges.with_weight(weight).keep(~graph.call_edges(WAIT, gone)))


SYNCHRONIZE = GraphChange(
    "sync",
    f"Synchronize every {EVERY} steps, or by an event",
    "losses are read later; memory for the batches that the host is ahead",
    apply,
)
