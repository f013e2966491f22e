"""The model of a run: its graph, and the replay of a changed graph, scaled to the measured time of an iteration.

A busier GPU draws more power, and at the cap matrix products take longer. A change that fills the GPU's idle time
therefore gains a little less than the idle time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import length, union
from traceview.measure.loading import MIN_LOADING
from traceview.model.analysis import Analysis
from traceview.model.frozen import dataclass
from traceview.model.trace import CLASSES, KINDS, Trace
from traceview.model.unprofiled import Bounds, UnprofiledTime
from traceview.replay.changes.base import COMPUTE, GraphChange
from traceview.replay.constants import POWER, power_limits
from traceview.replay.graph import (
    CALL,
    COUNTED,
    ENGINE,
    GAP,
    LAUNCH,
    RUN,
    STREAM,
    WAIT,
    Codes,
    DependencyGraph,
    Mask,
    Replay,
    path_times,
    replay,
)
from traceview.replay.profiler_costs import traced_events, without_profiler
from traceview.replay.select import WHOLE_RUN, Selection

UNCHANGED = Bounds(1.0, 1.0, 1.0)
# Share of a step that torch.profiler's host time leaves: 0.54 to 0.83 of six steps that wait for the host, with GPU
# activities and ops, without stacks (benchmarks/results/h200_change_pairs.json). Others take as long as without it.
TORCH_PROFILER = Bounds(0.54, 0.67, 0.83)
MIN_WAITING = 0.1  # share of the iterations; pauses before fewer batches show no loader that is as slow as the loop
MIN_SLOWDOWN = 0.001  # a smaller slowdown is ignored
ENGINES = ("h2d", "d2h")  # directions of copies that an engine makes one by one
BELOW = 0.05  # share of the time; a change touches a little more than its model does
HOST, GPU = (GAP, CALL, LAUNCH), (RUN, STREAM, ENGINE)  # kinds of edges
KERNELS = tuple(CLASSES.index(name) for name in ("compute", "communication", "memset"))


def with_clock(before: DependencyGraph, measured: int, after: DependencyGraph, time: int) -> DependencyGraph:
    """Return `after` with matrix products slowed by the lower clock. Times are ns per iteration."""
    slower = (_slowdown_at(after, time) / _slowdown_at(before, measured) - 1) * POWER
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
    ops, ns = graph.operations, graph.run_times
    counted = np.isin(ops.code, KERNELS) & graph.is_counted
    needed = limits.rest
    for chosen, watts in ((counted & ops.is_matrix, limits.matrix), (counted & ~ops.is_matrix, limits.other)):
        busy = int(ns[chosen].sum()) / graph.counted
        needed += watts * min(1.0, busy / max(time, 1))
    return math.sqrt(max(1.0, needed / limits.cap))


@dataclass(frozen=True)
class RunModel:
    """The unchanged graph, its replay, and the iterations that it models.

    For predictions of a run without the profiler, `graph` is the graph without it, and the iteration time is that of
    the run without the profiler. `host_left` is the share of the host's time that stays without the profiler where
    only hidden host time has to be corrected for it. `compute_ratio` is the mean compute of all counted iterations over
    that of the modelled ones, at least 1: other kinds of iterations may compute more.
    """

    graph: DependencyGraph
    base: Replay
    selection: Selection
    is_unprofiled: bool = False
    host_left: Bounds = UNCHANGED
    compute_ratio: float = 1.0

    def without_profiler(self, trace: Trace, time: UnprofiledTime) -> RunModel:
        """Return the model of the same run without the profiler. Raises UnfitGraphError."""
        events = traced_events(trace, self.graph)
        graph = without_profiler(trace, self.graph, events, time.costs, slowdown=time.slowdown)
        selection = self.selection._replace(measured_ns=time.mean_ns)
        return replace(self, graph=graph, base=replay(graph), selection=selection, is_unprofiled=True)

    @cached_property
    def host(self) -> int:
        """The ns of the host on the critical path."""
        return _host_time(path_times(self.graph, self.base))

    @cached_property
    def limit(self) -> str:
        """What takes most of the critical path."""
        return limit_of(path_times(self.graph, self.base))

    @cached_property
    def waits_for_loader(self) -> bool:
        """Whether the host pauses for batches of a loader, which is then as slow as the loop."""
        calls, graph = self.graph.calls, self.graph
        pauses = (calls.loading >= MIN_LOADING * self.measured) & (calls.iteration >= graph.first)
        return len(np.unique(calls.iteration[pauses])) >= max(MIN_WAITING * graph.counted, 1)

    @cached_property
    def work(self) -> tuple[_Work, ...]:
        """The kernels of each class and the copies of each direction on each GPU."""
        return _work_of(self.graph, self.compute_ratio)

    @property
    def measured(self) -> int:
        """The mean time per iteration of the capture, or of the run without the profiler."""
        return self.selection.measured_ns

    @property
    def error(self) -> float:
        """The replay's error, as a signed fraction of the measured time.

        The model of a whole run lacks the calls before and after those that it needs.
        """
        return 0.0 if self.is_whole_run else self.base.per_iteration / self.measured - 1

    @property
    def is_whole_run(self) -> bool:
        """Whether the run has no iterations, and is modelled as one."""
        return self.selection.summary.source == WHOLE_RUN


@dataclass(frozen=True)
class ChangedRun:
    """A model of the unchanged run, a changed graph, and its replay; an iteration takes at least `least` ns."""

    model: RunModel
    graph: DependencyGraph
    result: Replay
    least: int = 1

    @cached_property
    def path(self) -> Mapping[str, int]:
        """The critical path."""
        return path_times(self.graph, self.result)

    @cached_property
    def time(self) -> int:
        """The predicted ns per iteration."""
        model = self.model
        beyond = model.measured - model.base.per_iteration
        # What other iterations take beyond the modelled ones is host time: pauses for a loader, a log or a checkpoint.
        if beyond and not model.is_whole_run and model.host:
            beyond = int(beyond * min(_host_time(self.path) / model.host, 1.0))
        by_profiler = int(self.exposed_host * (1 - model.host_left.middle))
        return max(self.result.per_iteration + beyond - by_profiler, remaining_work(model, self.graph), self.least)

    @cached_property
    def exposed_host(self) -> int:
        """The ns of the host on the critical path that the GPU's work hides before the changes."""
        return max(_host_time(self.path) - self.model.host, 0)


