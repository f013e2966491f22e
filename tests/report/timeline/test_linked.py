"""Linked selections: a row of a table, a bar, a match or a place selects, and all of its kind are highlighted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.report.browser import Opened
from traceview.model.analysis import Analysis

STRIP = """() => { const strip = document.getElementById("overview"), { width, height } = strip;
  const copy = Object.assign(document.createElement("canvas"), { width, height });
  copy.getContext("2d", { willReadFrequently: true }).drawImage(strip, 0, 0);
  const [r, g, b] = getComputedStyle(document.documentElement).getPropertyValue("--mark").trim().match(/\\w\\w/g)
    .map((part) => parseInt(part, 16));
  const pixels = copy.getContext("2d").getImageData(0, 2, width, 1).data, found = [];
  for (let i = 0; i < pixels.length; i += 4)
    if ([r, g, b].every((part, at) => Math.abs(pixels[i + at] - part) < 9)) found.push(i);
  return found.length; }"""


@pytest.fixture(scope="module")
def analysis(analysis_of: Callable[[str], Analysis]) -> Analysis:
    return analysis_of("dual")


def found(page: Opened) -> str:
    return page.page.locator("#found").inner_text()


def current(page: Opened) -> int:
    return int(page.evaluate("traceview.linked.group.places[traceview.linked.at].start"))


def test_row_of_the_kernel_table_links_all_its_launches(page: Opened, analysis: Analysis) -> None:
    use = analysis.devices[0].steady.tables["kernels"].rows[0]
    page.page.locator("#kernels tbody tr").first.locator("td").nth(2).click()
    page.page.wait_for_function("() => traceview.linked.group")
    page.settle()
    count = use.count
    assert page.evaluate("traceview.linked.group.places.length") == count
    assert found(page).endswith(f" of {count:,} launches")
    assert use.name.split("<")[0] in page.page.locator("#panel h3").inner_text()
    assert page.evaluate(STRIP) > 20
    assert page.page.locator("#frame").is_visible() and page.view()[0] <= current(page) <= page.view()[1]
    at = page.evaluate("traceview.linked.at")
    page.press("n")
    assert page.evaluate("traceview.linked.at") == (at + 1) % count
    assert page.view()[0] <= current(page) <= page.view()[1]
    page.press("N")
    assert page.evaluate("traceview.linked.at") == at
    view = page.view()
    page.press("s")
    page.press("f")
    assert page.view() == pytest.approx(view, rel=0.5)
    page.evaluate("scrollTo(0, 0)")
    page.page.locator("#panel").get_by_role("button", name="Back").click()
    assert page.evaluate(
        """() => { const row = document.querySelector("#kernels tbody tr");
          const { left, top, height } = row.getBoundingClientRect();
          return row.contains(document.elementFromPoint(left + 9, top + height / 2)); }"""
    )  # nothing covers it
    page.press("Escape")
    assert page.evaluate("[traceview.linked.group, traceview.view.lit, traceview.selected.hit]") == [None] * 3
    assert page.page.locator("#panel").is_hidden() and found(page) == "" and page.evaluate(STRIP) == 0


def test_gap_bar_iteration_and_finding_link(page: Opened, analysis: Analysis) -> None:
    page.page.locator("#chart_gaps_gpu_0 tbody tr").last.locator("th").click()
    page.settle()
    gaps = analysis.devices[0].gaps
    assert page.evaluate("traceview.linked.group.places.every(({ rows }) => rows[0] === 'd:GPU 0')")
    assert 0 < page.evaluate("traceview.linked.group.places.length") <= gaps.count
    assert page.page.locator("#panel h3").is_visible()
    page.page.locator("#bars .columns > button").first.press("Enter")
    page.settle()
    assert found(page) == "1 of 20 iterations"
    page.press("n")
    assert found(page) == "2 of 20 iterations"
    page.page.locator("#cards .goto").first.click()
    page.settle()
    places = analysis.findings[0].evidence
    assert found(page) == f"1 of {len(places)} places"
    page.press("n")
    assert found(page) == f"2 of {len(places)} places"
    assert places[1].text in page.page.locator("#panel").inner_text()
