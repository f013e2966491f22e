"""Colours of kernels, the legend, and how a kernel was launched."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from tests.report.browser import Opened
from tests.report.timeline.test_select import a_kernel, point_at, row_of
from traceview.model.analysis import Analysis


@pytest.fixture(scope="module")
def analysis(analysis_of: Callable[[str], Analysis]) -> Analysis:
    return analysis_of("dual")


def pressed(page: Opened) -> list[str]:
    return page.page.locator("#legend-items button[aria-pressed=true]").all_inner_texts()


def show_all(page: Opened) -> None:
    """Click the button below the items, once the timeline has the height that it has at this place of the page."""
    button = page.page.locator("#legend-all")
    button.scroll_into_view_if_needed()
    page.settle()
    button.click()


def test_legend_hides_and_isolates(page: Opened) -> None:
    every = pressed(page)
    first = page.page.locator("#legend-items button").first
    marks = page.marks()
    first.click()
    page.settle()
    assert pressed(page) == every[1:] and page.marks() < marks
    first.click()
    page.settle()
    assert pressed(page) == every and page.marks() == marks
    first.dblclick()
    page.settle()
    assert pressed(page) == every[:1]
    show_all(page)
    assert pressed(page) == every
    first.click(modifiers=["Alt"])
    assert pressed(page) == every[:1]
    first.click(modifiers=["Alt"])
    assert pressed(page) == every and not page.page.locator("#legend-all").is_visible()


def test_kernels_have_the_colour_of_their_name_or_family(page: Opened, analysis: Analysis) -> None:
    by_class = pressed(page)
    work = analysis.trace.operations
    kernels = work.filter(work["class"] == "compute")
    total = kernels.group_by("name").agg(ns=(pl.col("end") - pl.col("start")).sum())
    page.page.select_option("#colour-by", "name")
    page.page.wait_for_selector("[data-tint]:has-text('other names')")
    costliest = total.sort("ns", descending=True)["name"][0]
    assert pressed(page)[0][:10] == costliest[:10] and "compute" not in pressed(page)
    page.page.select_option("#colour-by", "family")
    page.page.wait_for_selector("[data-tint]:has-text('other families')")
    assert pressed(page)[0] == analysis.devices[0].tables["kernel_families"].rows[0].family
    page.page.select_option("#colour-by", "class")
    page.page.wait_for_selector("[data-tint]:has-text('compute')")
    assert pressed(page) == by_class


def test_panel_shows_the_launch(page: Opened, analysis: Analysis) -> None:
    row = row_of(page, "stream")
    kernel = a_kernel(analysis, row)
    zero = analysis.trace.span.start
    page.page.mouse.click(*point_at(page, row, kernel["start"] - zero, kernel["end"] - zero))
    page.settle()
    text = page.page.locator("#panel").inner_text()
    shape = analysis.trace.shapes.row(kernel["shape"], named=True)
    same = analysis.trace.operations.filter(analysis.trace.operations["shape"] == kernel["shape"])
    median = same.select(length=same["end"] - same["start"])["length"].median()
    assert isinstance(median, float)
    facts = [f"one of {len(same):,}", f"{(kernel['end'] - kernel['start']) / int(median):.2f} times"]
    for fact in (*facts, str(shape["registers"]), str(shape["grid_x"]), str(shape["block_x"]), shape["demangled"][:60]):
        assert fact in text


def test_keyboard_reaches_rows_areas_and_the_legend(page: Opened) -> None:
    page.evaluate("document.activeElement.blur()")
    page.press(".")
    kinds = [page.evaluate("traceview.selected.hit.item.kind")]
    page.press(">")
    kinds.append(page.evaluate("traceview.selected.hit.item.kind"))
    page.press("<")
    assert kinds[0] == "stream" == page.evaluate("traceview.selected.hit.item.kind") and kinds[1] in ("stream", "call")
    row = page.evaluate("traceview.selected.hit.item.id")
    page.press("M")
    page.page.wait_for_selector("#measured, [data-table]")
    assert page.evaluate("traceview.area.result.rows") == [row]
    page.press("p")
    page.page.locator("#legend-items button").first.focus()
    page.page.keyboard.press("Shift+Enter")
    assert len(pressed(page)) == 1
    page.page.locator("#legend-all").focus()
    page.page.keyboard.press("Enter")
    assert len(pressed(page)) > 1