def replay_changes(model: RunModel, changes: Sequence[GraphChange]) -> ChangedRun | str:
    """Apply the changes and replay, again if the GPU's clock changes. Returns the reason if a change does not apply."""
    graph = model.graph
    for change in changes:
        changed = change.apply(graph)
        if isinstance(changed, str):
            return changed
        graph = changed
    most = changes[0].most if len(changes) == 1 else None
    least = least_time(model, graph) if most is None else max(model.measured - most(model.graph), 1)
    first = ChangedRun(model, graph, replay(graph), least)
    slower = with_clock(model.graph, model.measured, graph, first.time)
    return first if slower is graph else ChangedRun(model, slower, replay(slower), least)


def least_time(model: RunModel, changed: DependencyGraph) -> int:
    """Return the ns below which no iteration comes after a change: what it leaves as it is.

    A change saves at most the time of what it touches, on the critical path or not; but in a pause for a batch the host
    may do more than the capture shows. What it does not touch keeps its order, on the GPU and on the host. Measured
    programs came up to BELOW under it, because a change touches more than its model does.
    """
    before, after, counted = model.graph.edges, changed.edges, model.graph.counted
    touched, least = _touched_edges(model.graph, changed), 1
    is_loading = touched.any() and (after.kind[touched] == GAP).all()
    if before.source is after.source and before.target is after.target and not is_loading:
        beyond = max(model.measured - model.base.per_iteration, 0)  # host time of iterations that are not modelled
        least = model.measured - int(before.weight[touched].sum()) // counted - beyond
    scale = min(model.measured / max(model.base.per_iteration, 1), 1.0)
    stays = [
        changed.with_weight(np.where(touched | np.isin(after.kind, side), 0, after.weight)) for side in (HOST, GPU)
    ]
    gpu, host = (int(scale * replay(graph).per_iteration) for graph in stays)
    # With managed memory the host may need what the GPU has written, so that the two do not overlap.
    return int((1 - BELOW) * max(1, least, gpu + host if changed.facts.managed else max(gpu, host)))


