"""Changes to kernels: fuse storms, launch an iteration as one CUDA graph, and compute faster.

docs/whatif.md "The changes".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times, own_lengths
from traceview.measure.storms import MAX_TINY
from traceview.model.frozen import dataclass
from traceview.model.trace import KINDS, Trace
from traceview.model.units import quantity
from traceview.pricing.speedups import BATCH, SPEEDUPS, Estimate, KernelSequence, Speedup
from traceview.replay.changes.base import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    H2D,
    MEMSET,
    GraphChange,
    launching_calls,
    longest_launching_gap,
    without_launches,
)
from traceview.replay.constants import DEVICE_RATE, ELEMENT, GRAPH_GAP, GRAPH_LAUNCH, GRAPH_NODE
from traceview.replay.graph import CALL, GAP, LAUNCH, QUEUE, RUN, STREAM, Codes, DependencyGraph, Mask, Operations
from traceview.replay.storms import MIN_ROUNDS, Storm, find_storms

Result = TypeVar("Result")


def fuse_storms(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph with only the first round of each storm."""
    storms = find_storms(graph)
    if not storms:
        return f"no loop launches operations below {MAX_TINY // 1000} µs for {MIN_ROUNDS} rounds or more"
    repeats = np.zeros(len(graph.operations.row), np.bool_)
    for storm in storms:
        repeats[storm.members[~storm.kept]] = True
    weight = shorter_host_gaps(graph, storms, ELEMENT)
    weight[graph.operation_edges(RUN, repeats)] = 0
    return without_launches(graph, weight, repeats)


