"""The host waits every tenth step, or by an event far behind, instead of every step.

Symptom: a synchronization in each iteration; the GPU runs dry while the host returns and launches again.
With the change the host goes on; what it waited for is recorded as an event.
"""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import Change
from traceview.whatif.constants import EVENT_CALL, Constants
from traceview.whatif.graph import CALL, WAIT, Graph

EVERY = 10


def apply(graph: Graph, constants: Constants) -> Graph | str:
    """Return the graph with the waits of all but each EVERYth iteration gone."""
    calls = graph.calls
    inside = calls.sync & (calls.iteration >= 0)
    per = np.bincount(calls.iteration[inside], minlength=1)
    if np.count_nonzero(per) * 2 <= graph.counted:
        return "the host does not synchronize in most iterations"
    last = (calls.iteration - graph.first) % EVERY == EVERY - 1
    gone = inside & ~last
    if not gone.any():
        return "no more than one iteration in ten could do without its synchronization"
    weight = graph.edges.weight.copy()
    call = graph.of_calls(CALL, gone)
    weight[call] = np.minimum(weight[call], EVENT_CALL)
    return graph.with_edges(graph.edges.weighing(weight).keep(~graph.of_calls(WAIT, gone)))


SYNCHRONIZE = Change(
    "sync",
    f"Synchronize every {EVERY} steps, or by an event",
    "losses read late; memory for the batches that the host is ahead",
    apply,
)
