"""Analyses up to their measures: findings, predictions and the answer take most of the time of a small trace."""

from __future__ import annotations

from traceview.measure.charts import measure_charts
from traceview.model.analysis import Analysis, AnalysisOptions
from traceview.model.charts import Charts
from traceview.model.trace import Trace
from traceview.pipeline.measure import TraceWork, measure_capture


def measured(trace: Trace) -> Analysis:
    """Return the devices, host, tables and iterations of a trace."""
    return measure_capture(TraceWork.from_trace(trace), AnalysisOptions())


def charts_of(analysis: Analysis) -> Charts:
    """Return the charts of a page."""
    work = TraceWork.from_trace(analysis.trace)
    return measure_charts(analysis, work.places, work.host_idle)
