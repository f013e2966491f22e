"""View history, links with selection, area and open rows, and keys without a focus."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.report.browser import Opened
from tests.report.timeline.test_select import a_kernel, point_at, row_of
from traceview.model.analysis import Analysis


@pytest.fixture(scope="module")
def analysis(analysis_of: Callable[[str], Analysis]) -> Analysis:
    return analysis_of("dual")


def written(page: Opened, text: str) -> str:
    """Wait until the address holds the text; return the address."""
    page.page.wait_for_function("([text]) => location.hash.includes(text)", arg=[text])
    address = page.evaluate("location.hash")
    assert isinstance(address, str)
    return address


def test_views_go_back_and_forward(page: Opened) -> None:
    first = page.view()
    for start in (10_000_000, 50_000_000):
        page.page.wait_for_timeout(1100)  # a view that stays for a second is a step
        page.evaluate("([at]) => traceview.setView(at, at + 1e6)", [start])
        written(page, f"#t={start}..")
    page.page.keyboard.press("Backspace")
    page.page.wait_for_function("() => traceview.view.from === 10e6")
    page.page.go_back()
    page.page.wait_for_function("([at]) => Math.abs(traceview.view.from - at) < 2", arg=[first[0]])
    page.page.go_forward()
    page.page.wait_for_function("() => traceview.view.from === 10e6")


def test_double_click_zooms_to_an_event_or_to_all(page: Opened, analysis: Analysis) -> None:
    row = row_of(page, "stream")
    kernel = a_kernel(analysis, row)
    start, end = (kernel[edge] - analysis.trace.span.start for edge in ("start", "end"))
    x, y = point_at(page, row, start, end)
    page.evaluate("([from, to]) => traceview.setView(from, to)", [start - 9 * (end - start), end + 9 * (end - start)])
    page.settle()
    page.page.mouse.dblclick(x, y)
    page.settle()
    length = max(end - start, 100)
    assert page.view() == pytest.approx((start - length, end + length))
    page.page.mouse.dblclick(x, y - row["y"] - row["h"] / 2 + 2)
    page.settle()
    assert page.page.locator("#panel h3").count() in (0, 1)


def test_link_holds_selection_area_and_rows(page: Opened, analysis: Analysis) -> None:
    row = row_of(page, "stream")
    kernel = a_kernel(analysis, row)
    zero = analysis.trace.span.start
    page.page.mouse.click(*point_at(page, row, kernel["start"] - zero, kernel["end"] - zero))
    page.page.locator("#labels .fold").nth(1).click()
    address = written(page, "fold=")
    shown = page.page.locator("#labels .label").count()
    page.press("Escape")
    page.evaluate("location.hash = '#t=0..1000'")
    page.page.wait_for_function("() => traceview.view.to === 1000")
    page.page.wait_for_function("() => !traceview.board.groups[1].folded")
    page.evaluate("(hash) => { location.hash = hash; }", address)
    page.page.wait_for_function("() => traceview.selected.hit !== null")
    page.settle()
    assert page.evaluate("traceview.selected.hit.marks.start[traceview.selected.hit.i]") == kernel["start"] - zero
    assert page.page.locator("#labels .label").count() == shown
    page.page.locator("#labels .fold").nth(1).click()
    for hostile in (
        "&rows=-1.x.99999&area=5..9",
        "&fold=a.b&shut=1e9",
        "&row=%3Cimg%20src=x%3E&at=%E0%A4%A",
    ):
        page.evaluate("(hash) => { location.hash = hash; }", "#t=5000..9000" + hostile)
        page.settle()
    assert page.page.locator("img").count() == 0
    page.evaluate("location.hash = '#t=5000..9000'")
    page.settle()


def test_keys_act_at_the_pointer_without_a_focus(page: Opened) -> None:
    whole = page.view()
    page.evaluate("document.activeElement.blur()")
    page.page.locator("#stage").scroll_into_view_if_needed()
    box = page.page.locator("#canvas").bounding_box()
    assert box is not None
    row = row_of(page, "range")
    page.page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + row["y"] + 8)
    tip = page.page.locator("#tip").inner_text()
    assert page.evaluate("document.activeElement === document.body")
    pointed = whole[0] + 0.25 * (whole[1] - whole[0])
    first, last = page.press("w")
    assert first + 0.25 * (last - first) == pytest.approx(pointed, rel=1e-6)
    assert page.press("ArrowRight")[0] > first
    for _ in range(3):
        page.press("ArrowRight")
    assert page.page.locator("#tip").inner_text() != tip
    assert page.press("Home") == pytest.approx(whole)
    page.page.mouse.move(1, 1)
    scrolled = page.evaluate("scrollY")
    page.press("w")
    assert page.press("0") == pytest.approx(whole)
    page.page.keyboard.press("Home")
    page.page.wait_for_function("([at]) => scrollY < at || at === 0", arg=[scrolled])
