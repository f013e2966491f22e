"""Host memory of copies becomes pinned, and the copies no longer hold the host (`pin_memory`, `non_blocking=True`).

Symptom: copies from or to pageable memory; the driver stages them, and the call returns when that is done.
With the change a copy takes its bytes at the pinned rate, and its call what an asynchronous one takes. A
synchronization that comes next on the thread is the blocking copy's own (`tensor.to` makes it) and goes too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traceview.model.trace import MEMORIES
from traceview.whatif.changes.base import LARGE, Change
from traceview.whatif.constants import ASYNC_CALL, COPY_LATENCY, Constants
from traceview.whatif.graph import CALL, GAP, LAUNCH, RUN, WAIT, Graph, Mask

PAGEABLE, PINNED = MEMORIES.index("pageable"), MEMORIES.index("pinned")


def apply(graph: Graph, constants: Constants) -> Graph | str:
    """Return the graph with every pageable copy pinned."""
    of, calls, edges = graph.operations, graph.calls, graph.edges
    chosen = (of.memory == PAGEABLE) & (of.kind >= 0)
    if not chosen.any():
        return "no copy from or to pageable memory"
    holding = np.zeros(len(calls.row), np.bool_)
    holding[of.call[chosen & (of.call >= 0)]] = True
    holding &= calls.blocking
    own = _next_synchronizations(graph, holding)
    weight = edges.weight.copy()
    run = graph.of_operations(RUN, chosen)
    operation = (edges.target[run] - 2 * len(calls.row)) // 2
    taken = (of.size[operation] / (graph.facts.pinned_rate * constants.rate)).astype(np.int64)
    weight[run] = np.where(of.size[operation] >= LARGE, taken, np.minimum(weight[run], taken + ASYNC_CALL))
    weight[graph.of_calls(CALL, holding)] = ASYNC_CALL
    launch = graph.of_operations(LAUNCH, chosen)
    weight[launch] = np.minimum(weight[launch], COPY_LATENCY)
    weight[graph.of_calls(CALL, own)] = 0
    gone = graph.of_calls(WAIT, holding | own)
    pinned = replace(of, memory=np.where(chosen, PINNED, of.memory))
    return replace(graph, operations=pinned, edges=edges.weighing(weight).keep(~gone))


def on_the_spot(graph: Graph, constants: Constants) -> Graph | str:
    """Return the same, where the loop itself fills the pinned buffer of each batch (`batch.pin_memory()`)."""
    pinned = apply(graph, constants)
    if isinstance(pinned, str):
        return pinned
    of = graph.operations
    chosen = (of.memory == PAGEABLE) & (of.kind >= 0) & (of.call >= 0)
    cost = np.zeros(len(graph.calls.row), np.int64)
    np.add.at(cost, of.call[chosen], (of.size[chosen] / graph.facts.staging_rate).astype(np.int64))
    weight = pinned.edges.weight.copy()
    gap = pinned.of_calls(GAP, cost > 0)
    weight[gap] += cost[pinned.edges.target[gap] // 2]
    return pinned.with_edges(pinned.edges.weighing(weight))


def _next_synchronizations(graph: Graph, holding: Mask) -> Mask:
    """Return the synchronizations that directly follow a holding call on its thread."""
    calls, found = graph.calls, np.zeros(len(graph.calls.row), np.bool_)
    for thread in np.unique(calls.thread[holding]):
        rows = np.flatnonzero(calls.thread == thread)
        found[rows[1:][holding[rows[:-1]] & calls.sync[rows[1:]]]] = True
    return found


PIN = Change(
    "pin",
    "Pin host memory",
    "non_blocking=True, and batches pinned by somebody else than the loop (DataLoader(pin_memory=True))",
    apply,
)
PIN_HERE = Change(
    "pin-here",
    "Pin each batch on the spot",
    "batch.pin_memory() in the loop: the host fills the pinned buffer at the rate of pageable copies",
    on_the_spot,
)
