"""Predict the iteration time after a change: build the graph, apply the change, replay, and note what limits it.

The replayed time is scaled to the measured time per iteration and to the GPU's power cap.

A busier GPU draws more power, and at the cap matrix products take longer. A change that fills the GPU's idle time
therefore gains a little less than the idle time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.errors import RequestError
from traceview.intervals import length, union
from traceview.model.analysis import Analysis, Iterations, NotMeasured
from traceview.model.findings import Finding, PredictedTime
from traceview.model.trace import CLASSES, Note, Trace
from traceview.model.units import duration, rate, ratio, share, time_range
from traceview.model.unprofiled import Bounds, UnprofiledTime
from traceview.model.whatif import NotApplicable, Prediction, WhatIf
from traceview.pricing.speedups import SPEEDUPS
from traceview.whatif.build import build
from traceview.whatif.changes import CHANGES, compute_changes, faster
from traceview.whatif.changes.base import GraphChange
from traceview.whatif.changes.copies import PIN_HERE
from traceview.whatif.constants import CAPTURE_NOISE, HIGH, LOW, MIDDLE, Constants, power_limits
from traceview.whatif.graph import (
    COUNTED,
    GAP,
    RUN,
    DependencyGraph,
    NoWorkError,
    Replay,
    UnfitGraphError,
    path_spans,
    path_times,
    replay,
)
from traceview.whatif.profiler_costs import traced_events, without_profiler
from traceview.whatif.select import LaunchedWork, Selection, select

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


COMPUTE_CHANGES = frozenset(speedup.name for speedup in SPEEDUPS)
MAX_ERROR = 0.25  # share of the measured time; a model with a larger error does not represent the run
MAX_PREDICTED = 3  # changes that every analysis predicts
MAX_REPLAYED = 22_000  # operations that it replays for them, so that 1.0 million kernels take at most 5% longer
MIN_FURTHER_GAIN = 0.005  # share of the measured time that one more change must gain
DEFAULT_SPEEDUP = 2.0  # speedup of the kernel with the most time, if no kernel is named
MIN_OVERHEAD = 0.05  # share of the iterations; less profiler overhead is not stated
UNNAMED = Note(
    "unnamed_phases",
    "no range names the phases of an iteration: the host's pause before it copies a batch counts as loading, and "
    "what other threads launch as the backward pass",
    ("load", "staged", "ranks"),
)
MAX_KERNELS = 0.8  # share of the predicted time; with less time in kernels, they do not limit a change to the compute
MIN_GAIN = 0.02  # share of the measured time; a smaller gain gets a note


def whatif(
    analysis: Analysis,
    *,
    faster_kernels: Mapping[str, float] | None = None,
    more: Sequence[GraphChange] = (),
) -> WhatIf | NotMeasured:
    """Predict each change alone, and several changes together, without the profiler if its cost is known.

    `faster_kernels` maps kernel names to speedups; by default the kernel with the most time gets a speedup of 2. `more`
    are further changes, each predicted alone.

    Returns NotMeasured if the capture has no iterations, or if their times are contradictory.
    Raises RequestError if no kernel of a given name runs in the modelled iterations.
    """
    model = _model(analysis)
    if isinstance(model, str):
        return NotMeasured(model)
    measured_model, model = model, _without_profiler(analysis, model)
    graph, base, selection = measured_model.graph, measured_model.base, measured_model.selection
    kernels = _faster_kernels(analysis.trace, graph, faster_kernels)
    changes = _changes_for(analysis)
    alone, left_out = _each_alone(model, (*changes, *kernels, *more))
    return WhatIf(
        info=analysis.info,
        range=selection.range,
        iterations=selection.summary,
        counted=selection.steady,
        modelled=selection.last - selection.first,
        measured_ns=selection.measured_ns,
        unprofiled=_unprofiled(analysis),
        replayed_ns=base.per_iteration,
        path=path_times(graph, base),
        spans=path_spans(analysis.trace, graph, base),
        predictions=alone,
        together=_best_together(model, changes),
        left_out=left_out,
        notes=tuple(_notes(model, analysis.trace)),
    )


def model_of_run(analysis: Analysis, work: LaunchedWork | None = None) -> RunModel | None:
    """Return the model that predicts changes, without the profiler if its cost is known; None if there is none.

    `work` saves collecting the work of the iterations again.
    """
    model = _model(analysis, work)
    return None if isinstance(model, str) else _without_profiler(analysis, model)


def with_predictions(analysis: Analysis, model: RunModel | None) -> Analysis:
    """Return the analysis with what the remedies of its first findings would give.

    The changes of the first findings that have one are predicted: at most MAX_PREDICTED, fewer for a large model.
    """
    if model is None:
        return analysis
    known = {change.name: change for change in _changes_for(analysis)}
    names = dict.fromkeys(finding.change for finding in analysis.findings if finding.change in known)
    count = min(MAX_PREDICTED, max(1, MAX_REPLAYED // len(model.graph.operations.row)))
    times = {name: _middle_time(model, [known[name]]) for name in islice(names, count)}
    unprofiled = _unprofiled(analysis) is not None
    predicted = {
        name: PredictedTime(name, model.measured, time, unprofiled) for name, time in times.items() if time is not None
    }
    findings = (replace(finding, prediction=predicted.get(finding.change)) for finding in analysis.findings)
    return replace(analysis, findings=tuple(findings))


def with_known_predictions(findings: Sequence[Finding], predicted: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings with the predictions that others of the same changes have; no other change is predicted."""
    known = {finding.change: finding.prediction for finding in predicted if finding.prediction}
    return tuple(replace(finding, prediction=known.get(finding.change)) for finding in findings)


