"""Launches that wait: a stream holds about a thousand launched operations, and the next launch call waits for room.

So a host that runs ahead is held inside launch calls, which then look like work. They are taken for what they
are: the call returns when the operation that many places before its own starts.
"""

from __future__ import annotations

import numpy as np

from traceview.whatif.constants import LAUNCH_CALL, QUEUE_DEPTH
from traceview.whatif.graph import CALL, QUEUE, Calls, Codes, Edges, Operations

LONG = 10 * LAUNCH_CALL  # ns: no launch with room takes so long
NEAR = 100  # places: how full the queue must have been for a long call to be a wait for room


def queue_edges(calls: Calls, of: Operations, edges: Edges) -> Edges:
    """Return the edges with those of the queues, and with waiting launches as long as others."""
    for stream in np.unique(of.stream[of.call >= 0]):
        rows = np.flatnonzero((of.stream == stream) & (of.call >= 0))
        edges = _of_stream(calls, of, edges, rows[np.argsort(of.call[rows], kind="stable")])
    return edges


def _of_stream(calls: Calls, of: Operations, edges: Edges, rows: Codes) -> Edges:
    call = of.call[rows]
    end, own = calls.end[call], (calls.end - calls.start)[call]
    begun = np.searchsorted(np.sort(of.start[rows]), end, side="right") - 1
    place = np.arange(len(rows))
    depth = place - begun
    held = (own > LONG) & (depth > QUEUE_DEPTH - NEAR) & (begun >= 0) & ~calls.blocking[call]
    usual = int(np.median(depth[held])) if held.any() else QUEUE_DEPTH
    before = np.where(held, begun, place - usual)
    there = before >= 0
    since = end - of.start[rows[np.maximum(before, 0)]]
    tail = np.where(held, since, np.minimum(since, 0))
    weight = edges.weight.copy()
    shorter = np.zeros(len(calls.row), np.bool_)
    shorter[call[held]] = True
    mine = (edges.kind == CALL) & shorter[np.minimum(edges.target // 2, len(calls.row) - 1)]
    weight[mine] = np.minimum(weight[mine], LAUNCH_CALL)
    base = 2 * len(calls.row)
    source = base + 2 * rows[before[there]]
    return edges.weighing(weight).plus(source, 2 * call[there] + 1, tail[there], QUEUE)
