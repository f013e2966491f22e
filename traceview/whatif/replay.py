"""Replay a graph: when every moment comes, the time of an iteration, and the critical path.

One pass in the order of dependence. It is a loop in Python because each moment needs those before it; it covers
a few iterations (select.LARGEST operations), never a run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceview.intervals import Times
from traceview.model.trace import CLASSES
from traceview.model.whatif import PATH
from traceview.whatif.graph import KINDS, RUN, Codes, Graph

COUNTED = tuple(CLASSES.index(name) for name in ("compute", "communication"))


class CircleError(ValueError):
    """The edges go round in a circle: no order of work satisfies them."""


@dataclass(frozen=True, slots=True)
class Replay:
    """`time` of each node in ns; `binding` the edge that decided it, -1 where it was released."""

    time: Times
    binding: Codes
    begin: int
    end: int
    per_iteration: int


def replay(graph: Graph) -> Replay:
    """Return when everything happens.

    Raises CircleError when the edges go round in a circle.
    """
    edges, count = graph.edges, len(graph.release)
    order = np.argsort(edges.source, kind="stable")
    first = np.searchsorted(edges.source[order], np.arange(count + 1)).tolist()
    target, weight = edges.target[order].tolist(), edges.weight[order].tolist()
    waiting = np.bincount(edges.target, minlength=count).tolist()
    time, binding = graph.release.tolist(), [-1] * count
    ready = [node for node in range(count) if not waiting[node]]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        now = time[node]
        for edge in range(first[node], first[node + 1]):
            other = target[edge]
            moment = now + weight[edge]
            if moment > time[other]:
                time[other] = moment
                binding[other] = edge
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    if done < count:
        raise CircleError("the dependencies go round in a circle")
    found = np.array(binding, np.int64)
    found[found >= 0] = order[found[found >= 0]]
    return _replay(graph, np.array(time, np.int64), found)


def _replay(graph: Graph, time: Times, binding: Codes) -> Replay:
    begin, end = window(graph, time)
    return Replay(time, binding, begin, end, (end - begin) // graph.counted)


def window(graph: Graph, time: Times) -> tuple[int, int]:
    """Return from the end of the GPU's work before the counted iterations to the end of theirs."""
    rows = np.arange(len(graph.operations.row))
    mine = np.isin(graph.operations.code, COUNTED)
    if not (mine & (graph.operations.iteration >= graph.first)).any():
        mine = np.ones(len(rows), np.bool_)
    iteration = graph.operations.iteration
    counted = mine & (iteration >= graph.first) & (iteration < graph.last)
    before = mine & (iteration >= 0) & (iteration < graph.first)
    end = int(time[graph.ends(rows[counted])].max())
    if before.any():
        return int(time[graph.ends(rows[before])].max()), end
    inside = (iteration >= graph.first) & (iteration < graph.last)
    return int(time[graph.starts(rows[inside])].min()), end


def critical(graph: Graph, of: Replay) -> list[int]:
    """Return the edges of the critical path of the counted iterations, the last one first."""
    rows = np.arange(len(graph.operations.row))
    ends = graph.ends(rows)
    last = ends[of.time[ends] == of.end]
    node, path = int(last[0]), []
    while of.time[node] > of.begin and of.binding[node] >= 0:
        edge = int(of.binding[node])
        path.append(edge)
        node = int(graph.edges.source[edge])
    return path


def kind_of(graph: Graph, edge: int) -> str:
    """Say which of PATH an edge of the critical path is."""
    if graph.edges.kind[edge] != RUN:
        return KINDS[int(graph.edges.kind[edge])]
    operation = (int(graph.edges.target[edge]) - 2 * len(graph.calls.row)) // 2
    return CLASSES[int(graph.operations.code[operation])]


def stretches(graph: Graph, of: Replay) -> list[tuple[int, int, int]]:
    """Return (edge, start, end) along the critical path, first to last: they follow each other without gaps.

    A call may return before the copy that it waits for has ended; then the copy counts until that return.
    """
    found, until = [], of.end
    for edge in critical(graph, of):
        since = max(int(of.time[graph.edges.source[edge]]), of.begin)
        if since < until:
            found.append((edge, since, until))
            until = since
    return found[::-1]


def made_of(graph: Graph, of: Replay) -> dict[str, int]:
    """Return the ns per iteration of each kind of PATH on the critical path."""
    total = dict.fromkeys(PATH, 0)
    for edge, start, end in stretches(graph, of):
        total[kind_of(graph, edge)] += end - start
    return {kind: ns // graph.counted for kind, ns in total.items()}