def predict(analysis: Analysis, names: Sequence[str], *, more: Sequence[GraphChange] = ()) -> Prediction:
    """Predict the named changes (`GraphChange.name`) together, with `more` applied after them.

    The prediction is for a run without the profiler if its cost is known, which `analyze(..., costs=None)` prevents.

    Raises RequestError if a name is unknown, if a change does not apply, if the capture has no iterations, or if
    their times are contradictory.
    """
    known = {change.name: change for change in (*CHANGES, *compute_changes(analysis.trace))}
    for name in names:
        if name not in known:
            raise RequestError(f"unknown change {name!r}; choose from {', '.join(known)}")
    model = _model(analysis)
    if isinstance(model, str):
        raise RequestError(f"{analysis.info.file}: {model}")
    model = _without_profiler(analysis, model)
    chosen = (change.for_program(analysis.program) or change for name, change in known.items() if name in names)
    prediction = _prediction(model, [*chosen, *more])
    if isinstance(prediction, str):
        raise RequestError(f"{analysis.info.file}: {prediction}")
    return prediction


def measured(analysis: Analysis) -> int:
    """Return the steady GPU time per iteration in ns, to compare with predictions from another capture.

    Raises RequestError if the capture has no iterations.
    """
    selection = select(analysis)
    if isinstance(selection, str):
        raise RequestError(f"{analysis.info.file}: {selection}")
    return selection.measured_ns


def _model(analysis: Analysis, work: LaunchedWork | None = None) -> RunModel | str:
    """Return the model of the unchanged run, or the reason why there is none."""
    selection = select(analysis, work=work)
    if isinstance(selection, str):
        return selection
    graph = build(analysis.trace, selection)
    try:
        model = RunModel.build(graph, selection)
        if abs(model.error) <= MAX_ERROR:
            return model
        replayed, mean = (duration(ns) for ns in (model.base.per_iteration, model.measured))
        return f"its iterations differ too much: those that fit a model take {replayed}, the mean is {mean}"
    except NoWorkError as error:
        return str(error)
    except UnfitGraphError:
        ops, calls = graph.operations, graph.calls
        launched = ops.call >= 0
        early = int(np.count_nonzero(ops.start[launched] < calls.start[ops.call[launched]]))
        example = f": {early} of {len(ops.row)} operations start before the calls that launched them" if early else ""
        return f"the times of its iterations are contradictory{example}; export the report again, or capture again"


