"""What-if across ranks: what a change on one rank, on all, or of the communication gives to the run of all ranks.

The graphs of all ranks are replayed as one. A shared collective waits for the last rank that arrives, and then lasts as
long as its shortest kernel: the one of the rank that waits for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.model.analysis import Analysis, AnalysisOptions
from traceview.model.fleet import Fleet
from traceview.model.frozen import dataclass
from traceview.model.trace import Note, names_match
from traceview.model.units import duration
from traceview.model.whatif import NotApplicable, Prediction, WhatIf
from traceview.pipeline import analyze_trace, open_trace
from traceview.ranks.analyze_reports import report_names
from traceview.ranks.match import NONE, collective_numbers
from traceview.ranks.measure_report import measure_trace
from traceview.ranks.merge import merge
from traceview.replay.build import build
from traceview.replay.changes import CHANGES, GraphChange, compute_changes
from traceview.replay.changes.base import COMMUNICATION
from traceview.replay.constants import CAPTURE_NOISE, REDUCE_CALL
from traceview.replay.graph import (
    NEVER,
    REDUCE,
    RUN,
    Codes,
    DependencyGraph,
    Edges,
    GraphCalls,
    Mask,
    Operations,
    Replay,
    UnfitGraphError,
    path_times,
    replay,
)
from traceview.replay.outcome import limit_of
from traceview.replay.prediction import LEAST_GAIN, MAX_ERROR
from traceview.replay.ranges import spread
from traceview.replay.select import LaunchedWork, Selection, select

MAX_JOINED = 24_000  # operations of all ranks in a model, so that a replay takes about 0.2 s
SUMS_FLOATS = r"Reduce\w*_(?:Sum|Avg|SumPostDiv|PreMulSum)_(?:f32|float)|_(?:Sum|Avg)_float"
BUCKET_FACTORS = (2, 4)
ARRIVALS = "the other ranks arrive as in the captures"
EMPTIED = -1  # the transfer of a collective whose message goes with a later one
Progress = Callable[[str, float], None]


class _Rank(NamedTuple):
    """One process of a run. `number` has the matched collective of each row of Trace.operations, or NONE."""

    label: str
    report: int
    analysis: Analysis
    work: LaunchedWork
    number: Codes


@dataclass(frozen=True)
class _Model:
    """The graphs of all ranks on one clock; `shared` has the collective of each of their operations.

    `transfer`, `iteration`, `group` (NONE but for all-reduces) and `sums_floats` have an item for each collective.
    """

    ranks: tuple[_Rank, ...]
    graphs: tuple[DependencyGraph, ...]
    shared: tuple[Codes, ...]
    transfer: Times
    iteration: Codes
    group: Codes
    sums_floats: Mask
    selection: Selection

    @cached_property
    def base(self) -> Replay:
        return replay(self.joined)

    @cached_property
    def joined(self) -> DependencyGraph:
        return _join(self.graphs, self.shared, self.transfer)

    @property
    def measured(self) -> int:
        return self.selection.measured_ns

    def without(self, rank: int) -> _Model:
        """Return the model in which no other rank waits for this one, and it for none."""
        left = [index for index in range(len(self.ranks)) if index != rank]
        return replace(
            self, graphs=tuple(self.graphs[row] for row in left), shared=tuple(self.shared[row] for row in left)
        )

    def changed(self, change: GraphChange, ranks: Sequence[int]) -> _Model | str:
        """Return the model with a change on some ranks, or the reason why it fits none of them."""
        graphs, reason = list(self.graphs), ""
        for rank in ranks:
            result = change.apply(graphs[rank])
            if isinstance(result, str):
                reason = reason or result
            else:
                graphs[rank], reason = result, reason
        fits = any(graphs[rank] is not self.graphs[rank] for rank in ranks)
        return replace(self, graphs=tuple(graphs)) if fits else reason


class _Scenario(NamedTuple):
    change: str
    title: str
    rests_on: str
    apply: Callable[[], _Model | str]
    of_communication: bool = False
    effort: str = "a rewrite"


def whatif_ranks(
    paths: Sequence[Path], *, iteration: str | None = None, skip: int | None = None, progress: Progress | None = None
) -> WhatIf:
    """Predict the iteration of a run of several ranks after each change on its slowest rank, on all, or between them.

    Raises RequestError if ranks have no iterations or no collectives in common, and as open_trace does.
    """
    step = progress or (lambda _step, _done: None)
    ranks, fleet = _read_ranks(paths, AnalysisOptions(iteration=iteration, skip=skip, costs=None), step)
    step("predict", 0.7)
    try:
        model = _model(ranks, fleet)
        error = model.base.per_iteration / model.measured - 1
    except UnfitGraphError as unfit:
        raise RequestError(f"{fleet.reports[0]}: the ranks' times contradict each other ({unfit})") from None
    if abs(error) > MAX_ERROR:
        raise RequestError(
            f"{fleet.reports[0]}: the replay of {len(ranks)} ranks takes {duration(model.base.per_iteration)} an "
            f"iteration, the captures {duration(model.measured)}; run traceview whatif on a single report"
        )
    predictions, left_out = [], []
    for scenario in _scenarios(model):
        result = _prediction(model, scenario, abs(error))
        if isinstance(result, str):
            if "@" not in scenario.change:
                left_out.append(NotApplicable(scenario.change, scenario.title, result))
        elif scenario.of_communication or result.iteration_ns < model.measured * (1 - LEAST_GAIN):
            predictions.append(result)
    selection, info = model.selection, ranks[0].analysis.info
    more = f" and {len(fleet.reports) - 1} more" if len(fleet.reports) > 1 else ""
    return WhatIf(
        info=replace(info, file=f"{len(ranks)} ranks of {fleet.reports[0]}{more}", left_out=(), health=()),
        range=selection.range,
        iterations=selection.summary,
        counted=selection.steady,
        modelled=selection.last - selection.first,
        measured_ns=model.measured,
        replayed_ns=model.base.per_iteration,
        unprofiled=None,
        path=path_times(model.joined, model.base),
        spans=(),
        predictions=tuple(sorted(predictions, key=lambda each: each.iteration_ns)),
        together=(),
        left_out=tuple(left_out),
        notes=(Note("profiler", "times are those of runs under the profiler"), *fleet.notes),
    )


def _read_ranks(paths: Sequence[Path], options: AnalysisOptions, step: Progress) -> tuple[list[_Rank], Fleet]:
    """Return the processes of all reports with the numbers of their collectives, and the merged reports."""
    files, analyses, results = report_names(paths), [], []
    for row, path in enumerate(paths):
        step(f"read {row + 1} of {len(paths)}", 0.7 * row / len(paths))
        trace = open_trace(path)
        analyses.append(analyze_trace(trace, options).analysis)
        results.append(measure_trace(trace, None, options.iteration, options.skip))
    fleet = merge(files, results, max_shown=None)
    ranks = []
    for report, analysis in enumerate(analyses):
        devices = analysis.trace.devices["id"].to_list()
        numbers = collective_numbers(analysis.trace.operations, devices, fleet, report)
        process = analysis.trace.operations["process"].to_numpy()
        for each in np.unique(process[numbers != NONE]).tolist():
            work = LaunchedWork.from_analysis(analysis, each)
            if work is None:
                raise RequestError(f"{files[report]}: no iterations were found; name their range with --iteration")
            gpu = devices[analysis.trace.operations["device"].to_numpy()[(process == each) & (numbers != NONE)][0]]
            label = next(rank.label for rank in fleet.ranks if (rank.report, rank.device) == (report, gpu))
            ranks.append(_Rank(label, report, analysis, work, numbers))
    if len(ranks) < 2:
        raise RequestError(
            f"{files[0]}: no collective of several ranks is in these captures, so none waits for another"
        )
    return ranks, fleet


def _model(ranks: Sequence[_Rank], fleet: Fleet) -> _Model:
    """Return the model of the iterations that all ranks have. Raises RequestError."""
    count = sum(len(group.kind) for group in fleet.times)
    iterations = np.full((len(ranks), count), NONE, np.int64)
    for row, rank in enumerate(ranks):
        known = np.flatnonzero((rank.number != NONE) & (rank.work.iteration >= 0))
        iterations[row, rank.number[known]] = rank.work.iteration[known]
    shifts = [_shift(iterations[0], each, rank.label) for each, rank in zip(iterations, ranks, strict=True)]
    selection = select(ranks[0].analysis, MAX_JOINED // len(ranks), ranks[0].work)
    if isinstance(selection, str):
        raise RequestError(f"{fleet.reports[0]}: {selection}")
    first = max(selection.first, *(1 - shift for shift in shifts))
    last = min(selection.last, *(len(rank.work.counts) - shift for rank, shift in zip(ranks, shifts, strict=True)))
    if first >= last:
        raise RequestError(f"{fleet.reports[0]}: the captures have no iterations in common")
    graphs, shared, measured = [], [], []
    for rank, shift in zip(ranks, shifts, strict=True):
        own = select(rank.analysis, 1, rank.work)
        if isinstance(own, str):
            raise RequestError(f"{rank.label}: {own}")
        chosen = own._replace(begin=first + shift - 1, first=first + shift, last=last + shift)
        graph = build(rank.analysis.trace, chosen)
        graphs.append(_on_clock(graph, fleet.clocks[rank.report].to_common, shift))
        shared.append(rank.number[graph.operations.row])
        measured.append(own.measured_ns)
    sums_floats = np.zeros(count, np.bool_)
    for rank in ranks:
        matches = names_match(rank.analysis.trace.operations["name"], SUMS_FLOATS) & (rank.number != NONE)
        sums_floats[rank.number[matches]] = True
    group = np.array(
        [row if kind == "AllReduce" else NONE for row, each in enumerate(fleet.times) for kind in each.kind], np.int64
    )
    return _Model(
        tuple(ranks),
        tuple(graphs),
        tuple(shared),
        _shortest_kernels(graphs, shared, count),
        iterations[0],
        group,
        sums_floats,
        selection._replace(first=first, last=last, measured_ns=int(np.mean(measured))),
    )


def _shift(reference: Codes, iterations: Codes, label: str) -> int:
    """Return by how much the number of an iteration exceeds that of the first rank's same iteration."""
    known = (reference != NONE) & (iterations != NONE)
    if not known.any():
        raise RequestError(f"{label}: no collective of its iterations was matched with the first rank's")
    return int(np.median(iterations[known] - reference[known]))


