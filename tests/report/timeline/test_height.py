"""The height of the timeline, and the rows that fold away because nothing of them is in view."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.report.browser import Opened
from traceview.model.analysis import Analysis


@pytest.fixture(scope="module")
def analysis(analysis_of: Callable[[str], Analysis]) -> Analysis:
    return analysis_of("ddp2")


def height(page: Opened) -> float:
    return float(page.evaluate("document.getElementById('frame').offsetHeight"))


def test_timeline_takes_what_the_first_screen_leaves_or_all_of_it(page: Opened) -> None:
    page.evaluate("document.getElementById('legend').open = false")  # as the page opens
    first = height(page)
    assert 450 <= first < 0.6 * 900
    page.press("z")
    assert height(page) > 0.85 * 900
    assert page.page.locator("[data-move=maximise]").get_attribute("aria-pressed") == "true"
    page.page.locator("[data-move=maximise]").click()
    page.settle()
    assert height(page) == first


def test_timeline_stays_in_sight_and_moves_nothing(page: Opened) -> None:
    where = "document.getElementById('tables').getBoundingClientRect().top + scrollY"
    before, first = page.evaluate(where), height(page)
    page.evaluate("scrollTo(0, 2000)")
    page.settle()
    assert page.evaluate("document.getElementById('timeline').getBoundingClientRect().top") == 0
    assert height(page) < 0.4 * 900
    page.press(".")
    assert page.page.locator("#panel h3").is_visible() and page.evaluate(where) == pytest.approx(before, abs=1)
    page.press("Escape")
    assert page.page.locator("#panel").is_hidden()
    page.reset()
    assert height(page) == first and page.evaluate(where) == pytest.approx(before, abs=1)


def test_wheel_scrolls_the_page_before_the_rows(page: Opened) -> None:
    inner = "document.getElementById('scroll')"
    assert page.evaluate(f"{inner}.scrollHeight > {inner}.clientHeight")
    box = page.page.locator("#stage").bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + 200, box["y"] + 100)
    page.page.mouse.wheel(0, 100)
    page.page.wait_for_function("() => scrollY === 100")
    assert page.evaluate(f"{inner}.scrollTop") == 0


def test_rows_without_events_in_view_fold_away(page: Opened) -> None:
    def quiet() -> set[str]:
        return set(page.evaluate("[...traceview.board.quiet].map(({ id }) => id)"))

    ids = "traceview.board.shown.map(({ id }) => id).filter(Boolean)"
    every = set(page.evaluate("traceview.board.numbered.map(({ id }) => id)"))
    page.evaluate("traceview.setView(0, 1000)")
    page.page.wait_for_function("() => traceview.board.quiet.size > 20")
    shown = set(page.evaluate(ids))
    assert shown < every and not {row for row in quiet() if row.startswith("s:")} & shown
    more = page.page.locator(".row-more button", has_text="empty here").first
    more.click()
    page.settle()
    assert {row for row in quiet() if row.startswith("s:")} & set(page.evaluate(ids))
    page.page.locator(".row-more button", has_text="fold").first.click()
    page.reset()
    page.page.wait_for_function("() => traceview.board.quiet.size < 20")
    assert len(page.evaluate(ids)) > len(shown)
