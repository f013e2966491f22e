"""The graphs of several ranks as one graph, in which their shared collectives wait for the last rank that arrives.

A collective lasts, from the last arrival on, as long as its shortest kernel: the one of the rank that waits for none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np

from traceview.intervals import Times
from traceview.replay.build import NEVER
from traceview.replay.graph import REDUCE, RUN, Codes, DependencyGraph, Edges, GraphCalls, Operations

ALONE = -1  # the number of an operation that is not a shared collective
EMPTIED = -1  # the transfer of a collective whose message goes with a later one


def shortest_kernels(graphs: Sequence[DependencyGraph], shared: Sequence[Codes], count: int) -> Times:
    """Return the ns of the shortest kernel of each of `count` collectives; 0 for those that no graph has."""
    shortest = np.full(count, np.iinfo(np.int64).max)
    for graph, numbers in zip(graphs, shared, strict=True):
        known = numbers != ALONE
        np.minimum.at(shortest, numbers[known], (graph.operations.end - graph.operations.start)[known])
    return np.where(shortest == np.iinfo(np.int64).max, 0, shortest)


def on_clock(graph: DependencyGraph, to_common: Callable[[Times], Times], iterations: int) -> DependencyGraph:
    """Return a graph on another clock, whose iterations are numbered from `iterations` on."""
    calls, ops = graph.calls, graph.operations
    return graph._replace(
        calls=replace(
            calls,
            start=to_common(calls.start),
            end=to_common(calls.end),
            iteration=np.where(calls.iteration < 0, calls.iteration, calls.iteration - iterations),
        ),
        operations=ops._replace(
            start=to_common(ops.start),
            end=to_common(ops.end),
            iteration=np.where(ops.iteration < 0, ops.iteration, ops.iteration - iterations),
        ),
        release=np.where(graph.release == NEVER, NEVER, to_common(graph.release)),
        first=graph.first - iterations,
        last=graph.last - iterations,
    )


def join(graphs: Sequence[DependencyGraph], shared: Sequence[Codes], transfer: Times) -> DependencyGraph:
    """Return one graph of several ranks, which model the same iterations on the same clock.

    `shared` has, for each rank, the number of the collective that each operation takes part in, or ALONE. `transfer`
    has the ns of each collective from the last arrival on, or EMPTIED.
    """
    first_call = np.cumsum([0, *(len(graph.calls.row) for graph in graphs)]).tolist()
    first_operation = np.cumsum([0, *(len(graph.operations.row) for graph in graphs)]).tolist()
    base = 2 * first_call[-1]
    calls = GraphCalls(
        **{
            each.name: np.concatenate([getattr(graph.calls, each.name) for graph in graphs])
            for each in fields(GraphCalls)
        }
    )
    moved = [
        graph.operations._replace(call=np.where(graph.operations.call < 0, -1, graph.operations.call + offset))
        for graph, offset in zip(graphs, first_call, strict=False)
    ]
    operations = Operations(*(np.concatenate(columns) for columns in zip(*moved, strict=True)))
    release = np.empty(base + 2 * first_operation[-1], np.int64)
    edges = []
    for rank, graph in enumerate(graphs):
        nodes = np.concatenate(
            [
                np.arange(2 * first_call[rank], 2 * first_call[rank + 1]),
                base + np.arange(2 * first_operation[rank], 2 * first_operation[rank + 1]),
            ]
        )
        release[nodes] = graph.release
        edges.append(graph.edges._replace(source=nodes[graph.edges.source], target=nodes[graph.edges.target]))
    joined = graphs[0]._replace(
        calls=calls,
        operations=operations,
        edges=Edges(*(np.concatenate(columns) for columns in zip(*edges, strict=True))),
        release=release,
    )
    return _with_common_ends(joined, np.concatenate(shared), transfer)


def _with_common_ends(joined: DependencyGraph, numbers: Codes, transfer: Times) -> DependencyGraph:
    """Replace the run time of each shared collective: all its kernels end when the transfer after the last start does.

    The end of the first kernel collects the starts of all, and passes its time to the other ends.
    """
    ns = np.append(transfer, 0)[numbers]  # the last item stands for ALONE
    emptied = (numbers != ALONE) & (ns == EMPTIED)
    weight = joined.edges.weight.copy()
    weight[joined.operation_edges(RUN, emptied)] = 0
    members = np.flatnonzero((numbers != ALONE) & ~emptied)
    members = members[np.argsort(numbers[members], kind="stable")]
    _, first, place = np.unique(numbers[members], return_index=True, return_inverse=True)
    hub = members[first][place]
    waits = np.zeros(len(numbers), np.bool_)
    waits[members] = True
    kept = joined.edges.with_weight(weight).keep(~joined.operation_edges(RUN, waits))
    others = members != hub
    collected = kept.plus(joined.starts(members), joined.ends(hub), ns[members], REDUCE)
    return joined.with_edges(collected.plus(joined.ends(hub[others]), joined.ends(members[others]), 0, REDUCE))