def _scenarios(model: _Model) -> Iterator[_Scenario]:
    """Yield the changes: on the rank that the others wait for most, on all ranks, and of the communication."""
    everywhere = range(len(model.ranks))
    gains = [-replay(model.without(rank).joined).per_iteration for rank in everywhere]
    slowest = int(np.argmax(gains))
    label = model.ranks[slowest].label
    yield _Scenario(
        f"without:{label}",
        f"No rank waits for {label}",
        f"{label} as fast as the others; they take as long as in the captures",
        lambda: model.without(slowest),
    )
    for change in _fitting(model.ranks[slowest].analysis):
        for name, where, ranks, rests_on in (
            (f"{change.name}@{label}", label, [slowest], f"{change.rests_on}; {ARRIVALS}"),
            (change.name, "all ranks", everywhere, change.rests_on),
        ):
            yield _Scenario(
                name, f"{where}: {change.title}", rests_on, partial(model.changed, change, ranks), effort=change.effort
            )
    yield _Scenario(
        "bf16-gradients",
        "Gradients in bf16",
        "sums in bf16 converge as well; half of the bytes take half of the time beyond a call of a few bytes",
        partial(_half_sums, model),
        of_communication=True,
        effort="one line",
    )
    for factor in BUCKET_FACTORS:
        yield _Scenario(
            f"buckets:{factor}",
            f"Buckets {factor} times as large",
            f"{factor} all-reduces in one, which starts when the last is ready (bucket_cap_mb)",
            partial(_larger_buckets, model, factor),
            of_communication=True,
            effort="one line",
        )