def shorter_host_gaps(graph: DependencyGraph, storms: Sequence[Storm], element: int) -> Times:
    """Return the edge weights with less host time around storms, but not below the median time between calls.

    `element` is that time in ns for each round of a storm.
    """
    edges, calls = graph.edges, graph.calls
    weight = edges.weight.copy()
    gap = np.flatnonzero(edges.kind == GAP)
    source, target = edges.source[gap] // 2, edges.target[gap] // 2
    threads = calls.thread[target]
    usual = {thread: int(np.median(weight[gap[threads == thread]])) for thread in np.unique(threads)}
    for storm in storms:
        own = graph.operations.call[storm.members]
        first, last = int(own.min()), int(own.max())
        same = calls.iteration[target] == calls.iteration[first]
        ends = same & ((target == first) | (source == last))
        crosses = same & (calls.thread[source] != calls.thread[target]) & (source >= first)
        # The first two edges between threads: to autograd's thread and back, or only back.
        handovers = gap[crosses][np.argsort(source[crosses], kind="stable")][:2]
        for edge in (*gap[ends].tolist(), *handovers.tolist()):
            least = usual.get(int(calls.thread[edges.target[edge] // 2]), 0)
            weight[edge] = max(min(int(weight[edge]), least), int(weight[edge]) - element * storm.rounds)
    return weight


FUSE = GraphChange(
    "fuse",
    "Fuse storms of small kernels",
    "one kernel that does the work of all rounds of a loop",
    fuse_storms,
    in_pytorch="a loop over elements that one operation on the full tensor can replace, in the backward pass too",
)


MIN_KERNELS = 10  # in a graph
MOST_GRAPHED = 0.5  # share of the compute
MIN_SAME = 0.9  # share of the kernels of an iteration that a graph can hold; a few may depend on the step's number
D2D = KINDS.index("d2d")


def launch_as_graph(graph: DependencyGraph) -> DependencyGraph | str:
    """Return the graph with one launch for each iteration."""
    ops, calls, edges = graph.operations, graph.calls, graph.edges
    if graph.facts.graphed > MOST_GRAPHED:
        return "CUDA graphs launch most of the compute already"
    if graph.facts.same_launches < MIN_SAME:
        return "the kernels or their grids change from iteration to iteration, and a graph launches the same ones"
    if (waits := _waits_inside(graph)) > 1:  # a single one can end each graph
        return f"the host waits for the GPU inside each iteration ({quantity(waits, 'wait')} between its kernels)"
    chosen = np.isin(ops.code, [COMPUTE, MEMSET]) | ((ops.code == COPY) & (ops.kind == D2D))
    chosen &= (ops.call >= 0) & (ops.iteration >= 0)
    members = np.flatnonzero(chosen)
    joined = _iterations_per_graph(ops.iteration[members])
    waiting = np.unique(calls.iteration[(calls.sync | calls.blocking) & (calls.iteration >= 0)])
    if not joined or (joined > 1 and 2 * len(waiting) > graph.counted):
        return "few kernels are launched one by one (CUDA graphs are in use, or there are few kernels)"
    number = ops.iteration // joined
    first = np.zeros(len(ops.row), np.bool_)
    first[members[np.unique(number[members], return_index=True)[1]]] = True
    weight = edges.weight.copy()
    launched, heads = launching_calls(graph, chosen), launching_calls(graph, first)
    weight[graph.call_edges(CALL, launched)] = 0
    gap = graph.call_edges(GAP, launched & ~heads)
    weight[gap] = np.where(weight[gap] > longest_launching_gap(graph), weight[gap], 0)
    call = graph.call_edges(CALL, heads)
    per = np.bincount(number[members], minlength=int(number.max()) + 1)
    weight[call] = GRAPH_LAUNCH + GRAPH_NODE * per[calls.iteration[edges.target[call] // 2] // joined]
    weight[graph.operation_edges(LAUNCH, chosen & ~first)] = 0
    inside = graph.operation_edges(STREAM, chosen & ~first)
    source = graph.operations_at(edges.source)
    inside &= chosen[np.where(inside, source, 0)]
    weight[inside] = np.minimum(weight[inside], GRAPH_GAP)
    weight[graph.operation_edges(RUN, first)] += _input_copies(graph, first)
    changed = graph.with_edges(edges.with_weight(weight).keep(~graph.call_edges(QUEUE, launched)))
    if joined == 1:
        return changed
    return changed._replace(remarks=(*graph.remarks, f"an iteration has few kernels: each graph holds {joined}"))


def _waits_inside(graph: DependencyGraph) -> int:
    """Return the median number of waits of an iteration with kernels before and after; none may be in a graph.

    A wait is a synchronization, a copy that blocks, as those of pageable memory do, or a call on memory that waits.
    Waits without a launch between them are one.
    """
    ops, calls = graph.operations, graph.calls
    launches = launching_calls(graph, ops.code == COMPUTE)
    launched, known = np.cumsum(launches), calls.iteration >= 0
    before, after = np.full(graph.last + 1, len(ops.row)), np.zeros(graph.last + 1, np.int64)
    np.minimum.at(before, calls.iteration[known], (launched - launches)[known])
    np.maximum.at(after, calls.iteration[known], launched[known])
    waits = np.flatnonzero((calls.sync | calls.blocking | calls.waiting_memory) & (calls.iteration >= graph.first))
    iteration, number = calls.iteration[waits], launched[waits]
    inside = (number > before[iteration]) & (number < after[iteration])
    places = np.unique(np.stack([iteration[inside], number[inside]]), axis=1)
    return int(np.median(np.bincount(places[0] - graph.first, minlength=graph.counted)))


def _iterations_per_graph(iteration: Codes) -> int:
    """Return how many iterations have MIN_KERNELS together, from the iteration of each kernel; 0 if too many."""
    count = len(np.unique(iteration))
    joined = -(-MIN_KERNELS * count // max(len(iteration), 1))
    return joined if 2 * joined <= count or joined == 1 else 0


def _input_copies(graph: DependencyGraph, first: Mask) -> Times:
    """Return the ns to copy each iteration's batch into the graph's inputs, for each first kernel."""
    ops = graph.operations
    batch = (ops.kind == H2D) & (ops.iteration >= 0)
    size = np.zeros(max(int(ops.iteration.max()) + 1, 1), np.int64)
    np.add.at(size, ops.iteration[batch], ops.size[batch])
    edge = graph.operation_edges(RUN, first)
    operation = graph.operations_at(graph.edges.target[edge])
    taken: Times = (size[ops.iteration[operation]] / DEVICE_RATE).astype(np.int64)
    return taken


GRAPH = GraphChange(
    "graph",
    "Launch each iteration as one CUDA graph",
    "static shapes; no synchronization and no data-dependent branch inside",
    launch_as_graph,
    repeats=True,
)


OPERANDS = 2  # tensors that a loop over products takes apart, in place of the one of ELEMENT
ALTERNATIVES = {"tf32": ("bf16",), "bf16": ("tf32",)}


def compute_changes(trace: Trace) -> tuple[GraphChange, ...]:
    """Return a change for each of SPEEDUPS, for graphs of this trace."""
    kernels = _LastResult(partial(_kernels_of_devices, trace))
    return tuple(
        GraphChange(
            speedup.name,
            speedup.title,
            speedup.rests_on,
            partial(_compute_faster, speedup, _LastResult(partial(_estimates, speedup, kernels))),
            alternatives=ALTERNATIVES.get(speedup.name, ()),
            programs=speedup.programs,
            effort=speedup.effort,
        )
        for speedup in SPEEDUPS
    )


@dataclass
class _LastResult(Generic[Result]):
    """Calls a function of a graph's operations, and keeps its last result: each change is replayed several times."""

    function: Callable[[Operations], Result]
    known: tuple[Operations, Result] | None = None

    def __call__(self, operations: Operations) -> Result:
        """Return the result for these operations."""
        if self.known is None or self.known[0] is not operations:
            self.known = operations, self.function(operations)
        return self.known[1]


def faster(code: int, name: str, times: float) -> GraphChange:
    """Return the change that makes each kernel of `name` (`code` in Operations.name) `times` as fast."""

    def apply(graph: DependencyGraph) -> DependencyGraph | str:
        chosen: Mask = (graph.operations.name == code) & np.isin(graph.operations.code, [COMPUTE, COMMUNICATION])
        if not chosen.any():
            return f"no kernel called {name}"
        weight = graph.edges.weight.copy()
        run = graph.operation_edges(RUN, chosen)
        weight[run] = (weight[run] / times).astype(np.int64)
        return graph.with_weight(weight)

    return GraphChange(f"faster:{name}={times:g}", f"Kernel {times:g}x faster: {name}", "a faster kernel", apply)


def shorter_compute(ns: int) -> GraphChange:
    """Return the change that makes the compute of an iteration `ns` shorter, each kernel by the same factor."""

    def apply(graph: DependencyGraph) -> DependencyGraph | str:
        ops = graph.operations
        counted = (ops.code == COMPUTE) & graph.is_counted
        whole = int((ops.end - ops.start)[counted].sum()) // graph.counted
        factor = np.where(ops.code == COMPUTE, max(1 - ns / max(whole, 1), 0), 1.0)
        return _with_shorter_kernels(graph, factor, np.zeros(len(ops.row), np.bool_))

    return GraphChange("shorter-compute", "Shorter kernels", "faster kernels", apply)


def _kernels_of_devices(trace: Trace, operations: Operations) -> list[tuple[Codes, KernelSequence]]:
    """Return the operations of each device, and their compute kernels."""
    devices = (np.flatnonzero(operations.device == device) for device in np.unique(operations.device).tolist())
    return [
        (own, KernelSequence.from_rows(trace, int(operations.device[own[0]]), operations.row[own])) for own in devices
    ]


def _estimates(
    speedup: Speedup, kernels_of: Callable[[Operations], list[tuple[Codes, KernelSequence]]], operations: Operations
) -> tuple[list[tuple[Codes, Estimate]], str]:
    """Return what a speedup leaves of operations of each device, and why it does not apply to others."""
    known, reason = [], "no kernel runs"
    for own, kernels in kernels_of(operations):
        estimate = speedup.estimate(kernels)
        if isinstance(estimate, str):
            reason = estimate
        else:
            known.append((own[kernels.places[estimate.rows]], estimate))
    return known, reason


def _compute_faster(
    speedup: Speedup,
    estimates_of: Callable[[Operations], tuple[list[tuple[Codes, Estimate]], str]],
    graph: DependencyGraph,
) -> DependencyGraph | str:
    count = len(graph.operations.row)
    factor, gone = np.ones(count), np.zeros(count, np.bool_)
    estimates, reason = estimates_of(graph.operations)
    for places, estimate in estimates:
        factor[places] = estimate.middle
        gone[places] = estimate.gone
    if (factor == 1).all():
        return reason
    changed = _with_shorter_kernels(graph, factor, gone)
    if speedup is BATCH:
        weight = shorter_host_gaps(changed, _loops(factor, gone), OPERANDS * ELEMENT)
        changed = changed.with_weight(weight)
    return changed


def _loops(factor: NDArray[np.float64], gone: Mask) -> list[Storm]:
    """Return the loops whose rounds one batched operation replaces: an operation that stays, and those after it."""
    rounds = np.flatnonzero(factor != 1)
    first = np.flatnonzero(~gone[rounds])
    return [Storm(members, ~gone[members]) for members in np.split(rounds, first[1:]) if len(members) > 1]


def _with_shorter_kernels(graph: DependencyGraph, factor: NDArray[np.float64], gone: Mask) -> DependencyGraph:
    """Return the graph with scaled operations; those that are `gone` cost no launch and no gap before them."""
    changed = factor != 1
    weight = graph.edges.weight.copy()
    run = graph.operation_edges(RUN, changed)
    weight[run] = (weight[run] * factor[graph.operations_at(graph.edges.target[run])]).astype(np.int64)
    waits = graph.operation_edges(STREAM, ~gone)
    weight[waits] = np.maximum(0, weight[waits] - _saved_meanwhile(graph, factor, waits))
    return without_launches(graph, weight, gone)


def _saved_meanwhile(graph: DependencyGraph, factor: NDArray[np.float64], edges: Mask) -> Times:
    """Return the time that other streams save between the two operations of each edge: its wait for them is shorter."""
    operations = graph.operations
    saved = own_lengths(operations.start, operations.end) * (1 - factor)
    before = np.concatenate([[0.0], np.cumsum(saved)])
    source, target = (graph.operations_at(nodes[edges]) for nodes in (graph.edges.source, graph.edges.target))
    last = np.searchsorted(operations.start, operations.start[target], side="left")
    meanwhile = before[last] - before[np.minimum(source + 1, last)]
    own = operations.stream[source] == operations.stream[target]
    shorter: Times = np.where(own, meanwhile, 0).astype(np.int64)
    return shorter
