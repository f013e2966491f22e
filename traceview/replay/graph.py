"""The dependency graph of a few iterations, and its replay.

A node is a time; an edge is the minimum time between two nodes.

Call c begins at node 2c and returns at node 2c + 1. With C calls, operation o starts at node 2C + 2o and ends at the
next node. The time of a node is the latest time that its incoming edges and its `release` allow. A change replaces
edges. It never removes nodes: removed work takes no time.

A replay gives the time of each node, the time of an iteration, and the critical path. It is one pass over the nodes
that several edges lead to, in an order in which each edge leads forward. It is a Python loop because each node depends
on earlier nodes. It covers a few iterations (at most select.MAX_OPERATIONS operations), not the full capture. Most
changes change weights alone, so that the graphs of a run share plans.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.trace import CLASSES, Trace
from traceview.model.whatif import PATH, PathSpan

Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]

NEVER = np.iinfo(np.int64).min // 4  # before any time
MAX_PLANS = 6  # that are kept; the 17 replays of samples/dual.sqlite need 4

# GAP host time between calls
# CALL a call's own work
# WAIT from the end of an operation to the return of a call that waits for it
# LAUNCH from a call to its operation
# STREAM order on a stream
# ENGINE order of copies that share a copy engine
# EVENT from an operation on another stream
# RUN the operation itself
# QUEUE from the start of an operation to the return of a launch that waits for room in the queue, or from the end of
#   an operation to a call before which the host waits for it unseen
# REDUCE all-reduces that a change adds
GAP, CALL, WAIT, LAUNCH, STREAM, ENGINE, EVENT, RUN, QUEUE, REDUCE = range(10)
KINDS = ("host", "call", "wait", "launch", "gap", "gap", "gap", "run", "wait", "communication")
# Kinds of kernels, by name (storms.name_families): gather and reduction are collectives.
FAMILIES = ("other", "shared", "fused", "matrix", "gather", "reduction")


class GraphCalls(NamedTuple):
    """API calls that launch, wait, block or allocate. Each array has one entry for each call, sorted by start.

    `row` is the row of Trace.api. `sync` marks explicit synchronizations, `blocking` copies that block their thread.
    `loading` is the time in ns since the previous call that lies in a data-loading range or, where no range has such a
    name, that precedes the copy of a batch. `backward` marks calls of the backward pass: those on another thread than
    the iterations, or in a range named after the backward pass. `memory` marks allocations and frees,
    `waiting_memory` those of them that wait for the GPU (docs/definitions.md "Synchronization").
    """

    row: Codes
    start: Times
    end: Times
    thread: Codes
    iteration: Codes
    sync: Mask
    blocking: Mask
    loading: Times
    backward: Mask
    memory: Mask
    waiting_memory: Mask


class Operations(NamedTuple):
    """GPU operations, sorted by start. `call` and `iteration` are -1 if the launch is before the modelled time."""

    row: Codes
    start: Times
    end: Times
    call: Codes
    iteration: Codes
    stream: Codes
    device: Codes
    code: Codes  # index in model.CLASSES
    kind: Codes  # index in model.KINDS, -1 if not a copy
    memory: Codes  # index in model.MEMORIES, -1 if not a copy
    size: Times  # bytes
    name: Codes  # index in the categories of Trace.operations["name"]
    family: Codes  # index in FAMILIES
    blocks: Codes  # blocks of the launch; 0 if unknown
    queued: Times  # ns launched but not started beside exposed work, for no reason in the capture
    waves: NDArray[np.float64]  # blocks over those that the device holds at once; NaN if unknown

    @property
    def is_matrix(self) -> Mask:
        """The kernels that compute matrix products, convolutions or attention."""
        mask: Mask = self.family == FAMILIES.index("matrix")
        return mask


class Edges(NamedTuple):
    """`weight` is the minimum time in ns from node `source` to node `target`. `kind` is one of GAP to REDUCE."""

    source: Codes
    target: Codes
    weight: Times
    kind: Codes

    def keep(self, mask: Mask) -> Edges:
        """Return only the edges in the mask."""
        return Edges(self.source[mask], self.target[mask], self.weight[mask], self.kind[mask])

    def with_weight(self, weight: Times) -> Edges:
        """Return the same edges with other weights."""
        return self._replace(weight=weight)

    def plus(self, source: Codes, target: Codes, weight: Times | int, kind: int) -> Edges:
        """Return these edges and more edges of one kind."""
        weights = np.broadcast_to(np.asarray(weight, np.int64), source.shape)
        more = (source, target, weights, np.full(len(source), kind, np.int64))
        mine = (self.source, self.target, self.weight, self.kind)
        return Edges(*(np.concatenate([a, b]).astype(np.int64) for a, b in zip(mine, more, strict=True)))


class MachineFacts(NamedTuple):
    """Latencies and rates of the machine, measured in the capture where possible."""

    launch_latency: int  # ns
    kernel_gap: int  # ns
    pinned_rate: float  # bytes/ns
    pinned_measured: bool
    staging_rate: float  # bytes/ns of pageable copies
    gpu: str = ""  # model name
    overhead: float = 0.0  # share of the modelled time that the profiler itself takes
    sms: int = 0  # SMs of the GPU; 0 if unknown
    managed: bool = False  # whether memory that the host and the GPU share is allocated
    graphed: float = 0.0  # share of the compute that CUDA graphs launch
    same_launches: float = 1.0  # share of the kernels that each modelled iteration launches with the same grid


class ReplayPlan(NamedTuple):
    """How to replay the graphs that have the edges `source` to `target` and a release of the nodes `released`.

    `order` are the edges in an order in which each leads forward, by the `positions` of nodes. A release is one more
    edge, from an origin at time 0. A node with one edge follows: its time is that of a join and the weights on the way
    from there, which `jumps` sum in steps that double. `edge` has the edge of each node that follows; -1 for none.
    Join i is the later of `joins[0][i]` and `joins[1][i]`, earlier joins (0 is the origin), each after the weights of
    an edge and of the way to its source; `entries` has these edges and sources. `join` has the join of each node.
    """

    source: Codes
    target: Codes
    released: Codes
    positions: Codes
    order: Codes
    edge: Codes
    jumps: tuple[Codes, ...]
    join: Codes
    joins: tuple[list[int], list[int]]
    entries: tuple[tuple[Codes, Codes], tuple[Codes, Codes]]

    @classmethod
    def from_positions(cls, edges: Edges, released: Codes, positions: Codes) -> ReplayPlan:
        """Plan the replay of edges that each lead to a later position."""
        origin = len(positions)  # the last node
        source = np.concatenate([edges.source, np.full(len(released) + 1, origin)])  # the last edge stands for none
        target = np.concatenate([edges.target, released])
        into = np.argsort(positions[target], kind="stable")
        first = np.diff(target[into], prepend=-1) != 0
        single = first & np.append(first[1:], True)
        edge, parent = np.full(origin + 1, -1), np.arange(origin + 1)
        edge[target[into[single]]] = into[single]
        parent[target[into[single]]] = source[into[single]]
        jumps = []
        while not np.array_equal(parent, further := parent[parent]):
            jumps.append(parent)
            parent = further
        # A node with several edges is a join of the first two, of this join with the third, and so on.
        second = np.flatnonzero(~first)
        of_node = np.zeros(origin + 1, np.int64)
        of_node[target[into[second]]] = np.arange(1, len(second) + 1)
        is_third = ~first[second - 1]
        earlier = np.where(is_third, np.arange(len(second)), of_node[parent[source[into[second - 1]]]])
        later = of_node[parent[source[into[second]]]]
        entering = np.where(is_third, len(target), into[second - 1]), into[second]
        order = np.argsort(positions[edges.source], kind="stable")
        return cls(
            edges.source,
            edges.target,
            released,
            positions,
            order,
            edge,
            (*jumps, parent),
            of_node[parent],
            (earlier.tolist(), later.tolist()),
            ((entering[0], source[entering[0]]), (entering[1], source[entering[1]])),
        )

    def fits(self, edges: Edges, released: Codes) -> bool:
        """Return whether the graph has these edges and releases; their weights may differ."""
        mine, others = (self.source, self.target, self.released), (edges.source, edges.target, released)
        return all(map(np.array_equal, mine, others))

    def times(self, weight: Times, release: Times) -> Times:
        """Return the time of each node."""
        weights = np.concatenate([weight, release[self.released], [0]])
        after = weights[self.edge]
        for jump in self.jumps:
            after += after[jump]
        entries = (weights[edge] + after[source] for edge, source in self.entries)
        time = [0]
        for first, second, after_first, after_second in zip(
            *self.joins, *(entry.tolist() for entry in entries), strict=True
        ):
            earliest, another = time[first] + after_first, time[second] + after_second
            time.append(earliest if earliest > another else another)
        times: Times = np.array(time, np.int64)[self.join] + after
        return times[:-1]


class DependencyGraph(NamedTuple):
    """Calls, operations and the edges between them.

    The time of iterations [first, last) is counted. Earlier iterations are included to model the lead of the host.
    `plans` are the plans that are known for graphs of these nodes; `replay` adds to them.
    """

    calls: GraphCalls
    operations: Operations
    edges: Edges
    release: Times  # the earliest time of each node, in ns on the capture's clock
    first: int
    last: int
    facts: MachineFacts
    plans: list[ReplayPlan]
    remarks: tuple[str, ...] = ()  # remarks of the changes on data that the capture lacks

    @property
    def counted(self) -> int:
        """The number of counted iterations."""
        return self.last - self.first

    @property
    def is_counted(self) -> Mask:
        """The operations of the counted iterations."""
        iteration = self.operations.iteration
        mask: Mask = (iteration >= self.first) & (iteration < self.last)
        return mask

    @property
    def run_times(self) -> Times:
        """The ns that each operation runs."""
        run = np.flatnonzero(self.edges.kind == RUN)
        times = np.zeros(len(self.operations.row), np.int64)
        times[self.operations_at(self.edges.target[run])] = self.edges.weight[run]
        return times

    def starts(self, operation: Codes) -> Codes:
        """Return the nodes at which operations start."""
        return 2 * len(self.calls.row) + 2 * operation

    def ends(self, operation: Codes) -> Codes:
        """Return the nodes at which operations end."""
        return self.starts(operation) + 1

    def with_edges(self, edges: Edges) -> DependencyGraph:
        """Return the same nodes with other edges."""
        return self._replace(edges=edges)

    def with_weight(self, weight: Times) -> DependencyGraph:
        """Return the same graph with other weights of its edges."""
        return self.with_edges(self.edges.with_weight(weight))

    def operations_at(self, nodes: Codes) -> Codes:
        """Return the operations whose start or end these nodes are; a negative number for a node of a call."""
        return nodes // 2 - len(self.calls.row)

    def call_edges(self, kind: int, chosen: Mask) -> Mask:
        """Return the mask of edges of a kind (GAP, CALL, WAIT or QUEUE) into the chosen calls."""
        call = self.edges.target // 2
        mine = (self.edges.kind == kind) & (call < len(self.calls.row))
        mask: Mask = mine & chosen[np.where(mine, call, 0)] if len(chosen) else mine & False
        return mask

    def operation_edges(self, kind: int, chosen: Mask) -> Mask:
        """Return the mask of edges of a kind (LAUNCH to RUN) into the chosen operations."""
        operation = self.operations_at(self.edges.target)
        mine = (self.edges.kind == kind) & (operation >= 0)
        mask: Mask = mine & chosen[np.where(mine, operation, 0)] if len(chosen) else mine & False
        return mask


COUNTED = tuple(CLASSES.index(name) for name in ("compute", "communication"))


class UnfitGraphError(ValueError):
    """The edges form a cycle."""


class NoWorkError(UnfitGraphError):
    """No operation of the counted iterations is in the graph."""


class Replay(NamedTuple):
    """`time` is the time of each node in ns; the counted iterations last from `begin` to `end`."""

    time: Times
    begin: int
    end: int
    per_iteration: int


def replay(graph: DependencyGraph) -> Replay:
    """Return the time of each node. Raises UnfitGraphError."""
    times = _plan(graph).times(graph.edges.weight, graph.release)
    begin, end = _counted_window(graph, times)
    return Replay(times, begin, end, (end - begin) // graph.counted)


def _plan(graph: DependencyGraph) -> ReplayPlan:
    """Return the plan of the replay, a known one if it fits. Raises UnfitGraphError."""
    edges, plans, count = graph.edges, graph.plans, len(graph.release)
    reached = np.zeros(count, np.bool_)
    reached[edges.target] = True
    released = np.flatnonzero(~reached | (graph.release > NEVER))
    for known in plans:
        if known.fits(edges, released):
            return known
    positions = next((each.positions for each in plans if len(each.positions) == count), None)
    if positions is None:
        positions = _measured_positions(graph)
    if not (positions[edges.source] < positions[edges.target]).all():
        positions = _node_positions(edges, count)
    if len(plans) == MAX_PLANS:
        plans.pop(1)  # the first one is that of the unchanged graph
    plans.append(ReplayPlan.from_positions(edges, released, positions))
    return plans[-1]


def _measured_positions(graph: DependencyGraph) -> Codes:
    """Return the position of each node in the order of measured times, in which most edges lead forward."""
    calls, ops = graph.calls, graph.operations
    times = np.concatenate([np.stack([each.start, each.end], axis=1).ravel() for each in (calls, ops)])
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
    inside = graph.is_counted
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


def _binding_edges(graph: DependencyGraph, time: Times) -> Codes:
    """Return the edge that determines the time of each node, -1 if it is `release`: the first that gives this time."""
    order = _plan(graph).order[::-1]
    source, target, weight = (column[order] for column in graph.edges[:3])
    exact = np.flatnonzero(time[source] + weight == time[target])
    binding = np.full(len(time), -1, np.int64)
    binding[target[exact]] = order[exact]
    binding[time <= graph.release] = -1
    return binding


def _critical_edges(graph: DependencyGraph, result: Replay) -> Codes:
    """Return the edges of the critical path through the counted iterations, last edge first."""
    ends = graph.ends(np.arange(len(graph.operations.row)))
    node = int(ends[result.time[ends] == result.end][0])
    binding = _binding_edges(graph, result.time)
    leads_on, none = (result.time > result.begin) & (binding >= 0), len(binding)
    path, jump = np.array([node]), np.append(np.where(leads_on, graph.edges.source[binding], none), none)
    while path[-1] != none:  # each step doubles the path
        path, jump = np.concatenate([path, jump[path]]), jump[jump]
    edges: Codes = binding[path[path != none][:-1]]
    return edges


def _path_kinds(graph: DependencyGraph, edges: Codes) -> Codes:
    """Return the kind (index in PATH) of each edge of the critical path."""
    kinds = np.array([PATH.index(kind) if kind in PATH else -1 for kind in KINDS])[graph.edges.kind[edges]]
    run = graph.edges.kind[edges] == RUN
    operation = graph.operations_at(graph.edges.target[edges[run]])
    kinds[run] = np.array([PATH.index(name) for name in CLASSES])[graph.operations.code[operation]]
    return kinds


def _path_steps(graph: DependencyGraph, result: Replay) -> tuple[Codes, Times, Times]:
    """Return edges, starts and ends along the critical path, first to last and without gaps between them.

    If a call returns before the copy that it waits for ends, the copy counts until that return.
    """
    edges = _critical_edges(graph, result)
    since = np.maximum(result.time[graph.edges.source[edges]], result.begin)
    until = np.minimum.accumulate(np.append(result.end, since))[:-1]
    steps = np.flatnonzero(since < until)[::-1]
    return edges[steps], since[steps], until[steps]


def path_times(graph: DependencyGraph, result: Replay) -> dict[str, int]:
    """Return the ns per iteration of each kind of PATH on the critical path."""
    edges, start, end = _path_steps(graph, result)
    total = np.zeros(len(PATH), np.int64)
    np.add.at(total, _path_kinds(graph, edges), end - start)
    return dict(zip(PATH, (total // graph.counted).tolist(), strict=True))


def path_spans(trace: Trace, graph: DependencyGraph, result: Replay) -> tuple[PathSpan, ...]:
    """Return the critical path for the timeline, first to last. Adjacent spans of one kind and name are merged."""
    names = trace.operations["name"].gather(graph.operations.row).cast(pl.String)
    calls = trace.api["name"].gather(graph.calls.row).cast(pl.String)
    spans: list[PathSpan] = []
    edges, *times = _path_steps(graph, result)
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