def _fitting(analysis: Analysis) -> Iterator[GraphChange]:
    for change in (*CHANGES, *compute_changes(analysis.trace)):
        if (fitting := change.for_program(analysis.program)) is not None:
            yield fitting


def _half_sums(model: _Model) -> _Model | str:
    """Return the model with half of the bytes in sums of 32-bit floats."""
    if not model.sums_floats.any():
        return "no collective sums 32-bit floats, as far as names of kernels say"
    beyond = np.maximum(model.transfer - REDUCE_CALL, 0)
    return replace(model, transfer=model.transfer - np.where(model.sums_floats, beyond // 2, 0))


def _larger_buckets(model: _Model, factor: int) -> _Model | str:
    """Return the model in which the all-reduces of an iteration go together, `factor` in one."""
    start, used = _starts_and_uses(model)
    transfer, merged = model.transfer.copy(), False
    sums = np.flatnonzero((model.group != NONE) & (model.iteration != NONE) & (start != NONE))
    keys = model.group[sums] * (model.iteration.max(initial=0) + 1) + model.iteration[sums]
    for rows in np.split(sums, np.flatnonzero(np.diff(keys)) + 1):
        for chunk in np.split(rows, range(factor, len(rows), factor)):
            if 2 * len(chunk) > factor and used[chunk[:-1]].min() >= start[chunk[-1]]:
                transfer[chunk[-1]] = max(transfer[chunk].sum() - (len(chunk) - 1) * REDUCE_CALL, transfer[chunk].max())
                transfer[chunk[:-1]] = EMPTIED
                merged = True
    return (
        replace(model, transfer=transfer)
        if merged
        else "an iteration has too few all-reduces, or its work waits for each of them"
    )


def _starts_and_uses(model: _Model) -> tuple[Times, Times]:
    """Return the first start of each collective, and when other GPU work that waits for it starts; NONE or never."""
    start, used = np.full(len(model.transfer), NONE), np.full(len(model.transfer), np.iinfo(np.int64).max)
    for graph, numbers in zip(model.graphs, model.shared, strict=True):
        ops, edges = graph.operations, graph.edges
        known = numbers != NONE
        start[numbers[known]] = np.maximum(start[numbers[known]], ops.start[known])
        source, target = graph.operations_at(edges.source), graph.operations_at(edges.target)
        between = (source >= 0) & (target >= 0) & (source != target)
        source, target = source[between], target[between]
        waits = (numbers[source] != NONE) & (ops.code[target] != COMMUNICATION)
        np.minimum.at(used, numbers[source[waits]], ops.start[target[waits]])
    return start, used


def _prediction(model: _Model, scenario: _Scenario, error: float) -> Prediction | str:
    """Return the prediction, or the reason why there is none."""
    changed = scenario.apply()
    if isinstance(changed, str):
        return changed
    try:
        result = replay(changed.joined)
    except UnfitGraphError as unfit:
        return f"the order of work does not allow it ({unfit})"
    replayed = result.per_iteration * model.measured // model.base.per_iteration
    limit = limit_of(path_times(model.joined, model.base))
    around = spread([scenario.change], limit)
    time, low, high = around.around(around.expected(model.measured, replayed), replayed, CAPTURE_NOISE + error)
    path = path_times(changed.joined, result)
    total = max(sum(path.values()), 1)
    return Prediction(
        change=scenario.change,
        title=scenario.title,
        iteration_ns=time,
        low_ns=low,
        high_ns=high,
        effort=scenario.effort,
        rests_on=scenario.rests_on,
        note="",
        path={kind: ns * time // total for kind, ns in path.items()},
    )


def _shortest_kernels(graphs: Sequence[DependencyGraph], shared: Sequence[Codes], count: int) -> Times:
    """Return the ns of the shortest kernel of each of `count` collectives; 0 for those that no graph has."""
    shortest = np.full(count, np.iinfo(np.int64).max)
    for graph, numbers in zip(graphs, shared, strict=True):
        known = numbers != NONE
        np.minimum.at(shortest, numbers[known], (graph.operations.end - graph.operations.start)[known])
    return np.where(shortest == np.iinfo(np.int64).max, 0, shortest)


def _on_clock(graph: DependencyGraph, to_common: Callable[[Times], Times], iterations: int) -> DependencyGraph:
    """Return a graph on another clock, whose iterations are numbered from `iterations` on."""
    calls, ops = graph.calls, graph.operations
    return graph._replace(
        calls=calls._replace(
            start=to_common(calls.start),
            end=to_common(calls.end),
            iteration=np.where(calls.iteration < 0, calls.iteration, calls.iteration - iterations),
        ),
        operations=ops._replace(
            start=to_common(ops.start),
            end=to_common(ops.end),
            iteration=np.where(ops.iteration < 0, ops.iteration, ops.iteration - iterations),
        ),
        release=np.where(graph.release == NEVER, NEVER, to_common(graph.release)),
        first=graph.first - iterations,
        last=graph.last - iterations,
    )


def _join(graphs: Sequence[DependencyGraph], shared: Sequence[Codes], transfer: Times) -> DependencyGraph:
    """Return one graph of several ranks, which model the same iterations on the same clock.

    `shared` has, for each rank, the number of the collective that each operation takes part in, or NONE. `transfer`
    has the ns of each collective from the last arrival on, or EMPTIED.
    """
    first_call = np.cumsum([0, *(len(graph.calls.row) for graph in graphs)]).tolist()
    first_operation = np.cumsum([0, *(len(graph.operations.row) for graph in graphs)]).tolist()
    base = 2 * first_call[-1]
    calls = GraphCalls(*map(np.concatenate, zip(*(graph.calls for graph in graphs), strict=True)))
    moved = [
        graph.operations._replace(call=np.where(graph.operations.call < 0, -1, graph.operations.call + offset))
        for graph, offset in zip(graphs, first_call, strict=False)
    ]
    operations = Operations(*(np.concatenate(columns) for columns in zip(*moved, strict=True)))
    release = np.empty(base + 2 * first_operation[-1], np.int64)
    edges = []
    for rank, graph in enumerate(graphs):
        nodes = np.concatenate(
            [
                np.arange(2 * first_call[rank], 2 * first_call[rank + 1]),
                base + np.arange(2 * first_operation[rank], 2 * first_operation[rank + 1]),
            ]
        )
        release[nodes] = graph.release
        edges.append(graph.edges._replace(source=nodes[graph.edges.source], target=nodes[graph.edges.target]))
    joined = graphs[0]._replace(
        calls=calls,
        operations=operations,
        edges=Edges(*(np.concatenate(columns) for columns in zip(*edges, strict=True))),
        release=release,
    )
    return _with_common_ends(joined, np.concatenate(shared), transfer)


def _with_common_ends(joined: DependencyGraph, numbers: Codes, transfer: Times) -> DependencyGraph:
    """Replace the run time of each shared collective: all its kernels end when the transfer after the last start does.

    The end of the first kernel collects the starts of all, and passes its time to the other ends.
    """
    ns = np.append(transfer, 0)[numbers]  # the last item stands for NONE
    emptied = (numbers != NONE) & (ns == EMPTIED)
    weight = joined.edges.weight.copy()
    weight[joined.operation_edges(RUN, emptied)] = 0
    members = np.flatnonzero((numbers != NONE) & ~emptied)
    members = members[np.argsort(numbers[members], kind="stable")]
    _, first, place = np.unique(numbers[members], return_index=True, return_inverse=True)
    hub = members[first][place]
    waits = np.zeros(len(numbers), np.bool_)
    waits[members] = True
    kept = joined.edges.with_weight(weight).keep(~joined.operation_edges(RUN, waits))
    others = members != hub
    collected = kept.plus(joined.starts(members), joined.ends(hub), ns[members], REDUCE)
    return joined.with_edges(collected.plus(joined.ends(hub[others]), joined.ends(members[others]), 0, REDUCE))
