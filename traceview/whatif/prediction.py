"""Predict the iteration time after a change: build the graph, apply the change, replay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from traceview.errors import RequestError
from traceview.intervals import length, union
from traceview.model.analysis import Analysis, NotMeasured
from traceview.model.trace import Note, Trace
from traceview.model.whatif import NotApplicable, Prediction, WhatIf
from traceview.whatif.build import build
from traceview.whatif.changes import CHANGES, GraphChange, faster
from traceview.whatif.changes.pin import PIN_HERE
from traceview.whatif.constants import CAPTURE_NOISE, HIGH, LOW, MIDDLE, Constants
from traceview.whatif.graph import GAP, RUN, DependencyGraph
from traceview.whatif.power import with_clock
from traceview.whatif.replay import COUNTED, CycleError, Replay, path_spans, path_times, replay
from traceview.whatif.select import Selection, select

MIN_GAIN = 0.02  # of the measured time; a smaller gain gets a note
MIN_FURTHER_GAIN = 0.005  # of the measured time, to add one more change to several
DEFAULT_SPEEDUP = 2.0  # of the kernel with the most time, if no kernel is named


@dataclass(frozen=True, slots=True)
class _Model:
    """The unchanged graph, its replay, and the iterations that it models."""

    graph: DependencyGraph
    base: Replay
    selection: Selection

    @property
    def measured(self) -> int:
        return self.selection.measured_ns

    @property
    def error(self) -> float:
        return self.base.per_iteration / self.measured - 1


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A changed graph, its replay, and the predicted ns per iteration."""

    graph: DependencyGraph
    replay: Replay
    time: int


def whatif(
    analysis: Analysis,
    *,
    faster_kernels: Mapping[str, float] | None = None,
    more: Sequence[GraphChange] = (),
) -> WhatIf | NotMeasured:
    """Predict each change alone, and several changes together.

    `faster_kernels` maps kernel names to speedups; by default the kernel with the most time gets a speedup of 2. `more`
    are further changes, each predicted alone.

    Returns NotMeasured if the capture has no iterations, or if their times are contradictory.
    Raises RequestError if no kernel of a given name runs in the modelled iterations.
    """
    model = _model(analysis)
    if isinstance(model, str):
        return NotMeasured(model)
    graph, base, selection = model.graph, model.base, model.selection
    kernels = _faster_kernels(analysis.trace, graph, faster_kernels)
    alone, left_out = _each_alone(model, (*CHANGES, *kernels, *more))
    return WhatIf(
        info=analysis.info,
        range=selection.range,
        counted=selection.steady,
        modelled=selection.last - selection.first,
        measured_ns=selection.measured_ns,
        replayed_ns=base.per_iteration,
        path=path_times(graph, base),
        spans=path_spans(analysis.trace, graph, base),
        predictions=alone,
        together=_best_together(model),
        left_out=left_out,
        notes=(*_model_notes(model), *_process_notes(analysis.trace, selection)),
    )


def predict(analysis: Analysis, names: Sequence[str], *, more: Sequence[GraphChange] = ()) -> Prediction:
    """Predict the named changes (`GraphChange.name`) together, with `more` applied after them.

    Raises RequestError if a name is unknown, if a change does not apply, if the capture has no iterations, or if
    their times are contradictory.
    """
    known = {change.name: change for change in CHANGES}
    for name in names:
        if name not in known:
            raise RequestError(f"unknown change {name!r}; choose from {', '.join(known)}")
    model = _model(analysis)
    if isinstance(model, str):
        raise RequestError(f"{analysis.info.file}: {model}")
    prediction = _prediction(model, [*(change for change in CHANGES if change.name in names), *more])
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


def _model(analysis: Analysis) -> _Model | str:
    """Return the model of the unchanged run, or the reason why there is none."""
    selection = select(analysis)
    if isinstance(selection, str):
        return selection
    graph = build(analysis.trace, selection)
    try:
        return _Model(graph, replay(graph), selection)
    except CycleError:
        ops, calls = graph.operations, graph.calls
        launched = ops.call >= 0
        early = int(np.count_nonzero(ops.start[launched] < calls.start[ops.call[launched]]))
        example = f": {early} of {len(ops.row)} operations start before the calls that launched them" if early else ""
        return f"the times of its iterations are contradictory{example}; export the report again, or capture again"


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
    model: _Model, changes: Sequence[GraphChange]
) -> tuple[tuple[Prediction, ...], tuple[NotApplicable, ...]]:
    predictions, left_out = [], []
    for change in changes:
        prediction = _prediction(model, [change])
        if isinstance(prediction, str):
            left_out.append(NotApplicable(change.name, change.title, prediction))
        else:
            predictions.append(prediction)
    return tuple(sorted(predictions, key=lambda item: (item.iteration_ns, item.change))), tuple(left_out)