def _touched_edges(graph: DependencyGraph, changed: DependencyGraph) -> Mask:
    """Return which edges of a changed graph are shorter, or are the host's for those: launches, and waits that go."""
    before, after, ops = graph.edges, changed.edges, graph.operations
    calls = np.zeros(len(graph.calls.row), np.bool_)
    shorter = np.zeros(len(after.kind), np.bool_)
    if before.source is after.source and before.target is after.target:
        shorter = after.weight < before.weight
        run = ops.call[graph.operations_at(after.target[shorter & (after.kind == RUN)])]
        calls[run[run >= 0]] = True
    else:
        calls[before.target[before.kind == WAIT] // 2] = True
        calls[after.target[after.kind == WAIT] // 2] = False
    at = np.minimum(after.target // 2, len(calls))
    mine: Mask = shorter | (np.isin(after.kind, (GAP, CALL)) & np.append(calls, False)[at])
    return mine


def limit_of(path: Mapping[str, int]) -> str:
    """Return what takes most of a critical path: "gpu" (operations and the gaps between them) or "host"."""
    return "host" if 2 * _host_time(path) > sum(path.values()) else "gpu"


def _host_time(path: Mapping[str, int]) -> int:
    return sum(path[kind] for kind in ("host", "call", "wait", "launch"))


def kernel_time(graph: DependencyGraph) -> int:
    """Return the summed time of the kernels of an iteration in ns."""
    counted = np.isin(graph.operations.code, COUNTED) & graph.is_counted
    return int(graph.run_times[counted].sum()) // graph.counted


class _Work(NamedTuple):
    """The kernels of a class, or the copies of a direction, on a GPU in the counted iterations.

    `members` are their rows, `total` is the sum of their times and `busy` the length of their union, in ns. `ratio` is
    that of RunModel for compute.
    """

    members: Codes
    total: int
    busy: int
    ratio: float


def _work_of(graph: DependencyGraph, compute_ratio: float) -> tuple[_Work, ...]:
    ops, ns, work = graph.operations, graph.run_times, []
    kinds = [*(ops.code == code for code in COUNTED), *(ops.kind == KINDS.index(kind) for kind in ENGINES)]
    ratios = (compute_ratio, *[1.0] * (len(kinds) - 1))  # COUNTED begins with compute
    for device, (is_kind, ratio) in itertools.product(np.unique(ops.device).tolist(), zip(kinds, ratios, strict=True)):
        members = np.flatnonzero(graph.is_counted & (ops.device == device) & is_kind)
        work.append(_Work(members, int(ns[members].sum()), length(union(ops.start[members], ops.end[members])), ratio))
    return tuple(work)


def compute_ratio(analysis: Analysis, graph: DependencyGraph, selection: Selection) -> float:
    """Return the mean compute of a counted iteration over that of a modelled one, at least 1, on the busiest GPU."""
    ops = graph.operations
    chosen = graph.is_counted & (ops.code == COMPUTE)
    modelled = {
        device: int((ops.end - ops.start)[chosen & (ops.device == device)].sum()) // graph.counted
        for device in np.unique(ops.device[chosen]).tolist()
    }
    every = {use.device: use.steady.compute_ns // max(selection.steady, 1) for use in analysis.devices}
    ratios = [every[device] / max(modelled[device], 1) for device in modelled if device in every]
    return max([1.0, *ratios])


def remaining_work(model: RunModel, graph: DependencyGraph) -> int:
    """Return the longest of what stays on a GPU, in ns per iteration: its kernels of a class, or its copies one way.

    No change takes less time. Work of one kind overlaps as measured; different kinds may run side by side.
    """
    ns = graph.run_times
    remaining = (each.busy * int(ns[each.members].sum()) / max(each.total, 1) * each.ratio for each in model.work)
    return max((int(each) // graph.counted for each in remaining), default=0)


def share_of_others(trace: Trace, selection: Selection) -> float:
    """Return the share of the modelled time for which other processes compute on the GPUs of the modelled one."""
    operations = trace.operations
    if operations["process"].n_unique() == 1:
        return 0.0
    first, last = selection.work.edges[[selection.first, selection.last]].tolist()
    own = pl.col("process") == selection.work.process
    devices = operations.filter(own)["device"].unique().to_list()
    others = operations.filter(
        ~own,
        pl.col("device").is_in(devices),
        pl.col("class") == "compute",
        pl.col("start").is_between(first, last, closed="left"),
    )
    busy = int(length(union(others["start"].to_numpy(), others["end"].to_numpy())))
    return float(busy / max(last - first, 1))
