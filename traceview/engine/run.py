"""The steps of an analysis: find the iterations, measure each part, merge, decide.

Parts are measured one after another in this process, or in worker processes. The only part of a capture in memory takes
the same steps.

Models look at a part of a large capture. The time without the profiler and predictions rest on some iterations. A trace
of a few hundred thousand operations around them gives about the same model as the capture; rates of copies and the
speed of the host are those of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.engine.facts import PartSums, Rules, collect_in_part
from traceview.engine.findings import find, find_together
from traceview.engine.iterations import LocatedIterations, find_iterations_in_parts, merge_iteration_parts
from traceview.engine.measure import Extents, PagePart, PartPlan, PartResult, measure_part
from traceview.engine.merge import merge_parts, merge_steady_streams
from traceview.engine.part import OverParts, PartRunner, PartTrace, ProcessRunner, TraceInMemory
from traceview.measure.gaps import ThreadStates
from traceview.measure.host import HostIdle
from traceview.measure.iterations import FIGURES, IterationRanges, build_iterations
from traceview.measure.iterations.times import Breakdown, IterationLaunches
from traceview.measure.run import run_time
from traceview.measure.shared_work import started_beside
from traceview.model.analysis import CAUSES, Analysis, AnalysisOptions, Iterations, NotMeasured
from traceview.model.findings import Finding
from traceview.model.sizes import WorkSizes
from traceview.model.trace import EVERYTHING, Note, Trace, Window
from traceview.model.unprofiled import ProfilerCosts
from traceview.normalise import with_checks
from traceview.normalise.lost_events import CallPart, EarlierRanges, Mask, are_calling, check_events
from traceview.pricing.base import Covered
from traceview.replay.constants import MAX_MODELLED
from traceview.replay.gains import with_gains
from traceview.replay.prediction import Changes, changes_of_run
from traceview.replay.select import MAX_RUN, LaunchedWork
from traceview.replay.unprofiled import with_profiler_part, with_unprofiled_time
from traceview.rules import all_rules
from traceview.rules.answer import with_answer


def modelled_part(analysis: Analysis, trace_of: Callable[[Window], Trace]) -> Analysis | None:
    """Return the analysis of a part of the capture with complete iterations, or of a short run without iterations.

    Return None for a long one. `analysis` has the figures of the capture. `trace_of` returns the trace of a time
    window, or a longer one.
    """
    iterations = analysis.iterations
    window = analysis.trace.window or EVERYTHING
    if not isinstance(iterations, Iterations):
        short = sum(device.kernel_count for device in analysis.devices) <= MAX_RUN
        return replace(analysis, trace=trace_of(window)) if short and analysis.devices else None
    each = iterations.per_iteration
    first, last = _middle_iterations(iterations)
    if last - first == len(each):
        trace = replace(trace_of(window), window=None)
    else:
        lag = max(iterations.steady.end - max(iteration.end_ns for iteration in each), 0)
        window = Window(each[max(first - 1, 0)].start_ns, each[min(last, len(each) - 1)].end_ns + lag)
        trace = _work_in(trace_of(window), window)
    return replace(
        analysis,
        trace=trace,
        iterations=replace(
            iterations,
            per_iteration=each[first:last],
            count=last - first,
            skipped=max(iterations.skipped - first, 0),
        ),
    )


def _work_in(trace: Trace, window: Window) -> Trace:
    """Return the trace of the work that starts in a window, and of the calls from its first launch to the window's end.

    It lacks what refers to other rows of operations, which no model needs.
    """
    first, stop = np.searchsorted(trace.operations["start"].to_numpy(), (window.start, window.end)).tolist()
    operations, calls = trace.operations[first:stop], trace.api["start"].to_numpy()
    begin = calls[operations["launch"].drop_nulls().to_numpy()].min(initial=window.start)
    low, high = np.searchsorted(calls, (begin, window.end)).tolist()
    moved = pl.col("launch") - low
    launch = pl.when(pl.col("launch") < high).then(moved).alias("launch")
    events = trace.stream_events.filter(pl.col("launch").is_between(low, high, closed="left"))
    return replace(
        trace,
        operations=operations.with_columns(launch),
        api=trace.api[low:high],
        stream_events=events.with_columns(moved),
        sizes=WorkSizes(),
        captures=trace.captures.clear(),
        window=None,
    )


def _middle_iterations(iterations: Iterations) -> tuple[int, int]:
    """Return the first and one past the last of the iterations to model: all, or MAX_MODELLED kernels in the middle."""
    kernels = np.array([iteration.kernel_count for iteration in iterations.per_iteration])
    count = len(kernels)
    if kernels.sum() <= MAX_MODELLED:
        return 0, count
    middle = (iterations.skipped + count) // 2
    typical = max(int(np.median(kernels[iterations.skipped :])), 1)
    half = max(MAX_MODELLED // typical // 2, 1)
    return max(middle - half, min(iterations.skipped, middle)), min(middle + half, count)


def with_unprofiled_part(
    analysis: Analysis,
    part: Analysis,
    costs: ProfilerCosts,
    given_ns: int | None = None,
    work: LaunchedWork | None = None,
) -> tuple[Analysis, Analysis]:
    """Return the analyses of a capture and of its modelled part with the time without the profiler.

    `costs`, `given_ns` and `work` are those of with_unprofiled_time.
    """
    iterations = analysis.iterations
    if not isinstance(iterations, Iterations):
        return analysis, part
    part = replace(with_unprofiled_time(part, costs, given_ns, work), devices=analysis.devices)
    time = part.iterations.unprofiled if isinstance(part.iterations, Iterations) else None
    shares = {} if time is None else time.shares
    new = tuple(note for note in part.notes if note not in analysis.notes)
    devices = tuple(with_profiler_part(device, shares.get(device.device)) for device in analysis.devices)
    whole = replace(
        analysis,
        iterations=replace(iterations, unprofiled=time),
        devices=devices if time is not None and time.shares else analysis.devices,
        notes=(*analysis.notes, *new),
    )
    return whole, part


class Modelled(NamedTuple):
    """The analysis of a capture with the time without the profiler, and the changes of its modelled part."""

    analysis: Analysis
    changes: Changes | None


def model_capture(
    analysis: Analysis,
    trace_of: Callable[[Window], Trace] | None,
    costs: ProfilerCosts | None,
    given_ns: int | None = None,
) -> Modelled:
    """Return the model of a capture before its findings are known; it has no changes if `trace_of` is None.

    The parameters are those of modelled_part and with_unprofiled_time; `costs` may be None.
    """
    part = None if trace_of is None else modelled_part(analysis, trace_of)
    if part is None:
        return Modelled(analysis, None)
    work = LaunchedWork.from_analysis(part)
    if costs is not None:
        analysis, part = with_unprofiled_part(analysis, part, costs, given_ns, work)
    return Modelled(analysis, changes_of_run(part, work))


class AnalyzedCapture(NamedTuple):
    """An analysis, and the parts that it comes from, which a page needs (engine/page.py).

    `changes` are those of its model. `pages` has what each part measured for a page; it is empty for a capture in
    memory. `host_idle` knows the resident tables. `other_part` returns the analysis of the window instead of the steady
    part, or the reverse; None if they are the same.
    """

    analysis: Analysis
    changes: Changes | None
    plan: PartPlan
    pages: Sequence[PagePart]
    over_parts: OverParts
    host_idle: HostIdle | None
    other_part: Callable[[], Analysis | None]


def analyze_parts(
    runner: PartRunner | ProcessRunner,
    resident: Trace,
    extents: Extents,
    options: AnalysisOptions,
    *,
    folder: Path | None = None,
    trace_of: Callable[[Window], Trace] | None = None,
    complete: Trace | None = None,
) -> AnalyzedCapture:
    """Analyze a capture in parts. The figures and the errors are those of pipeline.analyze.

    `resident` has the small tables of the capture and the user's window; `extents` has the measured devices. `folder`
    gets the events of the timeline: the capture can have a page as long as it exists. `trace_of` returns the trace of
    a window; without it nothing is predicted and the time without the profiler is unknown. With `complete`, the only
    part is this trace, and the analysis keeps it.
    """
    located = _find_iterations(runner, resident, extents, options, complete)
    plan = _plan(resident, extents, located, options, folder, runner.count, complete)
    shown = [plan.covered(whole=whole) for whole in (options.whole, not options.whole)]
    if shown[0].covered == shown[1].covered:
        del shown[1]
    wanted = shown if folder is not None else shown[:1]  # a page shows both; without one, the other is found if asked
    # In the only part in memory, rules collect while the model is built.
    function = partial(_measured, plan=plan, covered=wanted if complete is None else (), rules=all_rules())
    results, collected = zip(*runner.over_parts(function), strict=True)
    merged, host_idle = _merge(runner, resident, plan, located, results, complete)
    merged = replace(merged, options=options)
    modelled = started_beside(partial(model_capture, merged, trace_of, options.costs, options.unprofiled_ns))
    steady = merge_steady_streams(results)

    def decided(covered: Sequence[Covered], sums: Sequence[Sequence[PartSums]]) -> list[Analysis]:
        """Return the analyses with the findings of what is covered."""
        wholes = [each.whole for each in covered]
        steps = [
            find(
                replace(merged, whole=whole),
                steady,
                runner,
                host_idle,
                lambda whole=whole: replace(modelled().analysis, whole=whole),  # type: ignore[misc]
                sums=own,
            )
            for whole, own in zip(wholes, sums, strict=True)
        ]
        findings, (undecided, changes) = find_together(runner, steps), modelled()
        return [
            _decided(replace(undecided, whole=whole), *own, changes)
            for whole, own in zip(wholes, findings, strict=True)
        ]

    def other_part() -> Analysis | None:
        return analyses[1] if len(analyses) > 1 else decided(shown[1:], [()])[0] if len(shown) > 1 else None

    analyses = decided(wanted, list(zip(*collected, strict=True)) or [()])
    pages = [result.page for result in results if result.page is not None]
    return AnalyzedCapture(analyses[0], modelled().changes, plan, pages, runner.over_parts, host_idle, other_part)


def _measured(
    part: PartTrace, plan: PartPlan, covered: Sequence[Covered], rules: Rules
) -> tuple[PartResult, list[PartSums]]:
    """Return the figures of a part, and what rules collect in it of each of `covered`."""
    return measure_part(part, plan), [collect_in_part(part, each, rules) for each in covered]


def _decided(
    undecided: Analysis, findings: Sequence[Finding], notes: Sequence[Note], changes: Changes | None
) -> Analysis:
    """Return the analysis with its findings by gain, its notes and its answer."""
    findings = with_gains(undecided, findings, changes)
    return with_answer(replace(undecided, findings=findings, notes=(*undecided.notes, *notes)))


def find_iterations(trace: Trace, options: AnalysisOptions) -> LocatedIterations:
    """Return where the iterations of a trace are, as its analysis finds them. Raises TraceviewError."""
    source, extents = TraceInMemory(trace), Extents.from_trace(trace, options.device)
    return _find_iterations(PartRunner(source, (EVERYTHING,)), source.resident, extents, options, trace)


def _find_iterations(
    runner: PartRunner | ProcessRunner,
    resident: Trace,
    extents: Extents,
    options: AnalysisOptions,
    complete: Trace | None,
) -> LocatedIterations:
    if complete is not None and complete.window is not None:  # what ranges launch outside the window counts, too
        runner = PartRunner(TraceInMemory(replace(complete, window=None)), (EVERYTHING,))
    return find_iterations_in_parts(
        resident, sorted(extents.devices), runner.over_parts, pattern=options.iteration, skip=options.skip
    )


def _plan(
    resident: Trace,
    extents: Extents,
    located: LocatedIterations,
    options: AnalysisOptions,
    folder: Path | None,
    part_count: int,
    complete: Trace | None,
) -> PartPlan:
    iterations = located.iterations
    return PartPlan(
        resident.window or EVERYTHING,
        extents,
        None if isinstance(iterations, NotMeasured) else iterations[0]._replace(names=()),
        iterations if isinstance(iterations, NotMeasured) else _for_parts(*iterations, resident),
        options.top,
        options.whole,
        options.flops_per_iteration,
        folder,
        run_time(list(extents.devices.values()), located.calls if resident.window is None else ()),
        part_count,
        keeps_rows=complete is not None,
    )


def _for_parts(where: IterationRanges, work: IterationLaunches, resident: Trace) -> Iterations:
    """Return the iterations that each part gets, without figures.

    A row takes 1 kB in each process, and GPU metrics alone need more than the first and the last counted one.
    """
    none = np.zeros(len(where.start), np.int64)
    names = (name for name in FIGURES if name not in ("wall_ns", "idle_ns"))
    parts = Breakdown(dict.fromkeys((*names, "kernel_count"), none), np.zeros((len(CAUSES), len(none)), np.int64))
    if len(resident.gpu_metrics):
        return build_iterations(where, parts, work)
    return replace(build_iterations(where, parts, work, (where.skipped, len(none) - 1)), skipped=0)


def _merge(
    runner: PartRunner | ProcessRunner,
    resident: Trace,
    plan: PartPlan,
    located: LocatedIterations,
    results: Sequence[PartResult],
    complete: Trace | None,
) -> tuple[Analysis, HostIdle | None]:
    """Return the analysis without findings, and what the resident tables show of the host."""
    iterations: Iterations | NotMeasured
    if isinstance(located.iterations, NotMeasured):
        iterations = located.iterations
    else:
        where, work = located.iterations
        parts = [result.iterations for result in results if result.iterations is not None]
        iterations = build_iterations(where, merge_iteration_parts(where, parts), work)
    if complete is None:
        calls = [result.calls for result in results if result.calls is not None]
        resident = _with_event_checks(resident, calls, runner.over_parts)
    host_idle = HostIdle.build(resident, ThreadStates.from_trace(resident))
    analysis = merge_parts(resident, host_idle, plan, iterations, results)
    if complete is not None:
        analysis = replace(analysis, trace=replace(complete, info=analysis.info))
    return analysis, host_idle


def _with_event_checks(resident: Trace, parts: Sequence[CallPart], over_parts: OverParts) -> Trace:
    """Return the resident tables with the checks for lost events in their info."""

    def masks(ranges: Sequence[EarlierRanges]) -> list[Mask]:
        return [reduce(or_, masks) for masks in zip(*over_parts(partial(_calling_in_part, ranges=ranges)), strict=True)]

    return replace(resident, info=with_checks(resident.info, check_events(parts, resident.ranges, masks)))


def _calling_in_part(part: PartTrace, ranges: Sequence[EarlierRanges]) -> list[Mask]:
    return [are_calling(part.trace.api, each) for each in ranges]
