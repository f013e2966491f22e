"""What a page shows of an analyzed capture beyond its analysis. It is measured when a page is wanted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import polars as pl

from traceview.measure import measure_counters
from traceview.measure.charts import measure_charts
from traceview.measure.exposure import exposed_frames
from traceview.measure.host import THREAD_STACKS
from traceview.measure.nvtx import project_ranges
from traceview.pipeline.model import AnalyzedCapture
from traceview.report.timeline.inputs import PageInputs


def page_inputs(capture: AnalyzedCapture) -> PageInputs:
    """Return what a page shows."""
    analysis, work = capture.analysis, capture.work
    trace, host_idle = analysis.trace, work.host_idle
    # NumPy and polars release the interpreter lock.
    with ThreadPoolExecutor(1) as aside:
        charts = aside.submit(measure_charts, analysis, work.places, host_idle)
        other = aside.submit(capture.other_window)
        no_stacks = pl.DataFrame(schema=dict.fromkeys(THREAD_STACKS, pl.Int64))
        return PageInputs(
            analysis=analysis,
            projected=project_ranges(trace, work.projection),
            counters=measure_counters(trace),
            stacks=no_stacks if host_idle is None else host_idle.thread_stacks(),
            combinations=None if capture.changes is None else capture.changes.combinations(),
            exposed=exposed_frames(trace, {device.device: device.window for device in analysis.devices}),
            charts=charts.result(),
            other=other.result(),
        )
