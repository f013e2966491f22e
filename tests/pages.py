"""What the pages of tests show of an analysis."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache

import polars as pl

from tests.captures import analyzed, sample
from traceview.model.analysis import Analysis, AnalysisOptions
from traceview.pipeline import analyze, analyze_trace
from traceview.pipeline.page import page_inputs
from traceview.report.analysis.page import render
from traceview.report.timeline.inputs import PageInputs

KEPT = 6  # analyses; a module of tests uses one or two
_inputs: dict[int, PageInputs] = {}  # by id of the analysis, which they hold, the last ones


def inputs_of(analysis: Analysis) -> PageInputs:
    """Return what a page shows of the analysis of a trace in memory, which is analyzed once more for all its pages."""
    if id(analysis) not in _inputs:
        if len(_inputs) == KEPT:
            del _inputs[next(iter(_inputs))]
        capture = analyze_trace(analysis.trace, AnalysisOptions(whole=analysis.whole))
        _inputs[id(analysis)] = replace(page_inputs(capture), analysis=analysis)
    return _inputs[id(analysis)]


@lru_cache(KEPT)
def page_of(name: str) -> str:
    """Return the page of a sample."""
    return render(inputs_of(analyzed(sample(f"{name}.sqlite"))))


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
