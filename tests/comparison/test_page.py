"""Tests of the comparison page in a browser: no errors, no requests, linked timelines, escaped names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from playwright.sync_api import Browser

from tests.captures import analyzed, sample
from tests.comparison.test_captures import compare_samples
from tests.report.browser import Opened, opened
from traceview import compare, open_trace
from traceview.model.analysis import NotMeasured
from traceview.report.analysis import to_json
from traceview.report.comparison import render

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened(browser, render(compare_samples("serial", "dual")), tmp_path_factory.mktemp("page")) as result:
        yield result


def visible_range(page: Opened) -> tuple[float, float, int]:
    first, last, step = page.evaluate("document.documentElement.dataset.drawn").split(" ")
    return float(first), float(last), int(step)


def canvas_urls(page: Opened) -> list[str]:
    result: list[str] = page.evaluate("[...document.querySelectorAll('.capture canvas')].map((one) => one.toDataURL())")
    return result


def test_page_shows_changes_without_requests(page: Opened) -> None:
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    text = page.page.inner_text("#verdicts")
    assert text.startswith("Faster. An iteration took 30.1 ms, now 13.6 ms, -54.6%")
    bars = page.page.locator("#bars .stack")
    before, after = (bars.nth(at).bounding_box() for at in range(2))
    assert (
        before is not None and after is not None and after["width"] / before["width"] == pytest.approx(0.458, abs=0.01)
    )
    assert page.page.locator(".capture h3").all_inner_texts() == ["serial.sqlite", "dual.sqlite"]
    rows = page.page.locator("#tables section").first.locator("tr")
    assert rows.nth(1).inner_text().split("\t")[:4] == ["exposed h2d", "16.6 ms", "1.20 ms", "-15.4 ms"]


def test_timelines_move_zoom_and_step_together(page: Opened) -> None:
    page.page.keyboard.press("0")
    before, (first, last, step) = canvas_urls(page), visible_range(page)
    assert first < 0 and last > 29_000_000 and step == 0
    for key in ("w", "d", "]"):
        page.page.keyboard.press(key)
        after = canvas_urls(page)
        assert all(old != new for old, new in zip(before, after, strict=True)), key
        before = after
    closer = visible_range(page)
    assert closer[1] - closer[0] < last - first and closer[2] == 1
    for key in ("[", "0"):
        page.page.keyboard.press(key)
    assert visible_range(page) == (first, last, step)


def test_dragging_moves_both_timelines(page: Opened) -> None:
    page.page.keyboard.press("0")
    first, last, _ = visible_range(page)
    box = page.page.locator(".capture canvas").first.bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + 700, box["y"] + 40)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 500, box["y"] + 40)
    page.page.mouse.up()
    moved = visible_range(page)
    assert moved[0] > first and moved[1] - moved[0] == pytest.approx(last - first)


def in_ns(text: str) -> float:
    value, unit = text.split()
    return float(value.replace(",", "")) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]


def test_ruler_selects_a_stretch_of_both_captures(page: Opened) -> None:
    page.page.keyboard.press("0")
    box = page.page.locator(".capture canvas").first.bounding_box()
    assert box is not None
    before = canvas_urls(page)
    page.page.mouse.move(box["x"] + 300, box["y"] + 8)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 700, box["y"] + 8)
    page.page.mouse.up()
    assert all(one != other for one, other in zip(before, canvas_urls(page), strict=True))
    first, last, step = visible_range(page)
    low, high = (first + (x - 190) / (box["width"] - 190) * (last - first) for x in (300, 700))
    captures = page.evaluate("JSON.parse(document.getElementById('data').textContent)")
    expected: dict[str, list[int]] = {}
    for side, capture in enumerate(captures):
        zero = capture["iterations"][max(0, capture["middle"] + step)][0]
        for _, start, length, look, name in capture["events"]:
            inside = min(start + length - zero, high) - max(start - zero, low)
            if capture["looks"][look] == "compute" and inside >= 0:
                expected.setdefault(capture["names"][name], [0, 0])[side] += round(inside)
    rows = page.page.locator("#area [data-table=gpu] tbody tr").all_inner_texts()
    shown = {row.split("\t")[0]: row.split("\t")[1:3] for row in rows if "more" not in row}
    kernels = [name for name in shown if name in expected]
    assert len(kernels) >= 8
    for name in kernels:  # a column has one unit
        assert [in_ns(text) for text in shown[name]] == pytest.approx(expected[name], rel=0.06, abs=60)
    assert page.page.locator("#area h3").inner_text().startswith("A: serial.sqlite, B: dual.sqlite: ")
    page.page.keyboard.press("Escape")
    assert page.page.locator("#area table").count() == 0 and canvas_urls(page) == before


def test_tooltip(page: Opened) -> None:
    page.page.keyboard.press("0")
    box = page.page.locator(".capture canvas").first.bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + 400, box["y"] + 30)
    assert page.page.inner_text("#tip").startswith("memcpy h2d · copy h2d · 15.")
    assert page.evaluate("document.getElementById('tip').hidden") is False


def test_kernel_of_the_table_is_marked_in_both_timelines(page: Opened) -> None:
    before = canvas_urls(page)
    button = page.page.locator("#tables .event").first
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert page.evaluate("document.querySelectorAll('.event[aria-pressed=true]').length") == 1
    assert all(old != new for old, new in zip(before, canvas_urls(page), strict=True))
    button.click()
    assert canvas_urls(page) == before


def test_headings_sort_the_tables(page: Opened) -> None:
    parts = page.page.locator("#tables section").first
    parts.get_by_role("button", name="after", exact=True).click()
    assert parts.locator("tbody th").first.inner_text() == "median iteration"


def test_names_are_escaped(browser: Browser, tmp_path: Path) -> None:
    trace = open_trace(sample("dual.sqlite"))
    names = trace.operations["name"].cast(pl.String) + HOSTILE
    hostile = replace(
        trace,
        info=replace(trace.info, file=f"{HOSTILE}.sqlite"),
        operations=trace.operations.with_columns(names.cast(pl.Enum(names.unique().sort())).alias("name")),
    )
    with opened(browser, render(compare(sample("serial.sqlite"), hostile)), tmp_path) as page:
        assert page.complaints == []
        assert page.page.locator("img").count() == 0
        assert "onerror" in page.page.inner_text("h1")


def test_captures_without_iterations(browser: Browser, tmp_path: Path) -> None:
    analysis = analyzed(sample("dual.sqlite"))
    bare = replace(analysis, iterations=NotMeasured("nothing repeats"))
    with opened(browser, render(compare(bare, analysis)), tmp_path, dark=True, width=800, height=600) as page:
        assert page.complaints == []
        assert "more are not drawn" in page.page.locator(".capture h3").first.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= 800")


def test_page_of_documents_has_the_prediction_and_no_timeline(browser: Browser, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.json" for name in ("serial", "pinned")]
    for path in paths:
        path.write_text(to_json(analyzed(sample(f"trainer/{path.stem}.sqlite"))), encoding="utf-8")
    with opened(browser, render(compare(*paths, changes=["pin"])), tmp_path) as page:
        assert page.complaints == [] and page.page.locator(".capture").count() == 0
        assert page.page.inner_text("#verdicts").startswith("Faster. An iteration took 26.2 ms, now 12.8 ms")
        assert "Predicted for pin: 13.1 ms without the profiler" in page.page.inner_text("#accounts")
        row = page.page.locator("#tables section", has_text="Prediction of whatif").locator("tr").nth(1)
        assert row.inner_text().split("\t") == ["pin", "25.8 ms", "13.1 ms", "12.3 ms", "13.4 ms", "12.7 ms", "inside"]
