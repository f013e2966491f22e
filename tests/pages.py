"""What the pages of tests show of an analysis."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import polars as pl

from tests.captures import analyzed, sample
from traceview.model.analysis import Analysis, AnalysisOptions
from traceview.pipeline import analyze, analyze_trace
from traceview.pipeline.model import AnalyzedCapture
from traceview.pipeline.page import page_inputs
from traceview.report.timeline.inputs import PageInputs

KEPT = 6  # analyses; a module of tests uses one or two
_captures: dict[int, tuple[Analysis, AnalyzedCapture]] = {}  # by id of the analysis, the last ones


def inputs_of(analysis: Analysis) -> PageInputs:
    """Return what a page shows of the analysis of a trace in memory, which is analyzed once more for all its pages."""
    if id(analysis) not in _captures:
        if len(_captures) == KEPT:
            del _captures[next(iter(_captures))]
        _captures[id(analysis)] = analysis, analyze_trace(analysis.trace, AnalysisOptions(whole=analysis.whole))
    return replace(page_inputs(_captures[id(analysis)][1]), analysis=analysis)


@cache
def long_analysis() -> Analysis:
    """Return the analysis of a capture that is too large for a page of 3 MB: a sample, repeated end to end."""
    trace, times = analyzed(sample("dual.sqlite")).trace, 6
    length = int(trace.api["end"].max() or 0) + 1_000_000  # type: ignore[arg-type, operator]
    calls = len(trace.api)
    shifted = [
        (
            trace.operations.with_columns(pl.col("start", "end") + length * at, pl.col("launch") + calls * at),
            trace.api.with_columns(pl.col("start", "end") + length * at),
            trace.ranges.with_columns(pl.col("start", "end") + length * at),
        )
        for at in range(times)
    ]
    operations, api, ranges = (pl.concat(frames) for frames in zip(*shifted, strict=True))
    return analyze(replace(trace, operations=operations, api=api, ranges=ranges))
