"""The measures of a capture in slices, one after another or in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceview.intervals import Times, distinct_rows
from traceview.measure import measure_counters
from traceview.measure.host import HostIdle
from traceview.measure.iterations import IterationRanges
from traceview.measure.iterations.breakdown import Breakdown
from traceview.measure.iterations.figures import FIGURES, build_iterations
from traceview.measure.nvtx.projection import project_operations, project_ranges
from traceview.measure.places.locate import locate_operations
from traceview.measure.threads import started_beside
from traceview.model.analysis import Analysis, Iterations, NotMeasured
from traceview.model.devices import CAUSES
from traceview.model.findings import Finding
from traceview.model.trace import EVERYTHING, Note, Trace, Window
from traceview.model.unprofiled import ProfilerCosts
from traceview.normalise import with_checks
from traceview.normalise.lost_events import CallPart, EarlierRanges, Mask, are_calling, check_events
from traceview.rules.answer import with_answer
from traceview.slices.findings import find
from traceview.slices.iterations import find_iterations_in_slices, merge_iteration_parts
from traceview.slices.measure import Extents, PagePart, SlicePlan, measure_slice, pair_streams
from traceview.slices.merge import join_pieces, merge_slices, merge_steady_streams
from traceview.slices.model import model_capture
from traceview.slices.runner import ProcessRunner, SliceRunner, TraceInMemory
from traceview.slices.slice import OverSlices, Slice
from traceview.whatif.prediction import with_known_predictions

if TYPE_CHECKING:
    from traceview.model.charts import Charts


def analyze_slices(
    runner: SliceRunner | ProcessRunner,
    resident: Trace,
    extents: Extents,
    *,
    iteration: str | None = None,
    skip: int | None = None,
    top: int = 10,
    whole: bool = False,
    flops_per_iteration: int | None = None,
    folder: Path | None = None,
    costs: ProfilerCosts | None = None,
    unprofiled_ns: int | None = None,
    trace_of: Callable[[Window], Trace] | None = None,
    complete: Trace | None = None,
) -> Analysis:
    """Analyze a capture in slices. The figures are those of pipeline.analyze.

    `resident` has the small tables of the capture and the user's window; `extents` has the measured devices. `folder`
    gets the events of the timeline: the analysis can have a page as long as it exists. `trace_of` returns the trace of
    a window; without it nothing is predicted and the time without the profiler is unknown. With `complete`, the only
    part is this trace, and the analysis keeps it. The other parameters and the errors are those of `analyze`.
    """
    over_slices = runner.over_slices
    devices = sorted(extents.devices)
    launches = over_slices
    if complete is not None and complete.window is not None:  # what ranges launch outside the window counts, too
        source = TraceInMemory(replace(complete, window=None))
        launches = SliceRunner(source, (EVERYTHING,)).over_slices
    located = find_iterations_in_slices(resident, devices, launches, pattern=iteration, skip=skip)
    plan = SlicePlan(
        resident.window or EVERYTHING,
        extents,
        None if isinstance(located, NotMeasured) else replace(located[0], names=()),
        located if isinstance(located, NotMeasured) else _for_slices(*located, resident),
        top,
        whole,
        flops_per_iteration,
        folder,
        runner.count,
        complete is not None,
    )
    results = list(over_slices(partial(measure_slice, plan=plan)))
    iterations: Iterations | NotMeasured
    if isinstance(located, NotMeasured):
        iterations = located
    else:
        where, finish = located
        parts = [result.iterations for result in results if result.iterations is not None]
        iterations = build_iterations(where, merge_iteration_parts(where, parts), finish)
    if complete is None:
        calls = [result.calls for result in results if result.calls is not None]
        resident = _with_event_checks(resident, calls, over_slices)
    analysis = merge_slices(resident, plan, iterations, results)
    if complete is not None:
        analysis = runner.in_slice(0, partial(_with_rows, analysis=analysis, complete=complete))
    findings_of = partial(find, steady=merge_steady_streams(results), parts=runner)
    modelled = started_beside(partial(model_capture, analysis, trace_of, costs, unprofiled_ns))
    findings, notes = findings_of(analysis, priced=lambda: modelled().analysis)
    findings, analysis = modelled().with_predictions(findings), modelled().analysis
    if any(device.steady.window != device.window for device in analysis.devices):
        analysis = replace(analysis, other_part=cache(partial(_other_part, analysis, findings, findings_of)))
    analysis = with_answer(replace(analysis, findings=findings, notes=(*analysis.notes, *notes)))
    if folder is None:
        return analysis
    from traceview.slices.lanes import merged_projection, stored_source  # needed for a page alone

    marks = [result.page.marks for result in results if result.page is not None]
    projected = partial(merged_projection, marks)
    return replace(
        analysis,
        events=stored_source(marks, extents.events, folder),
        projected=projected,
        counters=partial(measure_counters, resident),
        charts=partial(_charts, analysis, plan, [result.page for result in results if result.page], over_slices),
    )


def _with_rows(part: Slice, analysis: Analysis, complete: Trace) -> Analysis:
    """Return the analysis with the trace of its only part, whose charts are measured at their first use."""

    def charts() -> Charts:
        from traceview.measure.charts import measure_charts

        places = locate_operations(complete, project_operations(complete))
        return measure_charts(
            complete, analysis.devices, analysis.iterations, places, part.host_idle, whole=analysis.whole
        )

    return replace(
        analysis,
        trace=replace(complete, info=analysis.info),
        charts=charts,
        projected=lambda: project_ranges(complete, project_operations(complete)),
        host_time=part.host_idle,
        counters=partial(measure_counters, complete),
    )


def _with_event_checks(resident: Trace, parts: Sequence[CallPart], over_slices: OverSlices) -> Trace:
    """Return the resident tables with the checks for lost events in their info."""

    def masks(ranges: Sequence[EarlierRanges]) -> list[Mask]:
        return reduce(_any_of_each, over_slices(partial(_calling_in_slice, ranges=ranges)))

    return replace(resident, info=with_checks(resident.info, check_events(parts, resident.ranges, masks)))


def _calling_in_slice(part: Slice, ranges: Sequence[EarlierRanges]) -> list[Mask]:
    return [are_calling(part.trace.api, each) for each in ranges]


def _any_of_each(masks: list[Mask], others: list[Mask]) -> list[Mask]:
    return [mask | other for mask, other in zip(masks, others, strict=True)]


def _other_part(
    analysis: Analysis,
    findings: Sequence[Finding],
    findings_of: Callable[[Analysis], tuple[tuple[Finding, ...], tuple[Note, ...]]],
) -> Analysis:
    """Return the analysis with the findings of the window instead of the steady part, or the reverse.

    It needs what `analyze_slices` was given for its runner.
    """
    other = replace(analysis, whole=not analysis.whole)
    others, notes = findings_of(other)
    return with_answer(replace(other, findings=with_known_predictions(others, findings), notes=(*other.notes, *notes)))


def _charts(analysis: Analysis, plan: SlicePlan, pages: Sequence[PagePart], over_slices: OverSlices) -> Charts:
    """Return the charts, for a page. Devices with many streams need one more pass over slices."""
    from traceview.measure.charts import ChartTotals, merged_charts
    from traceview.measure.charts.device import busiest_streams, gap_totals

    totals: dict[int, list[ChartTotals]] = {device.device: [] for device in analysis.devices}
    for row, own in totals.items():
        parts = [page for page in pages if row in page.charts]
        pieces = join_pieces(pl.concat([page.edge_gaps[row] for page in parts]))
        own.extend(page.charts[row] for page in parts)
        own[0] = replace(own[0], gaps=pl.concat([own[0].gaps, gap_totals(pieces)]))
    busiest = {
        device.device: busiest_streams(device)
        for device in analysis.devices
        if not plan.paired_streams(analysis.trace, device.device)
    }
    if busiest:
        pairs = pl.concat(over_slices(partial(pair_streams, extents=plan.extents.devices, streams=busiest)))
        for row in busiest:
            totals[row][0] = replace(totals[row][0], streams=pairs)
    shapes, _ = distinct_rows([page.marks.shapes for page in pages], ordered=True)
    idle, host_idle = analysis.tables["lines"].totals, analysis.host_time
    return merged_charts(
        analysis.devices,
        analysis.iterations,
        totals,
        shapes,
        host_idle if isinstance(host_idle, HostIdle) else None,
        pl.DataFrame() if idle is None else idle.frame,
        whole=analysis.whole,
    )


def _for_slices(where: IterationRanges, finish: Times | None, resident: Trace) -> Iterations:
    """Return the iterations that each slice gets, without figures.

    A row takes 1 kB in each process, and GPU metrics alone need more than the first and the last counted one.
    """
    none = np.zeros(len(where.start), np.int64)
    names = (name for name in FIGURES if name not in ("wall_ns", "idle_ns"))
    parts = Breakdown(dict.fromkeys((*names, "kernel_count"), none), np.zeros((len(CAUSES), len(none)), np.int64))
    if len(resident.gpu_metrics):
        return build_iterations(where, parts, finish)
    return replace(build_iterations(where, parts, finish, (where.skipped, len(none) - 1)), skipped=0)
