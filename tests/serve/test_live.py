"""The served page in a browser: bins become single events in the visible range."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page

from traceview.model.analysis import Analysis
from traceview.serve.page import Server

EXACT = """() => traceview.board.shown.filter((row) => row.kind === "stream" && row.lanes.length)
  .flatMap(({ lanes: [lane] }) => traceview.visibleSources(lane, traceview.view.from, traceview.view.to))
  .every(({ bin }) => bin === 0)"""


@pytest.fixture
def page(browser: Browser, server: Server) -> Page:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.goto(server.address)
    page.wait_for_selector("html[data-ready]", state="attached")
    return page


def test_visible_range_shows_every_event(page: Page, server: Server, analysis: Analysis) -> None:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.evaluate("traceview.setView(1000e6, 1001e6)")
    page.wait_for_function(EXACT)
    assert requests and all(url.startswith(server.address) for url in requests)
    held = page.evaluate(
        """() => {
          const lane = traceview.board.shown.find((row) => row.kind === "stream").lanes[0];
          const { marks } = traceview.visibleSources(lane, traceview.view.from, traceview.view.to)[0];
          return [...Array(marks.n).keys()].map((i) => marks.start[i]).filter((at) => at >= 1000e6 && at < 1001e6);
        }"""
    )
    zero = analysis.trace.span.start
    frame = analysis.trace.operations
    row = page.evaluate("traceview.board.shown.find((row) => row.kind === 'stream').id")
    frame = frame.filter(
        (frame["stream"] == int(row[2:])) & frame["start"].is_between(zero + 10**9, zero + 1001 * 10**6 - 1)
    )
    assert held == (frame["start"] - zero).to_list() and held
    assert complaints == []


def test_measure_search_and_launch(page: Page) -> None:
    page.evaluate("traceview.setView(1000e6, 1001e6)")
    page.wait_for_function(EXACT)
    page.mouse.move(1, 1)
    page.keyboard.press("m")
    page.wait_for_selector("#measured")
    assert page.locator("#measured").get_attribute("data-exact") == "true"
    page.locator("#search").fill("memset")
    page.locator("#search").press("Enter")
    page.wait_for_function("() => document.getElementById('found').textContent.endsWith('found')")
    page.wait_for_function(EXACT)
    page.keyboard.press("Escape")  # leaves the search field
    page.keyboard.press("Escape")  # leaves the search results
    page.keyboard.press(".")
    page.wait_for_function("() => document.getElementById('panel').textContent.includes('launched by')")
    page.wait_for_function("() => traceview.selected.partners.length > 0")
