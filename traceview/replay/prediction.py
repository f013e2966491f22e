"""Predict the iteration time after a change: build the graph, apply the change, replay, and note what limits it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

import numpy as np
import polars as pl

from traceview.errors import RequestError
from traceview.model.analysis import Analysis, Iterations, NotMeasured
from traceview.model.trace import Note, Trace
from traceview.model.units import duration, rate, ratio, share, time_range
from traceview.model.unprofiled import UnprofiledTime
from traceview.model.whatif import Combinations, NotApplicable, Prediction, WhatIf
from traceview.pricing.speedups import SPEEDUPS
from traceview.replay.build import build
from traceview.replay.changes import CHANGES, compute_changes, faster
from traceview.replay.changes.base import GraphChange
from traceview.replay.changes.copies import PIN_HERE
from traceview.replay.constants import CAPTURE_NOISE, HIGH, LOW, MIDDLE
from traceview.replay.graph import (
    COUNTED,
    DependencyGraph,
    NoWorkError,
    UnfitGraphError,
    path_spans,
    path_times,
    replay,
)
from traceview.replay.outcome import ChangedRun, RunModel, kernel_time, remaining_work, replay_changes, share_of_others
from traceview.replay.select import LaunchedWork, select

COMPUTE_CHANGES = frozenset(speedup.name for speedup in SPEEDUPS)
MAX_ERROR = 0.25  # share of the measured time; a model with a larger error does not represent the run
MAX_OTHERS = 0.1  # share of the time; with more, a change to one process gains what the others leave
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
MAX_COMBINED = 6  # changes that a page combines
MAX_REPLAYED = 3_000_000  # operations of all combinations
LEAST_GAIN = 0.005  # share of the measured time; a change that gains less is not shown, because its gain rounds to 0


def whatif(
    analysis: Analysis,
    *,
    faster_kernels: Mapping[str, float] | None = None,
    more: Sequence[GraphChange] = (),
    changes: Changes | None = None,
) -> WhatIf | NotMeasured:
    """Predict each change alone, and several changes together, without the profiler if its cost is known.

    `faster_kernels` maps kernel names to speedups; by default the kernel with the most time gets a speedup of 2. `more`
    are further changes, each predicted alone. `changes` are those of the analysis, which saves predicting them again.

    Returns NotMeasured if the times of the capture are contradictory, or the run is too large to model as a whole.
    Raises RequestError if no kernel of a given name runs in the modelled iterations.
    """
    model = _model(analysis)
    if isinstance(model, str):
        return NotMeasured(model)
    graph, base, selection = model.graph, model.base, model.selection
    changes = changes or Changes(analysis, _without_profiler(analysis, model))
    kernels = _faster_kernels(analysis.trace, graph, faster_kernels)
    alone, left_out = changes.each_alone((*kernels, *more))
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
        together=changes.best_together(),
        left_out=left_out,
        notes=tuple(_notes(changes.model, analysis.trace)),
    )


def changes_of_run(analysis: Analysis, work: LaunchedWork | None = None) -> Changes | None:
    """Return the changes of a run, without the profiler if its cost is known; None if the run has no model.

    `work` saves collecting the work of the iterations again.
    """
    model = _model(analysis, work)
    return None if isinstance(model, str) else Changes(analysis, _without_profiler(analysis, model))


@dataclass(frozen=True)
class Changes:
    """The changes that fit a program, and what each of them alone gives in a model of the run.

    `analyze` and `whatif` share them. A change is predicted at its first use.
    """

    analysis: Analysis
    model: RunModel
    known_results: dict[str, Prediction | str] = field(default_factory=dict)

    @cached_property
    def known(self) -> Mapping[str, GraphChange]:
        """The changes by name, in the order in which they are applied."""
        every = (*CHANGES, *compute_changes(self.analysis.trace))
        fitting = (change.for_program(self.analysis.program, self.model.is_whole_run) for change in every)
        return {change.name: change for change in fitting if change is not None}

    def prediction(self, name: str) -> Prediction | str:
        """Return the prediction for a change, or the reason why there is none."""
        if name not in self.known_results:
            change = self.known.get(name)
            result = "it does not fit this program" if change is None else _prediction(self.model, [change])
            self.known_results[name] = result
        return self.known_results[name]

    def each_alone(self, more: Sequence[GraphChange] = ()) -> tuple[tuple[Prediction, ...], tuple[NotApplicable, ...]]:
        """Return the predictions of all changes that gain something, the best first, and those that do not.

        `more` are further changes, which are shown whatever they gain.
        """
        predictions, left_out = [], []
        for change in (*self.known.values(), *more):
            asked = change.name not in self.known
            prediction = _prediction(self.model, [change]) if asked else self.prediction(change.name)
            if isinstance(prediction, Prediction):
                gain = self.model.measured - prediction.iteration_ns
                if not asked and gain < LEAST_GAIN * self.model.measured:
                    prediction = "an iteration would not become shorter"
            if isinstance(prediction, Prediction):
                predictions.append(prediction)
            else:
                left_out.append(NotApplicable(change.name, change.title, prediction))
        return tuple(sorted(predictions, key=lambda item: (item.iteration_ns, item.change))), tuple(left_out)

    def combinations(self) -> Combinations | None:
        """Return what each change alone gives, and the best ones in each combination; None if none gives anything.

        A run with many operations combines fewer changes, so that a page does not wait for them.
        """
        alone, _ = self.each_alone()
        if not alone:
            return None
        size = max(len(self.model.graph.operations.row), 1)
        most = min(MAX_COMBINED, max(int(math.log2(MAX_REPLAYED / size)), 2) if size < MAX_REPLAYED else 2)
        best = [prediction.change for prediction in alone[:most]]
        ordered = [change for change in self.known.values() if change.name in best]
        sets = (made for count in range(2, len(ordered) + 1) for made in combinations(ordered, count))
        compatible = (
            made for made in sets if not any(left.name in right.alternatives for left in made for right in made)
        )
        together = (_prediction(self.model, made) for made in compatible)
        return Combinations(
            base_ns=self.model.measured,
            path=path_times(self.model.graph, self.model.base),
            predictions=(*alone, *(made for made in together if isinstance(made, Prediction))),
            combined=len(best),
        )

    def best_together(self) -> tuple[Prediction, ...]:
        """Add the change with the largest gain, and repeat until no change gains MIN_FURTHER_GAIN."""
        best, made, predictions = self.model.measured, list[GraphChange](), list[Prediction]()
        remaining = [change for change in self.known.values() if change.name != PIN_HERE.name]
        while remaining:
            times = [(self._time_of([*made, change]), change) for change in remaining]
            gains = [(time, change) for time, change in times if time is not None]
            remaining = [change for _, change in gains]  # a change that does not apply is not tried again
            time, change = min(gains, key=lambda pair: pair[0], default=(best, None))
            if change is None or time > best - MIN_FURTHER_GAIN * self.model.measured:
                break
            best = time
            made.append(change)
            remaining = [other for other in remaining if other is not change and other.name not in change.alternatives]
            prediction = self._together(made)
            assert not isinstance(prediction, str), "the same changes were replayed above"
            predictions.append(
                replace(prediction, change=change.name, title=change.title, rests_on=change.rests_on, note="")
            )
        return tuple(predictions)

    def _together(self, made: Sequence[GraphChange]) -> Prediction | str:
        """Return the prediction for known changes, applied in their order, or the reason why there is none."""
        if len(made) == 1:
            return self.prediction(made[0].name)
        return _prediction(self.model, [change for change in self.known.values() if change in made])

    def _time_of(self, made: Sequence[GraphChange]) -> int | None:
        """Return the ns of an iteration after known changes; None if one does not apply."""
        if len(made) == 1:
            prediction = self.prediction(made[0].name)
            return None if isinstance(prediction, str) else prediction.iteration_ns
        return _time_after(self.model, [change for change in self.known.values() if change in made])

    def saved_by(self, change: GraphChange) -> int | None:
        """Return the ns of an iteration that a change saves; None if it does not apply."""
        time = _time_after(self.model, [change])
        return None if time is None else max(self.model.measured - time, 0)


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
    chosen = (change.in_words_of(analysis.program) for name, change in known.items() if name in names)
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
    if (others := share_of_others(analysis.trace, selection)) > MAX_OTHERS:
        return f"other processes compute on its GPU for {share(others)} of the time, and a model holds one process"
    graph = build(analysis.trace, selection)
    try:
        model = RunModel(graph, replay(graph), selection)
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


def _time_after(model: RunModel, changes: Sequence[GraphChange]) -> int | None:
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
    path["compute"] += max(0, remaining_work(model, middle.graph) - sum(path.values()))
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