def _best_together(model: _Model) -> tuple[Prediction, ...]:
    """Add the change with the largest gain, and repeat until no change gains MIN_FURTHER_GAIN."""
    made: list[GraphChange] = []
    best, predictions = model.measured, []
    left = [change for change in CHANGES if change is not PIN_HERE]
    while left:
        times = {change.name: _middle_time(model, _in_order([*made, change])) for change in left}
        gains = [(time, change) for change in left if (time := times[change.name]) is not None]
        if not gains:
            break
        time, change = min(gains, key=lambda pair: pair[0])
        if time > best - MIN_FURTHER_GAIN * model.measured:
            break
        best = time
        made.append(change)
        left.remove(change)
        prediction = _prediction(model, _in_order(made))
        assert not isinstance(prediction, str), "the same changes were replayed above"
        predictions.append(
            replace(prediction, change=change.name, title=change.title, rests_on=change.rests_on, note="")
        )
    return tuple(predictions)


def _in_order(changes: Sequence[GraphChange]) -> list[GraphChange]:
    return sorted(changes, key=CHANGES.index)


def _middle_time(model: _Model, changes: Sequence[GraphChange]) -> int | None:
    try:
        outcome = _outcome(model, changes, MIDDLE)
        return None if isinstance(outcome, str) else outcome.time
    except CycleError:
        return None


def _outcome(model: _Model, changes: Sequence[GraphChange], constants: Constants) -> _Outcome | str:
    """Apply the changes and replay, again if the GPU's clock changes. Returns the reason if a change does not apply."""
    graph = model.graph
    for change in changes:
        changed = change.apply(graph, constants)
        if isinstance(changed, str):
            return changed
        graph = changed
    if constants.host != 1:
        weight, host = graph.edges.weight, graph.edges.kind == GAP
        weight = np.where(host, weight * constants.host, weight).astype(np.int64)
        graph = graph.with_edges(graph.edges.with_weight(weight))
    first = _replayed_outcome(model, graph)
    slower = with_clock(model.graph, model.measured, graph, first.time, constants)
    return first if slower is graph else _replayed_outcome(model, slower)


def _replayed_outcome(model: _Model, graph: DependencyGraph) -> _Outcome:
    result = replay(graph)
    return _Outcome(graph, result, max(result.per_iteration, _min_compute_time(model, graph)))


def _min_compute_time(model: _Model, graph: DependencyGraph) -> int:
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


def _prediction(model: _Model, changes: Sequence[GraphChange]) -> Prediction | str:
    """Return the prediction, or the reason why there is none."""
    outcomes: list[_Outcome] = []
    for constants in (LOW, MIDDLE, HIGH):
        try:
            outcome = _outcome(model, changes, constants)
        except CycleError as error:
            return f"the order of work in this run does not allow it ({error})"
        if isinstance(outcome, str):
            return outcome
        outcomes.append(outcome)
    times, middle = [outcome.time for outcome in outcomes], outcomes[1]
    path = path_times(middle.graph, middle.replay)
    path["compute"] += max(0, middle.time - sum(path.values())) if middle.time > middle.replay.per_iteration else 0
    margin = CAPTURE_NOISE + abs(model.error)
    return Prediction(
        "+".join(change.name for change in changes),
        ", ".join(change.title for change in changes),
        middle.time,
        int(min(times) * max(0.0, 1 - margin)),
        int(max(times) * (1 + margin)),
        "; ".join(change.rests_on for change in changes),
        _gain_note(model, middle.time, math.prod(change.times for change in changes)),
        path,
    )


def _gain_note(model: _Model, time: int, batches: int) -> str:
    if batches > 1:
        return f"{batches} batches a step: {batches * model.measured / time:.2f} times the samples a second"
    gain = 1 - time / model.measured
    if gain < -MIN_GAIN:
        return f"alone it is {-gain:.0%} slower"
    return "alone it gains little or nothing" if gain < MIN_GAIN else ""


def _process_notes(trace: Trace, selection: Selection) -> tuple[Note, ...]:
    count = trace.operations["process"].n_unique()
    if count < 2:
        return ()
    return (
        Note(
            "processes",
            f"{count} processes use GPUs here; only process {selection.process} is modelled, and its waits for the "
            "others stay as they are",
        ),
    )


def _model_notes(model: _Model) -> tuple[Note, ...]:
    facts = model.graph.facts
    source = "measured here" if facts.pinned_measured else "default for this GPU: no large pinned copy in the capture"
    return (
        Note(
            "rates",
            f"pinned copies at {facts.pinned_rate:.1f} GB/s ({source}); {facts.launch_latency / 1000:.1f} µs from a "
            f"launch to its kernel, {facts.kernel_gap / 1000:.2f} µs between kernels",
        ),
        Note("profiler", "host times are as measured under the profiler; without it the host is faster"),
    )
