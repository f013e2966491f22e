"""Overlap communication: no other work waits for it; it only has to end with the iteration.

Symptom: compute waits for communication kernels. With the change, work that waited for communication waits for the work
that the communication itself waited for. The order of all other work stays the same.
"""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import COMMUNICATION, GraphChange
from traceview.whatif.constants import Constants
from traceview.whatif.graph import EVENT, RUN, Codes, DependencyGraph, Mask


def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    """Return the graph in which other work does not wait for communication."""
    ops, edges = graph.operations, graph.edges
    is_communication = ops.code == COMMUNICATION
    if not is_communication.any():
        return "no communication"
    base = 2 * len(graph.calls.row)
    source, target = graph.operations_at(edges.source), graph.operations_at(edges.target)
    between = (edges.source >= base) & (edges.target >= base) & (edges.kind != RUN)
    waits = between & is_communication[np.where(between, source, 0)] & ~is_communication[np.where(between, target, 0)]
    if not waits.any():
        return "nothing waits for the communication"
    into = between & is_communication[np.where(between, target, 0)]
    latest = _latest_awaited(graph, is_communication, source[into], target[into])
    before, after = latest[source[waits]], target[waits]
    known = before >= 0
    kept = edges.keep(~waits)
    return graph.with_edges(
        kept.plus(graph.ends(before[known]), graph.starts(after[known]), graph.facts.kernel_gap, EVENT)
    )


def _latest_awaited(graph: DependencyGraph, is_communication: Mask, source: Codes, target: Codes) -> Codes:
    """Return the last other work that each communication waits for, directly or indirectly; -1 for none."""
    end = graph.operations.end
    latest = np.full(len(is_communication), -1, np.int64)
    order = np.argsort(graph.operations.start[target], kind="stable")
    # One step for each wait of a communication kernel; an iteration has some tens.
    for before, after in zip(source[order].tolist(), target[order].tolist(), strict=True):
        other = int(latest[before]) if is_communication[before] else before
        if other >= 0 and (latest[after] < 0 or end[other] > end[latest[after]]):
            latest[after] = other
    return latest


OVERLAP = GraphChange(
    "overlap",
    "Overlap communication with compute",
    "communication in parts that can start early; ranks that arrive together",
    apply,
    in_pytorch="buckets small enough to start early; ranks that arrive together",
)
