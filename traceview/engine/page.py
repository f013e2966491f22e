"""What a page shows of an analyzed capture beyond its analysis. It is measured when a page is wanted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter

import polars as pl

from traceview.engine.measure import pair_streams
from traceview.engine.merge import join_pieces
from traceview.engine.run import AnalyzedCapture
from traceview.intervals import distinct_rows
from traceview.measure import measure_counters
from traceview.measure.charts import ChartTotals, busiest_streams, chart_totals, gap_totals, merged_charts
from traceview.measure.host import THREAD_STACKS
from traceview.measure.nvtx import Projection, project_ranges
from traceview.measure.places import locate_operations
from traceview.model.analysis import Analysis
from traceview.model.charts import Charts
from traceview.model.timeline.events import PageInputs, TimelineEvents
from traceview.model.timeline.parts import merged_projection, stored_events


def page_inputs(capture: AnalyzedCapture) -> PageInputs:
    """Return what a page shows. A capture in parts must have been analyzed with a folder for its events."""
    analysis, plan, host_idle = capture.analysis, capture.plan, capture.host_idle
    trace, marks = analysis.trace, [page.marks for page in capture.pages]
    assert marks or plan.keeps_rows, "the events of a capture in parts are in a folder"
    # NumPy and polars release the interpreter lock. Only one thread uses the parts, because workers keep one function.
    projection = None if marks else next(iter(capture.over_parts(attrgetter("projection"))))
    with ThreadPoolExecutor(1) as aside:
        charts, other = aside.submit(_charts, capture, projection), aside.submit(capture.other_part)
        if marks and plan.folder is not None:
            projected, events = merged_projection(marks), stored_events(marks, plan.extents.events, plan.folder)
        else:
            projected = project_ranges(trace, projection)
            events = TimelineEvents.from_trace(trace, analysis.devices, analysis.host)
        no_stacks = pl.DataFrame(schema=dict.fromkeys(THREAD_STACKS, pl.Int64))
        return PageInputs(
            analysis=analysis,
            other=other.result(),
            charts=charts.result(),
            projected=projected,
            counters=measure_counters(trace),
            stacks=no_stacks if host_idle is None else host_idle.thread_stacks(),
            events=events,
            combinations=None if capture.changes is None else capture.changes.combinations(),
        )


def _charts(capture: AnalyzedCapture, projection: Projection | None) -> Charts:
    """Return the charts; `projection` is that of a capture in memory."""
    analysis = capture.analysis
    idle = analysis.tables["lines"].totals
    if projection is None:
        totals = _totals_of_parts(capture)
        shapes, _ = distinct_rows([page.marks.shapes for page in capture.pages], ordered=True)
    else:
        totals, shapes = _totals_of_trace(analysis, projection), analysis.trace.shapes
    return merged_charts(
        analysis.devices,
        analysis.iterations,
        totals,
        shapes,
        capture.host_idle,
        pl.DataFrame() if idle is None else idle.frame,
        whole=analysis.whole,
    )


def _totals_of_trace(analysis: Analysis, projection: Projection) -> dict[int, list[ChartTotals]]:
    """Return what the charts of each device follow from, of a capture in memory."""
    trace = analysis.trace
    places = locate_operations(trace, projection)
    return {
        device.device: [
            chart_totals(
                trace, device, device.gaps.frame, places, whole=analysis.whole, streams=busiest_streams(device)
            )
        ]
        for device in analysis.devices
    }


def _totals_of_parts(capture: AnalyzedCapture) -> dict[int, list[ChartTotals]]:
    """Return what the charts of each device follow from. Devices with many streams need one more pass."""
    analysis, plan = capture.analysis, capture.plan
    totals: dict[int, list[ChartTotals]] = {device.device: [] for device in analysis.devices}
    for row, own in totals.items():
        parts = [page for page in capture.pages if row in page.charts]
        pieces = join_pieces(pl.concat([page.edge_gaps[row] for page in parts]))
        own.extend(page.charts[row] for page in parts)
        own[0] = own[0]._replace(gaps=pl.concat([own[0].gaps, gap_totals(pieces)]))
    busiest = {
        device.device: busiest_streams(device)
        for device in analysis.devices
        if not plan.paired_streams(analysis.trace, device.device)
    }
    if busiest:
        run = partial(pair_streams, extents=plan.extents.devices, streams=busiest)
        pairs = pl.concat(capture.over_parts(run))
        for row in busiest:
            totals[row][0] = totals[row][0]._replace(streams=pairs)
    return totals
