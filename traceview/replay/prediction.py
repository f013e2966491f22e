"""Predict the iteration time after a change: build the graph, apply the change, replay, and note what limits it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import combinations

import numpy as np
import polars as pl

from traceview.errors import RequestError
from traceview.model.analysis import Analysis, Iterations, NotMeasured
from traceview.model.findings import Finding, gaining_part
from traceview.model.frozen import dataclass
from traceview.model.trace import Note, Trace
from traceview.model.units import duration, rate, ratio, share
from traceview.model.unprofiled import UnprofiledTime
from traceview.model.whatif import Combinations, NotApplicable, Prediction, WhatIf
from traceview.pricing.speedups import SPEEDUPS
from traceview.replay.build import build
from traceview.replay.changes import CHANGES, compute_changes, faster
from traceview.replay.changes.base import EFFORTS, H2D, GraphChange, gain_rank
from traceview.replay.changes.copies import PIN, PIN_HERE, PREFETCH, pageable_copies
from traceview.replay.changes.host import LOADING
from traceview.replay.choices import ALTERNATIVES, choice_note
from traceview.replay.constants import CAPTURE_NOISE
from traceview.replay.graph import (
    COUNTED,
    DependencyGraph,
    NoWorkError,
    UnfitGraphError,
    path_spans,
    path_times,
    replay,
)
from traceview.replay.outcome import (
    TORCH_PROFILER,
    UNCHANGED,
    ChangedRun,
    RunModel,
    compute_ratio,
    kernel_time,
    remaining_work,
    replay_changes,
    share_of_others,
)
from traceview.replay.ranges import cost_of_changes, loader_may_take, spread
from traceview.replay.select import LaunchedWork, select

ALIKE = 0.75  # share of the larger gain from which on two changes gain alike
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
MAX_REPLAYED = 60_000  # operations of all combinations, so that a page takes at most 0.2 s longer
MAY_GAIN_NOTHING = "a loader with workers may be as slow as the step: alone it may gain nothing"
# A host that waits less runs ahead, which may gain more than its waits cost (docs/whatif.md "Ranges").
RUN_AHEAD = ("sync", "load")
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
    changes = changes or Changes(analysis, _without_profiler(analysis, model)).with_findings(analysis.findings)
    kernels = _faster_kernels(analysis.trace, graph, faster_kernels)
    alone, left_out = changes.each_alone((*kernels, *more))
    alike = changes.alternatives(alone[0].change) if alone else ()
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
        notes=(*choice_note(alike, is_run=model.is_whole_run), *_notes(changes.model, analysis.trace)),
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

    `analyze` and `whatif` share them. A change is predicted at its first use. `costs` are the ns of an iteration that
    the findings on a change cost: its range saves no more, but for the noise of captures, unless its replay does.
    """

    analysis: Analysis
    model: RunModel
    known_results: dict[str, Prediction | str] = field(default_factory=dict)
    costs: Mapping[str, int] = field(default_factory=dict)

    def with_findings(self, findings: Sequence[Finding]) -> Changes:
        """Return the changes of the same run with the costs of its findings. None of them is predicted yet."""
        costs = cost_of_changes(findings, self.model.measured, is_run=self.model.is_whole_run)
        return replace(self, known_results={}, costs=costs)

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
            result = "it does not fit this program" if change is None else self._predicted([change])
            self.known_results[name] = result
        return self.known_results[name]

    def each_alone(self, more: Sequence[GraphChange] = ()) -> tuple[tuple[Prediction, ...], tuple[NotApplicable, ...]]:
        """Return the predictions of all changes that gain something, the best first, and those that do not.

        `more` are further changes, which are shown whatever they gain.
        """
        predictions, left_out = [], []
        for change in (*self.known.values(), *more):
            asked = change.name not in self.known
            prediction = self._predicted([change]) if asked else self.prediction(change.name)
            if isinstance(prediction, str):
                left_out.append(NotApplicable(change.name, change.title, prediction))
            elif asked or prediction.iteration_ns <= (1 - LEAST_GAIN) * self.model.measured:
                predictions.append(prediction)
            else:
                left_out.append(NotApplicable(change.name, change.title, "an iteration would not become shorter"))
        if self.with_loader is not None:
            predictions.append(self.with_loader)
        return tuple(sorted(predictions, key=self._rank)), tuple(left_out)

    @cached_property
    def with_loader(self) -> Prediction | None:
        """The prediction of the copies and the loader changed at once; None where one of them alone gains as much.

        A loader that is as slow as the step takes what the copies gain, and the copies what the loader gains.
        """
        if LOADING.name not in self.known or not self.model.waits_for_loader:
            return None
        ops = self.model.graph.operations
        pinning = (PIN.name,) if (pageable_copies(self.model.graph) & (ops.kind == H2D)).any() else ()
        for copies in (*pinning, PREFETCH.name):
            alone = [self.prediction(name) for name in (copies, LOADING.name)]
            both = self.together((copies, LOADING.name))
            if isinstance(both, Prediction) and all(isinstance(each, Prediction) for each in alone):
                least = min(each.iteration_ns for each in alone if isinstance(each, Prediction))
                if both.iteration_ns < least - LEAST_GAIN * self.model.measured:
                    title = f"{LOADING.title[:1].lower()}{LOADING.title[1:]}"
                    return replace(both, title=f"{self.known[copies].title}, and {title}")
        return None

    def alternatives(self, name: str) -> tuple[Prediction, ...]:
        """Return a change and another that saves the same time and gains alike, the one to try first before the other.

        The cheaper one comes first, and of two with the same effort the one with the narrower range. A change that may
        lose does not count. None is replayed for this. Empty without another change.
        """
        names = next((words for words in ALTERNATIVES if name in words), {})
        known = [each for each in map(self.known_results.get, names) if isinstance(each, Prediction)]
        known = [each for each in known if each.high_ns <= self.model.measured]
        gains = [self.model.measured - each.iteration_ns for each in known]
        if len(known) < 2 or min(gains) <= max(ALIKE * max(gains), MIN_GAIN * self.model.measured):
            return ()
        return tuple(sorted(known, key=lambda each: (EFFORTS.index(each.effort), each.high_ns - each.low_ns)))

    def _rank(self, prediction: Prediction) -> tuple[float, int, float, str]:
        """Return the key of the order: by the gain times the part of its range that gains, then by effort."""
        base = self.model.measured
        gain, low, high = (base - each for each in (prediction.iteration_ns, prediction.high_ns, prediction.low_ns))
        likely = gain * gaining_part(low, high) if gain > 0 else gain
        return *gain_rank(likely / base, prediction.effort), prediction.change

    def combinations(self) -> Combinations | None:
        """Return what each change alone gives, and the best ones in each combination; None if none gives anything.

        A run with many operations combines fewer changes, so that a page does not wait for them.
        """
        alone, _ = self.each_alone()
        if not alone:
            return None
        size = max(len(self.model.graph.operations.row), 1)
        most = min(MAX_COMBINED, max(int(math.log2(MAX_REPLAYED / size)), 2))
        single = [prediction for prediction in alone if prediction is not self.with_loader]
        best = [prediction.change for prediction in single[:most]]
        ordered = [change for change in self.known.values() if change.name in best]
        sets = (made for count in range(2, len(ordered) + 1) for made in combinations(ordered, count))
        compatible = (
            made for made in sets if not any(left.name in right.alternatives for left in made for right in made)
        )
        together = (self._predicted(made) for made in compatible)
        return Combinations(
            base_ns=self.model.measured,
            path=path_times(self.model.graph, self.model.base),
            predictions=(*single, *(made for made in together if isinstance(made, Prediction))),
            combined=len(best),
        )

    def best_together(self) -> tuple[Prediction, ...]:
        """Add the change with the largest gain, and repeat until no change gains MIN_FURTHER_GAIN."""
        best, made, predictions = self.model.measured, list[GraphChange](), list[Prediction]()
        remaining = [change for change in self.known.values() if change.name != PIN_HERE.name]
        while remaining:
            together = [(self.together([each.name for each in (*made, change)]), change) for change in remaining]
            # A change that does not apply is not tried again.
            applied = [(each, change) for each, change in together if isinstance(each, Prediction)]
            gaining = [row for row in applied if best - row[0].iteration_ns >= MIN_FURTHER_GAIN * self.model.measured]
            if not gaining:
                break
            prediction, change = min(gaining, key=lambda row: row[0].iteration_ns)
            best = prediction.iteration_ns
            made.append(change)
            remaining = [each for _, each in applied if each is not change and each.name not in change.alternatives]
            predictions.append(
                replace(prediction, change=change.name, title=change.title, rests_on=change.rests_on, note="")
            )
        return tuple(predictions)

    def together(self, names: Collection[str]) -> Prediction | str:
        """Return the prediction for several changes, applied in their order, or the reason why there is none."""
        if len(names) == 1:
            return self.prediction(next(iter(names)))
        if unknown := [name for name in names if name not in self.known]:
            return f"{unknown[0]} does not fit this program"
        return self._predicted([change for name, change in self.known.items() if name in names])

    def _predicted(self, changes: Sequence[GraphChange]) -> Prediction | str:
        return _prediction(self.model, changes, self.costs)

    def saved_by(self, change: GraphChange) -> int | None:
        """Return the ns of an iteration that a change saves; None if it does not apply."""
        run = _changed(self.model, [change])
        return None if isinstance(run, str) else max(self.model.measured - run.time, 0)


