"""What a page shows of an analyzed capture beyond its analysis. It is measured when a page is wanted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import polars as pl

from traceview.engine.analyze import AnalyzedCapture
from traceview.measure import measure_counters
from traceview.measure.charts import busiest_streams, chart_totals, merged_charts
from traceview.measure.host import THREAD_STACKS
from traceview.measure.nvtx import project_ranges
from traceview.model.charts import Charts
from traceview.model.timeline.events import PageInputs, TimelineEvents


def page_inputs(capture: AnalyzedCapture) -> PageInputs:
    """Return what a page shows."""
    analysis, host_idle = capture.analysis, capture.work.host_idle
    trace = analysis.trace
    # NumPy and polars release the interpreter lock.
    with ThreadPoolExecutor(1) as aside:
        charts, other = aside.submit(_charts, capture), aside.submit(capture.other_part)
        no_stacks = pl.DataFrame(schema=dict.fromkeys(THREAD_STACKS, pl.Int64))
        return PageInputs(
            analysis=analysis,
            projected=project_ranges(trace, capture.work.projection),
            counters=measure_counters(trace),
            stacks=no_stacks if host_idle is None else host_idle.thread_stacks(),
            events=TimelineEvents.from_trace(trace, analysis.devices, analysis.host),
            combinations=None if capture.changes is None else capture.changes.combinations(),
            charts=charts.result(),
            other=other.result(),
        )


def _charts(capture: AnalyzedCapture) -> Charts:
    analysis, work = capture.analysis, capture.work
    trace, whole = analysis.trace, analysis.whole
    totals = {
        device.device: [
            chart_totals(trace, device, device.gaps.frame, work.places, whole=whole, streams=busiest_streams(device))
        ]
        for device in analysis.devices
    }
    idle = analysis.tables["lines"].totals
    return merged_charts(
        analysis.devices,
        analysis.iterations,
        totals,
        trace.shapes,
        work.host_idle,
        pl.DataFrame() if idle is None else idle.frame,
        whole=whole,
    )
