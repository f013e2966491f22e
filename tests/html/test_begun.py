"""A page that was begun before its findings were known is the one that is made at once; what goes wrong is said."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from tests.captures import sample
from traceview.analyze import analyze
from traceview.model import Analysis
from traceview.model_charts import Charts
from traceview.report.html import DETAIL, Begun, render


@pytest.mark.parametrize("detail", [DETAIL, 2_300_000])
def test_begun_early_it_is_the_same_page(detail: int) -> None:
    early: list[Begun] = []
    given: list[Analysis] = []

    def measured(analysis: Analysis) -> None:
        given.append(analysis)
        early.append(Begun.of(analysis, detail))

    analysis = analyze(sample("dual.sqlite"), measured=measured)
    assert analysis.findings != () and given == [replace(analysis, findings=())]
    with closing(early[0]) as page:
        assert page.finished(analysis) == page.finished(analysis) == render(analysis, detail)


def test_what_goes_wrong_aside_is_raised_where_the_page_is_asked_for() -> None:
    def broken() -> Charts:
        raise ZeroDivisionError("made")

    analysis = replace(analyze(sample("serial.sqlite")), charts=broken)
    with closing(Begun.of(analysis)) as page, pytest.raises(ZeroDivisionError):
        page.finished(analysis)


def test_a_closed_page_begins_nothing_further() -> None:
    analysis = analyze(sample("dual.sqlite"))
    page = Begun.of(analysis)
    page.close()
    page.close()
    with pytest.raises(RuntimeError):
        page.pool.submit(int)