def predict(analysis: Analysis, names: Sequence[str], *, more: Sequence[GraphChange] = ()) -> Prediction:
    """Predict the named changes (`GraphChange.name`) together, with `more` applied after them.

    The prediction is for a run without the profiler if its cost is known, which `analyze(..., costs=None)` prevents.

    Raises RequestError if a name is unknown, if a change does not apply, if the capture has no iterations, or if
    their times are contradictory.
    """
    known = {change.name: change for change in (*CHANGES, *compute_changes(analysis.trace))}
    if unknown := [name for name in names if name not in known]:
        raise RequestError(f"unknown change {unknown[0]!r}; choose from {', '.join(known)}")
    model = _model(analysis)
    if isinstance(model, str):
        raise RequestError(f"{analysis.info.file}: {model}")
    model = _without_profiler(analysis, model)
    chosen = (change.in_words_of(analysis.program) for name, change in known.items() if name in names)
    costs = Changes(analysis, model).with_findings(analysis.findings).costs
    prediction = _prediction(model, [*chosen, *more], costs)
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
    if analysis.info.trust.lost_everything:
        return "no launch has its GPU work in the capture, so that nothing is predicted"
    selection = select(analysis, work=work)
    if isinstance(selection, str):
        return selection
    if (others := share_of_others(analysis.trace, selection)) > MAX_OTHERS:
        return f"other processes compute on its GPU for {share(others)} of the time, and a model holds one process"
    graph = build(analysis.trace, selection)
    try:
        is_corrected = analysis.info.profiler != "nsys" and analysis.options.costs is not None
        left = TORCH_PROFILER if is_corrected else UNCHANGED
        ratio_of_compute = compute_ratio(analysis, graph, selection)
        model = RunModel(graph, replay(graph), selection, host_left=left, compute_ratio=ratio_of_compute)
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
    code, ns = pl.col("name").to_physical().cast(pl.Int64).first(), (pl.col("end") - pl.col("start")).sum()
    kernels = trace.operations[rows].group_by(pl.col("name").cast(pl.String)).agg(code=code, ns=ns)
    kernels = kernels.sort(["ns", "name"], descending=[True, False])
    codes = dict(kernels.select("name", "code").iter_rows())
    if speedups is None:
        speedups = dict.fromkeys(kernels["name"].head(1), DEFAULT_SPEEDUP)
    for name, speedup in speedups.items():
        if name not in codes:
            raise RequestError(f"{trace.info.file}: no kernel called {name} runs in the modelled iterations")
        if speedup <= 0:
            raise RequestError(f"--faster {name}={speedup:g}: the speedup must be greater than 0")
    return tuple(faster(codes[name], name, speedup) for name, speedup in speedups.items())


