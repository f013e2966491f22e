"""The page is one function of the finished analysis, within its budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.report.analysis.test_sections import repeated
from traceview.model.analysis import Analysis
from traceview.model.charts import Charts
from traceview.pipeline import analyze
from traceview.report.analysis.page import render


@pytest.mark.parametrize("detail", [2_900_000, 3_000_000, 4_000_000])
def test_page_stays_within_its_budget(analysis_of: Callable[[str], Analysis], detail: int) -> None:
    analysis = analyze(repeated(analysis_of("dual").trace, 6))
    document = render(analysis, detail)
    assert 0.7 * detail < len(document) <= detail
    assert document == render(analysis, detail)


def test_error_of_a_chart_is_raised(analysis_of: Callable[[str], Analysis]) -> None:
    def broken() -> Charts:
        raise ZeroDivisionError("made")

    with pytest.raises(ZeroDivisionError):
        render(replace(analysis_of("serial"), charts=broken))
