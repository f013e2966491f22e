"""From an analysis to what each change would give: build, change, replay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from traceview.errors import RequestError
from traceview.intervals import length, union
from traceview.model.analysis import Analysis, NotMeasured
from traceview.model.trace import Trace
from traceview.model.whatif import NotApplicable, Prediction, WhatIf
from traceview.whatif.build import build
from traceview.whatif.changes import CHANGES, Change, faster
from traceview.whatif.changes.pin import PIN_HERE
from traceview.whatif.constants import HIGH, LOW, MIDDLE, NOISE, Constants
from traceview.whatif.graph import GAP, RUN, Graph
from traceview.whatif.path import spans_of
from traceview.whatif.power import clocked
from traceview.whatif.replay import COUNTED, CircleError, Replay, made_of, replay
from traceview.whatif.select import Selection, select

LITTLE = 0.02  # of the measured time: a smaller gain is none that one would notice
WORTH = 0.005  # likewise, for one more change among several
TIMES = 2.0  # how much faster the longest kernel is taken to be when nobody asks for another


@dataclass(frozen=True, slots=True)
class _Model:
    graph: Graph
    measured: int
    error: float


@dataclass(frozen=True, slots=True)
class _After:
    """A changed graph, its replay, and the ns an iteration that both say."""

    graph: Graph
    replay: Replay
    time: int


def whatif(
    analysis: Analysis,
    *,
    faster_kernels: Mapping[str, float] | None = None,
    more: Sequence[Change] = (),
) -> WhatIf | NotMeasured:
    """Predict every change alone, and several together.

    `faster_kernels` says how many times as fast kernels of a name become; without it, the one that takes the
    most time is taken twice as fast. `more` are changes that are predicted alone, besides.
    Returns NotMeasured where the capture has no iterations, or their times contradict each other.
    Raises RequestError when a kernel of that name was not launched in them.
    """
    chosen = select(analysis)
    if isinstance(chosen, str):
        return NotMeasured(chosen)
    graph = build(analysis.trace, chosen)
    base = _unchanged(graph)
    if isinstance(base, str):
        return NotMeasured(base)
    model = _Model(graph, chosen.measured_ns, base.per_iteration / chosen.measured_ns - 1)
    kernels = _faster(analysis.trace, graph, faster_kernels)
    alone, left_out = _alone(model, (*CHANGES, *kernels, *more))
    return WhatIf(
        info=analysis.info,
        range=chosen.range,
        counted=chosen.steady,
        modelled=chosen.last - chosen.first,
        measured_ns=chosen.measured_ns,
        replayed_ns=base.per_iteration,
        path=made_of(graph, base),
        spans=spans_of(analysis.trace, graph, base),
        predictions=alone,
        together=_together(model),
        left_out=left_out,
        notes=(*_notes(model), *_others(analysis.trace, chosen)),
    )


def predict(analysis: Analysis, names: Sequence[str], *, more: Sequence[Change] = ()) -> Prediction:
    """Predict the named changes (`Change.name`) made together, and `more` after them.

    Raises RequestError when a name is unknown, a change does not apply, there are no iterations, or their times
    contradict each other.
    """
    chosen = select(analysis)
    if isinstance(chosen, str):
        raise RequestError(f"{analysis.info.file}: {chosen}")
    known = {one.name: one for one in CHANGES}
    for name in names:
        if name not in known:
            raise RequestError(f"no change is called {name}; there are {', '.join(known)}")
    graph = build(analysis.trace, chosen)
    base = _unchanged(graph)
    if isinstance(base, str):
        raise RequestError(f"{analysis.info.file}: {base}")
    model = _Model(graph, chosen.measured_ns, base.per_iteration / chosen.measured_ns - 1)
    found = _prediction(model, [*(one for one in CHANGES if one.name in names), *more])
    if isinstance(found, str):
        raise RequestError(f"{analysis.info.file}: {found}")
    return found


def measured(analysis: Analysis) -> int:
    """Return the steady GPU time per iteration in ns, what predictions of another capture are held against.

    Raises RequestError where the capture has no iterations.
    """
    chosen = select(analysis)
    if isinstance(chosen, str):
        raise RequestError(f"{analysis.info.file}: {chosen}")
    return chosen.measured_ns


def _unchanged(graph: Graph) -> Replay | str:
    """Replay the run as it was; or say what is impossible in it."""
    try:
        return replay(graph)
    except CircleError:
        of, calls = graph.operations, graph.calls
        launched = of.call >= 0
        early = int(np.count_nonzero(of.start[launched] < calls.start[of.call[launched]]))
        told = f": {early} of {len(of.row)} operations start before the calls that launched them" if early else ""
        return (
            f"by the times of its iterations, work waits for what it comes before{told}; export the report again, "
            "or capture anew"
        )


def _faster(trace: Trace, graph: Graph, wanted: Mapping[str, float] | None) -> tuple[Change, ...]:
    rows = graph.operations.row[np.isin(graph.operations.code, COUNTED)]
    frame = trace.operations[rows].select(
        pl.col("name").cast(pl.String),
        pl.col("name").to_physical().cast(pl.Int64).alias("code"),
        (pl.col("end") - pl.col("start")).alias("ns"),
    )
    if wanted is None:
        totals = frame.group_by("name").agg(pl.col("ns").sum()).sort(["ns", "name"], descending=[True, False])
        wanted = {totals["name"][0]: TIMES} if len(totals) else {}
    codes = dict(frame.select("name", "code").iter_rows())
    for name, times in wanted.items():
        if name not in codes:
            raise RequestError(f"{trace.info.file}: no kernel called {name} runs in the modelled iterations")
        if times <= 0:
            raise RequestError(f"--faster {name}={times:g}: a kernel can only be more than 0 times as fast")
    return tuple(faster(codes[name], name, times) for name, times in wanted.items())


def _alone(model: _Model, changes: Sequence[Change]) -> tuple[tuple[Prediction, ...], tuple[NotApplicable, ...]]:
    found, left_out = [], []
    for change in changes:
        one = _prediction(model, [change])
        if isinstance(one, str):
            left_out.append(NotApplicable(change.name, change.title, one))
        else:
            found.append(one)
    return tuple(sorted(found, key=lambda one: (one.iteration_ns, one.change))), tuple(left_out)


def _together(model: _Model) -> tuple[Prediction, ...]:
    """Add the change that gains most, again and again, until none gains anything."""
    made: list[Change] = []
    best, found = model.measured, []
    left = [change for change in CHANGES if change is not PIN_HERE]
    while left:
        times = {one.name: _middle(model, _ordered([*made, one])) for one in left}
        gains = [(time, one) for one in left if (time := times[one.name]) is not None]
        if not gains:
            break
        time, change = min(gains, key=lambda pair: pair[0])
        if time > best - WORTH * model.measured:
            break
        best = time
        made.append(change)
        left.remove(change)
        one_more = _prediction(model, _ordered(made))
        assert not isinstance(one_more, str), "it has just been replayed"
        found.append(replace(one_more, change=change.name, title=change.title, rests_on=change.rests_on, note=""))
    return tuple(found)


def _ordered(changes: Sequence[Change]) -> list[Change]:
    return sorted(changes, key=CHANGES.index)


def _middle(model: _Model, changes: Sequence[Change]) -> int | None:
    try:
        after = _after(model, changes, MIDDLE)
        return None if isinstance(after, str) else after.time
    except CircleError:
        return None


def _after(model: _Model, changes: Sequence[Change], constants: Constants) -> _After | str:
    """Make the changes and replay, once more where the GPU's clock follows; or say why they cannot be made."""
    graph = model.graph
    for change in changes:
        after = change.apply(graph, constants)
        if isinstance(after, str):
            return after
        graph = after
    if constants.host != 1:
        weight, host = graph.edges.weight, graph.edges.kind == GAP
        weight = np.where(host, weight * constants.host, weight).astype(np.int64)
        graph = graph.with_edges(graph.edges.weighing(weight))
    first = _replayed(model, graph)
    slower = clocked(model.graph, model.measured, graph, first.time, constants)
    return first if slower is graph else _replayed(model, slower)


