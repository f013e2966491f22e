"""Replay a graph: the time of each node, the time of an iteration, and the critical path.

The replay is one pass over the edges in an order in which each leads forward. It is a Python loop because each node
depends on earlier nodes. It covers a few iterations (at most select.MAX_OPERATIONS operations), not the full capture.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.model.trace import CLASSES, Trace
from traceview.model.whatif import PATH, PathSpan
from traceview.whatif.graph import CALL, GAP, KINDS, QUEUE, RUN, WAIT, Codes, DependencyGraph, Edges

COUNTED = tuple(CLASSES.index(name) for name in ("compute", "communication"))


class UnfitGraphError(ValueError):
    """The edges form a cycle."""


class NoWorkError(UnfitGraphError):
    """No operation of the counted iterations is in the graph."""


class Replay(NamedTuple):
    """`time` is the time of each node in ns; `binding` is the edge that determined it, -1 if it was `release`.

    `positions` are those of the nodes in an order in which every edge leads forward.
    """

    time: Times
    binding: Codes
    positions: Codes
    begin: int
    end: int
    per_iteration: int


def replay(graph: DependencyGraph, before: Replay | None = None) -> Replay:
    """Return the time of each node. Raises UnfitGraphError.

    `before` is a replay of the same nodes with other edges or weights. It saves time, because its order often fits.
    """
    edges = graph.edges
    positions = _measured_positions(graph) if before is None else before.positions
    if not (positions[edges.source] < positions[edges.target]).all():
        positions = _node_positions(edges, len(graph.release))
    order = np.argsort(positions[edges.source], kind="stable")
    source, target, weight = edges.source[order], edges.target[order], edges.weight[order]
    time = graph.release.tolist()
    for start, end, least in zip(source.tolist(), target.tolist(), weight.tolist(), strict=True):
        earliest = time[start] + least
        if earliest > time[end]:
            time[end] = earliest
    times = np.array(time, np.int64)
    # The first edge that gives a node its time determines it.
    exact = np.flatnonzero((times[source] + weight == times[target]) & (times[target] > graph.release[target]))[::-1]
    binding = np.full(len(times), -1, np.int64)
    binding[target[exact]] = order[exact]
    begin, end = _counted_window(graph, times)
    return Replay(times, binding, positions, begin, end, (end - begin) // graph.counted)


def _measured_positions(graph: DependencyGraph) -> Codes:
    """Return the position of each node in the order of measured times, in which most edges lead forward."""
    calls, ops = graph.calls, graph.operations
    times = np.concatenate([np.stack([part.start, part.end], axis=1).ravel() for part in (calls, ops)])
    positions = np.empty(len(times), np.int64)
    positions[np.argsort(times, kind="stable")] = np.arange(len(times))
    return positions


def _node_positions(edges: Edges, count: int) -> Codes:
    """Return the position of each of `count` nodes in an order in which every edge leads forward."""
    first = np.searchsorted(np.sort(edges.source), np.arange(count + 1)).tolist()
    target = edges.target[np.argsort(edges.source, kind="stable")].tolist()
    waiting = np.bincount(edges.target, minlength=count).tolist()
    ready = [node for node in range(count) if not waiting[node]]
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        for other in target[first[node] : first[node + 1]]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    if len(order) < count:
        raise UnfitGraphError("the dependencies form a cycle")
    positions = np.empty(count, np.int64)
    positions[order] = np.arange(count)
    return positions


def _counted_window(graph: DependencyGraph, time: Times) -> tuple[int, int]:
    """Return the end of the GPU work before the counted iterations, and the end of their own GPU work."""
    rows, iteration = np.arange(len(graph.operations.row)), graph.operations.iteration
    inside = (iteration >= graph.first) & (iteration < graph.last)
    if not inside.any():
        raise NoWorkError("no operation of the counted iterations has a known launch")
    mine = np.isin(graph.operations.code, COUNTED)
    if not (mine & inside).any():
        mine = np.ones(len(rows), np.bool_)
    before = mine & (iteration >= 0) & (iteration < graph.first)
    end = int(time[graph.ends(rows[mine & inside])].max())
    if before.any():
        return int(time[graph.ends(rows[before])].max()), end
    return int(time[graph.starts(rows[inside])].min()), end


def _critical_edges(graph: DependencyGraph, result: Replay) -> Codes:
    """Return the edges of the critical path through the counted iterations, last edge first."""
    ends = graph.ends(np.arange(len(graph.operations.row)))
    node = int(ends[result.time[ends] == result.end][0])
    leads_on = (result.time > result.begin) & (result.binding >= 0)
    before = np.where(leads_on, graph.edges.source[result.binding], -1).tolist()
    path = [node]
    while (node := before[node]) >= 0:
        path.append(node)
    return result.binding[path[:-1]]


def _path_kinds(graph: DependencyGraph, edges: Codes) -> Codes:
    """Return the kind (index in PATH) of each edge of the critical path."""
    kinds = np.array([PATH.index(kind) if kind in PATH else -1 for kind in KINDS])[graph.edges.kind[edges]]
    run = graph.edges.kind[edges] == RUN
    operation = graph.operations_at(graph.edges.target[edges[run]])
    kinds[run] = np.array([PATH.index(name) for name in CLASSES])[graph.operations.code[operation]]
    return kinds


def _path_parts(graph: DependencyGraph, result: Replay) -> tuple[Codes, Times, Times]:
    """Return edges, starts and ends along the critical path, first to last and without gaps between them.

    If a call returns before the copy that it waits for ends, the copy counts until that return.
    """
    edges = _critical_edges(graph, result)
    since = np.maximum(result.time[graph.edges.source[edges]], result.begin)
    until = np.minimum.accumulate(np.append(result.end, since))[:-1]
    parts = np.flatnonzero(since < until)[::-1]
    return edges[parts], since[parts], until[parts]


def path_times(graph: DependencyGraph, result: Replay) -> dict[str, int]:
    """Return the ns per iteration of each kind of PATH on the critical path."""
    edges, start, end = _path_parts(graph, result)
    total = np.zeros(len(PATH), np.int64)
    np.add.at(total, _path_kinds(graph, edges), end - start)
    return dict(zip(PATH, (total // graph.counted).tolist(), strict=True))


def path_spans(trace: Trace, graph: DependencyGraph, result: Replay) -> tuple[PathSpan, ...]:
    """Return the critical path for the timeline, first to last. Adjacent parts of one kind and name are merged."""
    names = trace.operations["name"].gather(graph.operations.row).cast(pl.String)
    calls = trace.api["name"].gather(graph.calls.row).cast(pl.String)
    spans: list[PathSpan] = []
    edges, *times = _path_parts(graph, result)
    kinds = _path_kinds(graph, edges)
    for edge, kind, start, end in zip(*(column.tolist() for column in (edges, kinds, *times)), strict=True):
        target = int(graph.edges.target[edge])
        if int(graph.edges.kind[edge]) in (GAP, CALL, WAIT, QUEUE):
            name = calls[target // 2]
        else:
            name = names[target // 2 - len(graph.calls.row)]
        span = PathSpan(PATH[kind], name, start, end)
        last = spans[-1] if spans else None
        if last and (last.kind, last.name, last.end_ns) == (span.kind, span.name, span.start_ns):
            spans[-1] = PathSpan(span.kind, span.name, last.start_ns, span.end_ns)
        else:
            spans.append(span)
    return tuple(spans)