def _unprofiled(analysis: Analysis) -> UnprofiledTime | None:
    return analysis.iterations.unprofiled if isinstance(analysis.iterations, Iterations) else None


def _without_profiler(analysis: Analysis, model: RunModel) -> RunModel:
    """Return the model of the run without the profiler, or the same model if the profiler's cost is unknown."""
    time = _unprofiled(analysis)
    return model if time is None else model.without_profiler(analysis.trace, time)


def _faster_kernels(
    trace: Trace, graph: DependencyGraph, speedups: Mapping[str, float] | None
) -> tuple[GraphChange, ...]:
    rows = graph.operations.row[np.isin(graph.operations.code, COUNTED)]
    frame = trace.operations[rows].select(
        pl.col("name").cast(pl.String),
        pl.col("name").to_physical().cast(pl.Int64).alias("code"),
        (pl.col("end") - pl.col("start")).alias("ns"),
    )
    if speedups is None:
        totals = frame.group_by("name").agg(pl.col("ns").sum()).sort(["ns", "name"], descending=[True, False])
        speedups = {totals["name"][0]: DEFAULT_SPEEDUP} if len(totals) else {}
    codes = dict(frame.select("name", "code").iter_rows())
    for name, speedup in speedups.items():
        if name not in codes:
            raise RequestError(f"{trace.info.file}: no kernel called {name} runs in the modelled iterations")
        if speedup <= 0:
            raise RequestError(f"--faster {name}={speedup:g}: the speedup must be greater than 0")
    return tuple(faster(codes[name], name, speedup) for name, speedup in speedups.items())


def _each_alone(
    model: RunModel, changes: Sequence[GraphChange]
) -> tuple[tuple[Prediction, ...], tuple[NotApplicable, ...]]:
    predictions, left_out = [], []
    for change in changes:
        prediction = _prediction(model, [change])
        if isinstance(prediction, str):
            left_out.append(NotApplicable(change.name, change.title, prediction))
        else:
            predictions.append(prediction)
    return tuple(sorted(predictions, key=lambda item: (item.iteration_ns, item.change))), tuple(left_out)


def _changes_for(analysis: Analysis) -> tuple[GraphChange, ...]:
    every = (*CHANGES, *compute_changes(analysis.trace))
    return tuple(chosen for change in every if (chosen := change.for_program(analysis.program)) is not None)


def _best_together(model: RunModel, changes: Sequence[GraphChange]) -> tuple[Prediction, ...]:
    """Add the change with the largest gain, and repeat until no change gains MIN_FURTHER_GAIN."""
    made: list[GraphChange] = []
    best, predictions = model.measured, []
    left = [change for change in changes if change.name != PIN_HERE.name]
    while left:
        times = {change.name: _middle_time(model, _in_order([*made, change], changes)) for change in left}
        gains = [(time, change) for change in left if (time := times[change.name]) is not None]
        if not gains:
            break
        left = [change for _, change in gains]  # a change that does not apply is not tried again
        time, change = min(gains, key=lambda pair: pair[0])
        if time > best - MIN_FURTHER_GAIN * model.measured:
            break
        best = time
        made.append(change)
        left = [other for other in left if other is not change and other.name not in change.alternatives]
        prediction = _prediction(model, _in_order(made, changes))
        assert not isinstance(prediction, str), "the same changes were replayed above"
        predictions.append(
            replace(prediction, change=change.name, title=change.title, rests_on=change.rests_on, note="")
        )
    return tuple(predictions)


def _in_order(made: Sequence[GraphChange], changes: Sequence[GraphChange]) -> list[GraphChange]:
    return [change for change in changes if change in made]