def _changed(model: RunModel, changes: Sequence[GraphChange]) -> ChangedRun | str:
    """Return the changed run, or the reason why the changes do not apply."""
    try:
        return replay_changes(model, changes)
    except UnfitGraphError as error:
        return f"the order of work in this run does not allow it ({error})"


def _prediction(model: RunModel, changes: Sequence[GraphChange], costs: Mapping[str, int]) -> Prediction | str:
    """Return the prediction, or the reason why there is none.

    Its middle is the replay with the part of the gain that comes, its range what measured pairs did around replays.
    """
    run = _changed(model, changes)
    if isinstance(run, str):
        return run
    remaining = max(remaining_work(model, run.graph), run.least)
    measured = spread([change.name for change in changes], model.limit)
    margin = CAPTURE_NOISE + abs(model.error)  # at most CAPTURE_NOISE + MAX_ERROR, below 1
    if model.is_whole_run:
        time, low, high = measured.around_in_run(model.measured, run.time, margin)
    else:
        time, low, high = measured.around(_expected_time(model, changes, run), run.time, margin)
    left = model.host_left
    low -= int(run.exposed_host * (left.middle - left.low))
    high += int(run.exposed_host * (left.high - left.middle))
    path = dict(run.path)
    path["compute"] += max(0, remaining - sum(path.values()))
    total = max(sum(path.values()), 1)
    path = {kind: ns * time // total for kind, ns in path.items()}
    notes, names = [_gain_note(model, time, changes)], [change.name for change in changes]
    # What faster loading gains goes to copies that block the host, if there are any.
    blocked = names != [LOADING.name] or pageable_copies(model.graph).any()
    if model.waits_for_loader and loader_may_take(names) and blocked:
        notes.append(MAY_GAIN_NOTHING)
        high = max(high, model.measured)
    if all(name in costs and name not in RUN_AHEAD for name in names):
        least = model.measured - sum(costs[change.name] for change in changes)
        low = max(low, min(least, run.time) - int(CAPTURE_NOISE * model.measured))
    if not COMPUTE_CHANGES.isdisjoint(names) and (kernels := kernel_time(run.graph)) <= MAX_KERNELS * run.time:
        notes.append(
            f"kernels do not limit it: they take {duration(kernels)}, and the host's time differs between runs"
        )
    return Prediction(
        "+".join(names),
        ", ".join(change.title for change in changes),
        time,
        min(max(low, remaining), time),
        high,
        max((change.effort for change in changes), key=EFFORTS.index),
        "; ".join(change.rests_on for change in changes),
        "; ".join(filter(None, [*notes, *run.graph.remarks])),
        path,
    )


def _expected_time(model: RunModel, changes: Sequence[GraphChange], run: ChangedRun) -> int:
    """Return the time after the changes with the part of each one's gain that comes; `run` has all of them."""
    parts = [spread([change.name], model.limit) for change in changes]
    if len({part.came for part in parts}) == 1:
        return parts[0].expected(model.measured, run.time)
    expected = before = model.measured
    for count, part in enumerate(parts, 1):
        after = run if count == len(parts) else _changed(model, changes[:count])
        time = before if isinstance(after, str) else after.time  # a change may need those after it
        expected += part.expected(before, time) - before
        before = time
    return max(expected, 1)


def _gain_note(model: RunModel, time: int, changes: Sequence[GraphChange]) -> str:
    """Return the gain in samples, or that there is little or none; "" for other gains."""
    if (batches := math.prod(change.times for change in changes)) > 1:
        return f"{batches} batches a step: {ratio(batches * model.measured / time)} times the samples per second"
    gain = 1 - time / model.measured
    if gain < -MIN_GAIN:
        return f"alone it is {share(-gain)} slower"
    return "alone it gains little or nothing" if gain < MIN_GAIN else ""


def _notes(model: RunModel, trace: Trace) -> Iterator[Note]:
    """Yield notes on the rates of the model, and on what it takes unchanged from the capture."""
    facts = model.graph.facts
    source = "measured here" if facts.pinned_measured else "default for this GPU: no large pinned copy in the capture"
    yield Note(
        "rates",
        f"pinned copies at {rate(facts.pinned_rate, 1)} ({source}); {duration(facts.launch_latency)} from a "
        f"launch to its kernel, {duration(facts.kernel_gap)} between kernels",
    )
    without = "predictions are for runs without the profiler; compare them with such runs, not with captures"
    under = "host times are as measured under the profiler; without it the host is faster"
    yield Note("profiler", without if model.is_unprofiled else under)
    if facts.overhead >= MIN_OVERHEAD and not model.is_unprofiled:
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
