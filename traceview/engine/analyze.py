"""The steps of an analysis: measure, model, find, price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from traceview.engine.findings import find
from traceview.engine.measure import TraceWork, measure_capture
from traceview.engine.model import Modelled, model_capture
from traceview.measure.shared_work import started_beside
from traceview.model.analysis import Analysis, AnalysisOptions
from traceview.model.trace import Trace
from traceview.replay.gains import with_gains
from traceview.replay.prediction import Changes
from traceview.rules.answer import with_answer


class AnalyzedCapture(NamedTuple):
    """An analysis, and what a page needs of the capture (engine/page.py).

    `changes` are those of its model. `other_part` returns the analysis of the window instead of the steady part, or the
    reverse; None if they are the same.
    """

    analysis: Analysis
    changes: Changes | None
    work: TraceWork
    other_part: Callable[[], Analysis | None]


def analyze_trace(trace: Trace, options: AnalysisOptions | None = None) -> AnalyzedCapture:
    """Analyze a trace inside its window. Raises TraceviewError if the options do not fit it."""
    options = options or AnalysisOptions()
    work = TraceWork.from_trace(trace, options.device)
    measured = measure_capture(work, options)
    modelled = started_beside(partial(model_capture, measured))  # while rules look at the capture
    analysis = _with_findings(work, measured, modelled)

    def other_part() -> Analysis | None:
        other = replace(measured, whole=not measured.whole)
        same = all(use.window == use.steady.window for use in measured.devices)
        return None if same else _with_findings(work, other, modelled)

    return AnalyzedCapture(analysis, modelled().changes, work, other_part)


def _with_findings(work: TraceWork, measured: Analysis, modelled: Callable[[], Modelled]) -> Analysis:
    """Return an analysis with its findings by gain, its notes and its answer."""

    def priced() -> Analysis:
        return replace(modelled().analysis, whole=measured.whole)

    findings, notes = find(work, measured, priced)
    analysis = priced()
    findings = with_gains(analysis, findings, modelled().changes)
    return with_answer(replace(analysis, findings=findings, notes=(*analysis.notes, *notes)))
