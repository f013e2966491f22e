"""Communication overlapped: nothing waits for it, and it only has to be done when the iteration is.

Symptom: communication kernels that compute waits for. With the change, what waited for communication waits for
the work that the communication itself waited for: order among the rest of the work stays as it was.
"""

from __future__ import annotations

import numpy as np

from traceview.whatif.changes.base import COMMUNICATION, Change
from traceview.whatif.constants import Constants
from traceview.whatif.graph import EVENT, RUN, Codes, Graph, Mask


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
    into = between & talks[np.where(between, target, 0)]
    behind = _behind(graph, talks, source[into], target[into])
    before, after = behind[source[waits]], target[waits]
    known = before >= 0
    kept = edges.keep(~waits)
    return graph.with_edges(
        kept.plus(graph.ends(before[known]), graph.starts(after[known]), graph.facts.kernel_gap, EVENT)
    )


def _behind(graph: Graph, talks: Mask, source: Codes, target: Codes) -> Codes:
    """Return the last other work that each communication waits for, itself or by those before it; -1 for none."""
    end = graph.operations.end
    found = np.full(len(talks), -1, np.int64)
    order = np.argsort(graph.operations.start[target], kind="stable")
    # One step a wait of a communication kernel, of which an iteration has some tens.
    for before, after in zip(source[order].tolist(), target[order].tolist(), strict=True):
        other = int(found[before]) if talks[before] else before
        if other >= 0 and (found[after] < 0 or end[other] > end[found[after]]):
            found[after] = other
    return found


OVERLAP = Change(
    "overlap",
    "Overlap communication with compute",
    "buckets small enough to start early, and ranks that arrive together",
    apply,
)
