"""The whole path: a report in, an Analysis out. The file to read first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from traceview.measure import MEASURES
from traceview.measure.activity import Activity
from traceview.measure.base import CaptureInput, CaptureMeasure
from traceview.measure.charts.all import measure_charts
from traceview.measure.devices import idle_times, measure_devices
from traceview.measure.gaps.longest import with_longest
from traceview.measure.host import host
from traceview.measure.iterations.breakdown import Measured
from traceview.measure.iterations.spread import measure_iterations
from traceview.measure.nvtx.projected import measure_projected
from traceview.measure.nvtx.projection import project
from traceview.measure.sync import measure_host
from traceview.measure.unmatched import count_unmatched
from traceview.measure.window import active_devices, window_of_range
from traceview.model.analysis import Analysis, NotMeasured
from traceview.model.trace import Trace, Window
from traceview.normalise import normalise
from traceview.read import read_capture
from traceview.rules import find

Progress = Callable[[str, float], None]


def open_trace(path: str | Path) -> Trace:
    """Read and normalise one capture: an .sqlite, also packed, a .nsys-rep, or a parquetdir or arrowdir.

    Raises ReportError (NotFoundError, NotAnExportError, DamagedExportError) when it cannot be read.
    """
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
    progress: Progress | None = None,
) -> Analysis:
    """Measure a capture and price what it lost.

    `window` (ns on the capture's clock) or `range_name` (an NVTX range) narrows every figure;
    `device` keeps one GPU; `iteration` is a regular expression on range names; `skip` sets that many
    first iterations aside; `top` bounds the listed longest gaps, not what is counted. `progress` is
    called with the name of each step and the fraction that is done before it.

    Raises TraceviewError (see errors.py) when there is no result.
    """
    step = progress or (lambda _step, _done: None)
    step("read", 0.0)
    trace = report if isinstance(report, Trace) else open_trace(report)
    if range_name is not None:
        window = window_of_range(trace, range_name)
    if window is not None:
        trace = trace.narrowed(window)
    step("measure", 0.5)
    activities = active_devices(trace, device)
    analysis = _measure(trace, activities, iteration, skip, top)
    step("find", 0.9)
    return replace(analysis, findings=find(analysis, activities))


def _measure(
    trace: Trace, activities: tuple[Activity, ...], iteration: str | None, skip: int | None, top: int
) -> Analysis:
    """Return the analysis without findings; what only the measures need is freed at the end."""
    threads = host(trace)
    idle = idle_times(trace, threads, activities)
    devices = measure_devices(trace, threads, activities, idle)
    gaps = {work.device: device_gaps for work, (_, device_gaps) in zip(activities, idle, strict=True)}
    iterations = measure_iterations(trace, threads, Measured(activities, gaps), pattern=iteration, skip=skip)
    projection = project(trace)
    calls = measure_host(trace, activities)
    given = CaptureInput(trace, calls, projection)
    tables = {one.table.name: one.measured(given) for one in MEASURES if isinstance(one, CaptureMeasure)}
    return Analysis(
        info=trace.info,
        trace=trace,
        devices=tuple(with_longest(trace, device, top) for device in devices),
        host=calls,
        tables=tables,
        iterations=iterations,
        unmatched=count_unmatched(trace),
        notes=(
            *trace.info.problems,
            *(table.not_measured for table in tables.values() if table.not_measured is not None),
            *([iterations.reason] if isinstance(iterations, NotMeasured) else []),
        ),
        charts=partial(measure_charts, trace, devices, iterations),
        projected=partial(measure_projected, trace, projection),
    )
