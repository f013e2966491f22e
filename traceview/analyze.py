"""The whole path: a report in, an Analysis out. The file to read first."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from traceview.measure import MEASURES
from traceview.measure.activity import Activity
from traceview.measure.base import CaptureInput, CaptureMeasure
from traceview.measure.breakdown import Measured
from traceview.measure.devices import idle_times, measure_devices
from traceview.measure.host import host
from traceview.measure.iterations import measure_iterations
from traceview.measure.longest import with_longest
from traceview.measure.projection import Projection, project
from traceview.measure.sync import measure_host
from traceview.measure.unmatched import count_unmatched
from traceview.model import Analysis, DeviceUse, Iterations, NotMeasured, Trace, Window
from traceview.rules import find
from traceview.trace import open_trace
from traceview.window import active_devices, window_of_range

if TYPE_CHECKING:
    import polars as pl

    from traceview.model_charts import Charts

Progress = Callable[[str, float], None]


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
    measured: Callable[[Analysis], None] | None = None,
) -> Analysis:
    """Measure a capture and price what it lost.

    `window` (ns on the capture's clock) or `range_name` (an NVTX range) narrows every figure;
    `device` keeps one GPU; `iteration` is a regular expression on range names; `skip` sets that many
    first iterations aside; `top` bounds the listed longest gaps, not what is counted. `progress` is
    told each step and the fraction done before it; `measured` is given everything but the findings
    before they are searched for.

    Raises TraceviewError (see errors.py) when nothing can be said.
    """
    step = progress or (lambda _step, _done: None)
    step("read", 0.0)
    trace = report if isinstance(report, Trace) else open_trace(report)
    if range_name is not None:
        window = window_of_range(trace, range_name)
    if window is not None:
        trace = trace.narrowed(window)
    step("measure devices", 0.5)
    activities = active_devices(trace, device)
    analysis = _measure(trace, activities, iteration, skip, top, step)
    analysis = replace(analysis, charts=partial(_charts, trace, analysis.devices, analysis.iterations))
    if measured is not None:
        measured(analysis)
    step("find", 0.9)
    return replace(analysis, findings=find(analysis, activities))


def _charts(trace: Trace, devices: tuple[DeviceUse, ...], iterations: Iterations | NotMeasured) -> Charts:
    from traceview.measure.charts import measure_charts

    return measure_charts(trace, devices, iterations)


def _projected(trace: Trace, projection: Projection) -> pl.DataFrame:
    from traceview.measure.projected import measure_projected

    return measure_projected(trace, projection)


def _measure(
    trace: Trace,
    activities: tuple[Activity, ...],
    iteration: str | None,
    skip: int | None,
    top: int,
    step: Progress,
) -> Analysis:
    """Return everything but the findings; what only the measures needed is let go of here."""
    # Ranges, calls and devices share nothing but the trace, and NumPy and polars let go of the interpreter.
    with ThreadPoolExecutor(1) as aside:
        projecting = aside.submit(project, trace)
        threads = host(trace)
        idle = idle_times(trace, threads, activities)
        measured = Measured(activities, {of.device: gaps for of, (_, gaps) in zip(activities, idle, strict=True)})
        iterations_later = aside.submit(measure_iterations, trace, threads, measured, pattern=iteration, skip=skip)
        calls_later = aside.submit(measure_host, trace, activities)
        devices = measure_devices(trace, threads, activities, idle)
        step("measure ranges and iterations", 0.7)
        iterations, calls = iterations_later.result(), calls_later.result()
    given = CaptureInput(trace, calls, projecting.result())
    tables = {one.table.name: one.measured(given) for one in MEASURES if isinstance(one, CaptureMeasure)}
    return Analysis(
        info=trace.info,
        trace=trace,
        devices=tuple(with_longest(trace, of, top) for of in devices),
        host=calls,
        tables=tables,
        iterations=iterations,
        unmatched=count_unmatched(trace),
        notes=(
            *trace.info.problems,
            *(table.not_measured for table in tables.values() if table.not_measured is not None),
            *([iterations.reason] if isinstance(iterations, NotMeasured) else []),
        ),
        projected=partial(_projected, trace, projecting.result()),
    )
