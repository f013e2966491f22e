"""Synchronize every tenth step, or wait for an event of an earlier step, instead of synchronizing every step.

Symptom: in each iteration the host waits for the GPU: a synchronization, or a small copy to the host that blocks (a
value that is read, `loss.item()`). The GPU is idle while the host returns and launches again. With the change, the
host records an event and continues, and values are read later.
"""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import COMPUTE, D2H, LARGE_COPY, GraphChange, launching_calls
from traceview.whatif.constants import EVENT_CALL, Constants
from traceview.whatif.graph import CALL, GAP, WAIT, Codes, DependencyGraph, Mask

EVERY = 10  # iterations


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    """Return the graph with the waits of only every EVERYth iteration."""
    calls = graph.calls
    reads = _reading_calls(graph)
    waits = (calls.sync | (reads & calls.blocking)) & (calls.iteration >= 0)
    per = np.bincount(calls.iteration[waits], minlength=1)
    if np.count_nonzero(per) * 2 <= graph.counted:
        return "the host does not wait for the GPU in most iterations"
    gone = waits & ((calls.iteration - graph.first) % EVERY != EVERY - 1)
    if not gone.any():
        return "no iteration has a synchronization that could be removed: every tenth one stays"
    places = _places(graph, waits)
    if not constants.all_waits:
        gone &= _longest_waits(graph, waits, places)
    gone_reads = reads & (gone | _next_on_thread(graph, gone))
    weight = graph.edges.weight.copy()
    call = graph.call_edges(CALL, gone)
    weight[call] = np.minimum(weight[call], EVENT_CALL)
    weight[graph.call_edges(CALL, gone_reads)] = 0
    gap = graph.call_edges(GAP, gone_reads)
    beyond = np.maximum(weight[gap] - int(np.median(weight[graph.edges.kind == GAP])), 0)
    weight[gap] -= (beyond * constants.reads).astype(np.int64)
    changed = graph.with_edges(graph.edges.with_weight(weight).keep(~graph.call_edges(WAIT, gone | gone_reads)))
    count = round(np.count_nonzero(np.diff(places, prepend=-1)) / max(int(np.count_nonzero(per)), 1))
    if count < 2:
        return changed
    remark = f"{count} waits per iteration: at the upper end of the range, only the longest is removed"
    return changed._replace(remarks=(*graph.remarks, remark))


def _reading_calls(graph: DependencyGraph) -> Mask:
    """Return the mask of calls that copy a small value to the host."""
    ops = graph.operations
    mask = np.zeros(len(graph.calls.row), np.bool_)
    mask[ops.call[(ops.kind == D2H) & (ops.size < LARGE_COPY) & (ops.call >= 0)]] = True
    return mask


def _next_on_thread(graph: DependencyGraph, chosen: Mask) -> Mask:
    """Return the mask of calls whose next call on their thread is chosen."""
    order = np.lexsort((np.arange(len(chosen)), graph.calls.thread))
    same = graph.calls.thread[order][1:] == graph.calls.thread[order][:-1]
    mask = np.zeros(len(chosen), np.bool_)
    mask[order[:-1][same & chosen[order[1:]]]] = True
    return mask


def _places(graph: DependencyGraph, waits: Mask) -> Codes:
    """Return the place of each wait among those of its iteration; waits without a kernel between them share a place."""
    rows = np.flatnonzero(waits)
    launched = np.cumsum(launching_calls(graph, graph.operations.code == COMPUTE))[rows]
    iteration = graph.calls.iteration[rows]
    first = np.diff(iteration, prepend=-1) != 0
    number = np.cumsum(first | (np.diff(launched, prepend=-1) != 0))
    places: Codes = number - number[first][np.cumsum(first) - 1]
    return places


def _longest_waits(graph: DependencyGraph, waits: Mask, places: Codes) -> Mask:
    """Return the mask of the waits at the place in the iteration where the host is blocked the longest in total."""
    rows = np.flatnonzero(waits)
    blocked = np.bincount(places, weights=(graph.calls.end - graph.calls.start)[rows])
    mask = np.zeros(len(waits), np.bool_)
    mask[rows[places == int(np.argmax(blocked))]] = True
    return mask


SYNCHRONIZE = GraphChange(
    "sync",
    f"Synchronize every {EVERY} steps, or by an event",
    "values such as losses are read later, no launch depends on them; memory for the batches that the host is ahead",
    apply,
)
