"""The complete path from a report to an Analysis. Read this file first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from traceview.measure import all_measures, measure_counters
from traceview.measure.activity import Activity, active_devices, window_of_range
from traceview.measure.base import CaptureInput, CaptureMeasure, fill_tables
from traceview.measure.devices import (
    count_unmatched,
    measure_devices,
    steady_window,
    with_longest_gaps,
    with_steady_part,
)
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.host import HostIdle, with_host_states
from traceview.measure.iterations import measure_iterations
from traceview.measure.iterations.breakdown import MeasuredDevices
from traceview.measure.notes import with_tables
from traceview.measure.nvtx.projection import project_operations, project_ranges
from traceview.measure.places.locate import locate_operations
from traceview.measure.sync import measure_host
from traceview.model.analysis import Analysis, Iterations
from traceview.model.findings import Finding
from traceview.model.trace import Trace, Window
from traceview.model.unprofiled import ESTIMATE, ProfilerCosts
from traceview.normalise import normalise
from traceview.read import read_capture
from traceview.read.calibration import costs_beside
from traceview.rules import with_findings
from traceview.rules.answer import with_answer
from traceview.slices.memory import check_fits
from traceview.whatif.constants import MAX_MODELLED
from traceview.whatif.prediction import model_of_run, with_known_predictions, with_predictions
from traceview.whatif.select import LaunchedWork
from traceview.whatif.unprofiled import with_unprofiled_time

if TYPE_CHECKING:
    from traceview.model.charts import Charts

Progress = Callable[[str, float], None]


def open_trace(path: str | Path) -> Trace:
    """Read and normalise a capture: a .sqlite file, also compressed, a .nsys-rep, a parquetdir or an arrowdir.

    Raises ReportError (NotFoundError, NotAnExportError or DamagedExportError) if it cannot be read, or not within the
    free memory.
    """
    check_fits(Path(path))
    return normalise(read_capture(path))


def analyze(
    report: str | Path | Trace,
    *,
    window: Window | None = None,
    range_name: str | None = None,
    device: str | None = None,
    iteration: str | None = None,
    skip: int | None = None,
    top: int = 10,
    whole: bool = False,
    flops_per_iteration: int | None = None,
    costs: ProfilerCosts | Literal["auto"] | None = "auto",
    unprofiled_ns: int | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Measure a capture and find what costs GPU time.

    `window` (ns on the capture's clock) or `range_name` (an NVTX range) restricts every figure to a time window.
    `device` selects one GPU. `iteration` is a regular expression on range names. `skip` is the number of warm-up
    iterations. `whole` looks for findings in the whole window, not in the steady part. `top` is the number of longest
    gaps to list; all gaps are counted. `flops_per_iteration` are the floating-point operations of an iteration on one
    GPU, for its speed of light. `costs` is the time that the profiler adds to calls: "auto" reads the calibration
    beside the report or uses an estimate; None leaves the profiler's part unknown. `unprofiled_ns` is the time of an
    iteration that was measured without the profiler. `progress` is called before each step with its name and the
    fraction that is done.

    Raises TraceviewError (see errors.py) if the analysis fails.
    """
    report_step = progress or (lambda _step, _done: None)
    report_step("read", 0.0)
    trace = report if isinstance(report, Trace) else open_trace(report)
    if range_name is not None:
        window = window_of_range(trace, range_name)
    if window is not None:
        trace = trace.with_window(window)
    report_step("measure", 0.35)
    activities = active_devices(trace, device)
    analysis, given = _measure(trace, activities, iteration, skip, top, whole, flops_per_iteration)
    report_step("find", 0.65)
    if costs == "auto":
        costs = ESTIMATE if isinstance(report, Trace) else costs_beside(Path(report))
    # The time without the profiler needs no tables, and the model no findings: each runs beside the other.
    with ThreadPoolExecutor(1) as aside:
        tables = aside.submit(fill_tables, all_measures(), given, CaptureMeasure)
        analysis, part, work = _with_modelled_part(analysis, costs, unprofiled_ns)
        analysis = with_tables(analysis, tables.result())
        model = aside.submit(model_of_run, part or analysis, work)
        default = with_findings(analysis, activities)
        predicted = with_predictions(replace(part or analysis, findings=default.findings), model.result())
        default = with_answer(replace(default, findings=predicted.findings))
    if all(device.steady.window == device.window for device in default.devices):
        return default
    return replace(default, other_part=cache(partial(_other_part, analysis, default.findings)))


def _with_modelled_part(
    analysis: Analysis, costs: ProfilerCosts | None, unprofiled_ns: int | None
) -> tuple[Analysis, Analysis | None, LaunchedWork | None]:
    """Return the analysis with the time without the profiler, and what is modelled of it.

    That is a part of a large capture, with the same figures as in slices; or the complete capture, with its work.
    """
    iterations = analysis.iterations
    if (
        isinstance(iterations, Iterations)
        and sum(each.kernel_count for each in iterations.per_iteration) > MAX_MODELLED
    ):
        from traceview.slices.model import modelled_part, with_unprofiled_part

        part = modelled_part(analysis, lambda _: analysis.trace)
        if part is None or costs is None:
            return analysis, part, None
        return *with_unprofiled_part(analysis, part, costs, unprofiled_ns), None
    work = LaunchedWork.from_analysis(analysis)
    if costs is not None:
        analysis = with_unprofiled_time(analysis, costs, unprofiled_ns, work)
    return analysis, None, work


def _other_part(analysis: Analysis, findings: Sequence[Finding]) -> Analysis:
    """Return the analysis with the findings of the window instead of the steady part, or the reverse."""
    other = with_findings(replace(analysis, whole=not analysis.whole))
    return with_answer(replace(other, findings=with_known_predictions(other.findings, findings)))


def _measure(
    trace: Trace,
    activities: tuple[Activity, ...],
    iteration: str | None,
    skip: int | None,
    top: int,
    whole: bool,
    flops_per_iteration: int | None,
) -> tuple[Analysis, CaptureInput]:
    """Return the analysis without findings and tables, and the input of the tables."""
    threads = ThreadStates.from_trace(trace)
    projection = project_operations(trace)
    places = locate_operations(trace, projection)
    devices = measure_devices(trace, threads, activities, places)
    measured = MeasuredDevices(activities, {device.device: device.gaps for device in devices})
    iterations = measure_iterations(trace, threads, measured, pattern=iteration, skip=skip, projection=projection)
    parts = [work.clip(steady_window(iterations, work.window)) for work in activities]
    devices = tuple(
        with_steady_part(trace, threads, device, part, places) for device, part in zip(devices, parts, strict=True)
    )
    host_idle = HostIdle.build(trace, threads)
    devices = tuple(with_host_states(host_idle, device) for device in devices)
    host = measure_host(trace, activities)
    given = CaptureInput(trace, host, projection, devices, iterations, flops_per_iteration, whole, host_idle)
    analysis = Analysis(
        info=trace.info,
        trace=trace,
        devices=tuple(with_longest_gaps(trace, device, top) for device in devices),
        host=host,
        tables={},
        iterations=iterations,
        unmatched=count_unmatched(trace),
        notes=(),
        charts=partial(_measure_charts, trace, devices, iterations, places, host_idle, whole=whole),
        projected=partial(project_ranges, trace, projection),
        whole=whole,
        host_time=host_idle,
        counters=partial(measure_counters, trace),
    )
    return analysis, given


def _measure_charts(*given: Any, **options: Any) -> Charts:
    """Return `measure_charts`, whose modules are imported only for a page."""
    from traceview.measure.charts import measure_charts

    return measure_charts(*given, **options)
