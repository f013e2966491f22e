"""The page is one function of the finished analysis, within its budget."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pages import inputs_of, long_analysis
from traceview.model.analysis import Analysis
from traceview.model.charts import Charts
from traceview.pipeline import analyze_trace
from traceview.pipeline.page import page_inputs
from traceview.report.analysis.page import render


@pytest.mark.parametrize("detail", [1_280_000, 2_380_000])
def test_page_stays_within_its_budget(detail: int) -> None:
    document = render(inputs_of(long_analysis()), detail)
    assert 0.7 * detail < len(document) <= detail
    assert document == render(inputs_of(long_analysis()), detail)


def test_error_of_a_chart_is_raised(analysis_of: Callable[[str], Analysis], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_given: object, **_named: object) -> Charts:
        raise ZeroDivisionError("made")

    monkeypatch.setattr("traceview.pipeline.page.measure_charts", broken)
    with pytest.raises(ZeroDivisionError):
        page_inputs(analyze_trace(analysis_of("serial").trace))
