"""What the pages of tests show of an analysis."""

from __future__ import annotations

from traceview.engine.page import page_inputs
from traceview.engine.run import AnalysisOptions
from traceview.model.analysis import Analysis
from traceview.model.timeline.events import PageInputs
from traceview.pipeline import analyze_trace


def inputs_of(analysis: Analysis) -> PageInputs:
    """Return what a page shows of the analysis of a trace in memory, which is analyzed again."""
    capture = analyze_trace(analysis.trace, AnalysisOptions(whole=analysis.whole))
    return page_inputs(capture)._replace(analysis=analysis)
