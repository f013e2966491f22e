"""Changes to the compute: kernels become shorter, and replaced kernels are not launched (traceview.speedups)."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times, own_lengths
from traceview.model.trace import Trace
from traceview.speedups import BATCH, SPEEDUPS, KernelSequence, Speedup
from traceview.whatif.changes.base import COMMUNICATION, COMPUTE, GraphChange, without_launches
from traceview.whatif.changes.fuse import shorter_host_gaps
from traceview.whatif.constants import Constants
from traceview.whatif.graph import RUN, STREAM, DependencyGraph, Mask
from traceview.whatif.storms import Storm

OPERANDS = 2  # tensors that a loop over products takes apart, in place of the one of Constants.element
ALTERNATIVES = {"tf32": ("bf16",), "bf16": ("tf32",)}


def compute_changes(trace: Trace) -> tuple[GraphChange, ...]:
    """Return a change for each of SPEEDUPS, for graphs of this trace."""
    return tuple(
        GraphChange(
            speedup.name,
            speedup.title,
            speedup.rests_on,
            partial(_apply, trace, speedup),
            alternatives=ALTERNATIVES.get(speedup.name, ()),
        )
        for speedup in SPEEDUPS
    )


def faster(code: int, name: str, times: float) -> GraphChange:
    """Return the change that makes each kernel of `name` (`code` in Operations.name) `times` as fast."""

    def apply(graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
        chosen: Mask = (graph.operations.name == code) & np.isin(graph.operations.code, [COMPUTE, COMMUNICATION])
        if not chosen.any():
            return f"no kernel called {name}"
        weight = graph.edges.weight.copy()
        run = graph.operation_edges(RUN, chosen)
        weight[run] = (weight[run] / times).astype(np.int64)
        return graph.with_weight(weight)

    return GraphChange(f"faster:{name}={times:g}", f"Kernel {times:g}x faster: {name}", "a faster kernel", apply)


def _apply(trace: Trace, speedup: Speedup, graph: DependencyGraph, constants: Constants) -> DependencyGraph | str:
    operations = graph.operations
    factor, gone = np.ones(len(operations.row)), np.zeros(len(operations.row), np.bool_)
    reason = "no kernel runs"
    for device in np.unique(operations.device).tolist():
        members = np.flatnonzero(operations.device == device)
        kernels = KernelSequence.from_rows(trace, device, operations.row[members])
        estimate = speedup.estimate(kernels)
        if isinstance(estimate, str):
            reason = estimate
            continue
        places = members[kernels.places[estimate.rows]]
        factor[places] = estimate.factors[constants.speedup]
        gone[places] = estimate.gone
    if (factor == 1).all():
        return reason
    changed = _with_shorter_kernels(graph, factor, gone)
    if speedup is BATCH:
        weight = shorter_host_gaps(changed, _loops(factor, gone), OPERANDS * constants.element)
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