def _replayed(model: _Model, graph: Graph) -> _After:
    found = replay(graph)
    return _After(graph, found, max(found.per_iteration, _least(model, graph)))


def _least(model: _Model, graph: Graph) -> int:
    """Return what the compute of several streams takes at least: they share one GPU, and overlap as they did."""
    of = graph.operations
    compute = np.isin(of.code, COUNTED[:1]) & (of.iteration >= graph.first)
    if len(np.unique(of.stream[compute])) < 2:
        return 0
    busy = length(union(of.start[compute], of.end[compute]))
    before = int(model.graph.edges.weight[model.graph.of_operations(RUN, compute)].sum())
    after = int(graph.edges.weight[graph.of_operations(RUN, compute)].sum())
    return int(busy * after / max(before, 1)) // graph.counted


def _prediction(model: _Model, changes: Sequence[Change]) -> Prediction | str:
    """Return the prediction, or why there is none."""
    try:
        return _predicted(model, changes)
    except CircleError as error:
        return f"this run's order of work does not allow it ({error})"


def _predicted(model: _Model, changes: Sequence[Change]) -> Prediction | str:
    found: list[_After] = []
    for constants in (LOW, MIDDLE, HIGH):
        after = _after(model, changes, constants)
        if isinstance(after, str):
            return after
        found.append(after)
    times, middle = [one.time for one in found], found[1]
    path = made_of(middle.graph, middle.replay)
    path["compute"] += max(0, middle.time - sum(path.values())) if middle.time > middle.replay.per_iteration else 0
    wide = NOISE + abs(model.error)
    return Prediction(
        "+".join(change.name for change in changes),
        ", ".join(change.title for change in changes),
        middle.time,
        int(min(times) * max(0.0, 1 - wide)),
        int(max(times) * (1 + wide)),
        "; ".join(change.rests_on for change in changes),
        _note(model, middle.time, math.prod(change.times for change in changes)),
        path,
    )


def _note(model: _Model, time: int, batches: int) -> str:
    if batches > 1:
        return f"{batches} batches a step: {batches * model.measured / time:.2f} times the samples a second"
    gain = 1 - time / model.measured
    if gain < -LITTLE:
        return f"alone it loses {-gain:.0%}"
    return "alone it gains little or nothing" if gain < LITTLE else ""


def _others(trace: Trace, chosen: Selection) -> tuple[str, ...]:
    count = trace.operations["process"].n_unique()
    if count < 2:
        return ()
    return (
        f"{count} processes use GPUs here; this is the model of one of them, process {chosen.process}, and what it "
        "waits for the others stays as it is",
    )


def _notes(model: _Model) -> tuple[str, ...]:
    facts = model.graph.facts
    source = "measured here" if facts.pinned_measured else "this GPU's default: the capture has no large pinned copy"
    return (
        f"pinned copies at {facts.pinned_rate:.1f} GB/s ({source}); {facts.launch_latency / 1000:.1f} µs from a launch "
        f"to its kernel, {facts.kernel_gap / 1000:.2f} µs between kernels",
        "host times are those under the profiler; without it the host is faster",
    )