def _middle_time(model: RunModel, changes: Sequence[GraphChange]) -> int | None:
    try:
        outcome = replay_changes(model, changes, MIDDLE)
        return None if isinstance(outcome, str) else outcome.time
    except UnfitGraphError:
        return None


def _prediction(model: RunModel, changes: Sequence[GraphChange]) -> Prediction | str:
    """Return the prediction, or the reason why there is none."""
    outcomes: list[ChangedRun] = []
    for constants in (LOW, MIDDLE, HIGH):
        try:
            outcome = replay_changes(model, changes, constants)
        except UnfitGraphError as error:
            return f"the order of work in this run does not allow it ({error})"
        if isinstance(outcome, str):
            return outcome
        outcomes.append(outcome)
    times, middle = [outcome.time for outcome in outcomes], outcomes[1]
    path = dict(middle.path)
    path["compute"] += max(0, min_compute_time(model, middle.graph) - sum(path.values()))
    total = max(sum(path.values()), 1)
    path = {kind: ns * middle.time // total for kind, ns in path.items()}
    on_kernels = _host_notes(outcomes) if any(change.name in COMPUTE_CHANGES for change in changes) else ()
    batches = math.prod(change.times for change in changes)
    margin = CAPTURE_NOISE + abs(model.error)  # at most CAPTURE_NOISE + MAX_ERROR, below 1
    return Prediction(
        "+".join(change.name for change in changes),
        ", ".join(change.title for change in changes),
        middle.time,
        int(min(times) * (1 - margin)),
        int(max(times) * (1 + margin)),
        "; ".join(change.rests_on for change in changes),
        "; ".join([*_gain_notes(model, middle.time, batches), *on_kernels, *middle.graph.remarks]),
        path,
    )


def _gain_notes(model: RunModel, time: int, batches: int) -> tuple[str, ...]:
    """Return the gain in samples, or that there is little or none."""
    if batches > 1:
        return (f"{batches} batches a step: {ratio(batches * model.measured / time)} times the samples per second",)
    gain = 1 - time / model.measured
    if gain < -MIN_GAIN:
        return (f"alone it is {share(-gain)} slower",)
    return ("alone it gains little or nothing",) if gain < MIN_GAIN else ()


def _host_notes(outcomes: Sequence[ChangedRun]) -> tuple[str, ...]:
    """Return what the kernels take if they do not limit a change to the compute; `outcomes` from best to worst."""
    least, middle, most = (kernel_time(outcome.graph) for outcome in outcomes)
    if middle > MAX_KERNELS * outcomes[1].time:
        return ()
    low, high = sorted((least, most))
    times = f"{duration(middle)} ({time_range(low, high)})"
    return (f"kernels do not limit it: they take {times}, and the host's time differs between runs",)


def _notes(model: RunModel, trace: Trace) -> Iterator[Note]:
    """Yield notes on the rates of the model, and on what it takes unchanged from the capture."""
    facts = model.graph.facts
    source = "measured here" if facts.pinned_measured else "default for this GPU: no large pinned copy in the capture"
    yield Note(
        "rates",
        f"pinned copies at {rate(facts.pinned_rate, 1)} ({source}); {duration(facts.launch_latency)} from a "
        f"launch to its kernel, {duration(facts.kernel_gap)} between kernels",
    )
    if model.graphs:
        text = "predictions are for runs without the profiler; compare them with such runs, not with captures"
        yield Note("profiler", text)
    else:
        yield Note("profiler", "host times are as measured under the profiler; without it the host is faster")
        if facts.overhead >= MIN_OVERHEAD:
            text = f"{share(facts.overhead)} of the modelled time is profiler overhead, which predictions keep"
            yield Note("overhead", text)
    if model.selection.summary.source == "period":
        yield UNNAMED
    if (count := trace.operations["process"].n_unique()) > 1:
        yield Note(
            "processes",
            f"{count} processes use GPUs here; only process {model.selection.work.process} is modelled, and its waits "
            "for the others stay as they are",
        )
