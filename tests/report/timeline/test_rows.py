"""Rows of counters. The counters are made by hand: no sample has any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.pages import inputs_of
from tests.report.browser import Opened
from traceview.model.analysis import Analysis
from traceview.model.sizes import CounterSeries
from traceview.report.timeline.inputs import PageInputs


@pytest.fixture(scope="module")
def inputs(analysis_of: Callable[[str], Analysis]) -> PageInputs:
    analysis = analysis_of("dual")
    window = analysis.devices[0].window
    start = np.linspace(window.start, window.end, 20_000).astype(np.int64)
    value = np.where(np.arange(20_000) % 2, 8_000_000_000, np.arange(20_000) * 100_000)
    power = CounterSeries("power", "W", start[[0, 10_000, 15_000]], np.array([100.5, 300.0, 250.0]))
    memory = CounterSeries("memory", "bytes", start, value, device=0)
    rate = CounterSeries("rate", "%", start[[0, 10_000]], np.array([33.0, 12.0]))
    return replace(inputs_of(analysis), counters=(memory, power, rate))


def test_rows_of_counters(page: Opened) -> None:
    labels = page.page.locator("#labels .row-counter").all_inner_texts()
    assert [text.split("\n") for text in labels] == [
        ["power", "max 300 W, axis 500 W"],
        ["rate", "max 33%, axis 100%"],
        ["memory", "max 8.00 GB, axis 10.0 GB"],
    ]
    assert page.evaluate("traceview.board.shown.find((row) => row.label === 'rate').range.high") == 100
    row = page.evaluate("(({ y, h }) => ({ y, h }))(traceview.board.shown.find((row) => row.label === 'power'))")
    box = page.page.locator("#canvas").bounding_box()
    assert box is not None
    page.page.locator("#stage").scroll_into_view_if_needed()
    box = page.page.locator("#canvas").bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + row["y"] + 10)
    assert "100.5 W" in page.page.locator("#tip").inner_text()
    y = page.evaluate("traceview.board.shown.find((row) => row.label === 'memory').y")
    page.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + y + 10)
    text = page.page.locator("#tip").inner_text()
    assert "lowest, highest" in text and "8.00 GB" in text
