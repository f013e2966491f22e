"""Replay a changed graph, and scale it to the measured time per iteration and to the GPU's power cap.

A busier GPU draws more power, and at the cap matrix products take longer. A change that fills the GPU's idle time
therefore gains a little less than the idle time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from traceview.intervals import length, union
from traceview.model.trace import CLASSES, Trace
from traceview.model.unprofiled import Bounds, UnprofiledTime
from traceview.whatif.changes.base import GraphChange
from traceview.whatif.constants import MIDDLE, Constants, power_limits
from traceview.whatif.graph import GAP, RUN, DependencyGraph
from traceview.whatif.profiler_costs import traced_events, without_profiler
from traceview.whatif.replay import COUNTED, Replay, path_times, replay
from traceview.whatif.select import Selection

MIN_SLOWDOWN = 0.001  # a smaller slowdown is ignored
KERNELS = tuple(CLASSES.index(name) for name in ("compute", "communication", "memset"))


def with_clock(
    before: DependencyGraph, measured: int, after: DependencyGraph, time: int, constants: Constants
) -> DependencyGraph:
    """Return `after` with matrix products slowed by the lower clock. Times are ns per iteration."""
    slower = (_slowdown_at(after, time) / _slowdown_at(before, measured) - 1) * constants.power
    if abs(slower) < MIN_SLOWDOWN:
        return after
    weight = after.edges.weight.copy()
    run = after.operation_edges(RUN, after.operations.is_matrix)
    weight[run] += (weight[run] * slower).astype(np.int64)
    return after.with_weight(weight)


def _slowdown_at(graph: DependencyGraph, time: int) -> float:
    """Return the factor by which matrix products take longer than at the highest clock, for this iteration time."""
    limits = power_limits(graph.facts.gpu)
    if limits is None:
        return 1.0
    ops = graph.operations
    counted = np.isin(ops.code, KERNELS) & (ops.iteration >= graph.first) & (ops.iteration < graph.last)
    needed = limits.rest
    for chosen, watts in ((counted & ops.is_matrix, limits.matrix), (counted & ~ops.is_matrix, limits.other)):
        busy = int(graph.edges.weight[graph.operation_edges(RUN, chosen)].sum()) / graph.counted
        needed += watts * min(1.0, busy / max(time, 1))
    return math.sqrt(max(1.0, needed / limits.cap))


class RunModel(NamedTuple):
    """The unchanged graph, its replay, and the iterations that it models. `host` is the ns of the host on its path.

    For predictions of a run without the profiler, `graphs` has the graph without it for each value of
    Constants.profiler, `graph` is the middle one, and the iteration time is that of the run without the profiler.
    """

    graph: DependencyGraph
    base: Replay
    selection: Selection
    host: int
    graphs: tuple[DependencyGraph, ...] = ()

    @classmethod
    def build(cls, graph: DependencyGraph, selection: Selection, before: Replay | None = None) -> RunModel:
        """Replay the unchanged graph. Raises UnfitGraphError if its times are contradictory."""
        base = replay(graph, before)
        return cls(graph, base, selection, _host_time(path_times(graph, base)))

    def without_profiler(self, trace: Trace, time: UnprofiledTime) -> RunModel:
        """Return the model of the same run without the profiler."""
        bounds = range(len(Bounds._fields))
        events = traced_events(trace, self.graph, self.selection.work.slowdown())
        graphs = tuple(without_profiler(trace, self.graph, events, time.costs, bound) for bound in bounds)
        model = RunModel.build(graphs[MIDDLE.profiler], self.selection._replace(measured_ns=time.mean_ns), self.base)
        return model._replace(graphs=graphs)

    @property
    def measured(self) -> int:
        """The mean time per iteration of the capture, or of the run without the profiler."""
        return self.selection.measured_ns

    @property
    def error(self) -> float:
        """The replay's error, as a signed fraction of the measured time."""
        return self.base.per_iteration / self.measured - 1


class ChangedRun(NamedTuple):
    """A changed graph, its critical path, and the predicted ns per iteration."""

    graph: DependencyGraph
    path: Mapping[str, int]
    time: int


def replay_changes(model: RunModel, changes: Sequence[GraphChange], constants: Constants) -> ChangedRun | str:
    """Apply the changes and replay, again if the GPU's clock changes. Returns the reason if a change does not apply."""
    graph = model.graphs[constants.profiler] if model.graphs else model.graph
    for change in changes:
        changed = change.apply(graph, constants)
        if isinstance(changed, str):
            return changed
        graph = changed
    if constants.host != 1:
        weight, host = graph.edges.weight, graph.edges.kind == GAP
        weight = np.where(host, weight * constants.host, weight).astype(np.int64)
        graph = graph.with_weight(weight)
    first = _replayed_outcome(model, graph)
    slower = with_clock(model.graph, model.measured, graph, first.time, constants)
    return first if slower is graph else _replayed_outcome(model, slower)


def _replayed_outcome(model: RunModel, graph: DependencyGraph) -> ChangedRun:
    result = replay(graph, model.base)
    path = path_times(graph, result)
    # What other iterations take beyond the modelled ones is host time: pauses for a loader, a log or a checkpoint.
    left = _host_time(path) / model.host if model.host else 1.0
    beyond = int((model.measured - model.base.per_iteration) * min(left, 1.0))
    return ChangedRun(graph, path, max(result.per_iteration + beyond, min_compute_time(model, graph), 1))


def _host_time(path: Mapping[str, int]) -> int:
    return sum(path[kind] for kind in ("host", "call", "wait", "launch"))


def kernel_time(graph: DependencyGraph) -> int:
    """Return the summed time of the kernels of an iteration in ns."""
    ops = graph.operations
    counted = np.isin(ops.code, COUNTED) & (ops.iteration >= graph.first) & (ops.iteration < graph.last)
    return int(graph.edges.weight[graph.operation_edges(RUN, counted)].sum()) // graph.counted


def min_compute_time(model: RunModel, graph: DependencyGraph) -> int:
    """Return the minimum ns per iteration for compute on several streams, which share the GPU.

    The overlap between streams stays as measured. Returns 0 if compute runs on one stream.
    """
    ops = graph.operations
    compute = np.isin(ops.code, COUNTED[:1]) & (ops.iteration >= graph.first)
    if len(np.unique(ops.stream[compute])) < 2:
        return 0
    busy = length(union(ops.start[compute], ops.end[compute]))
    before = int(model.graph.edges.weight[model.graph.operation_edges(RUN, compute)].sum())
    after = int(graph.edges.weight[graph.operation_edges(RUN, compute)].sum())
    return int(busy * after / max(before, 1)) // graph.counted
