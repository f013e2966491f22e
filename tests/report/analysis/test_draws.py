"""The page draws from disk, without messages in the console and without requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.captures import PUBLIC, analyzed, shared
from tests.pages import inputs_of, page_of
from tests.report.browser import Opened, opened
from traceview.model.analysis import Analysis
from traceview.model.findings import Finding
from traceview.report.analysis.answer import LITTLE_GAIN, finding_lists
from traceview.report.analysis.page import render

SAMPLES = ["serial", "dual", "quad", "ddp2", "cudagraph"]
PAINTED = """() => {
  const canvas = document.getElementById("canvas");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set();
  for (let i = 0; i < pixels.length; i += 4)
    if (pixels[i + 3]) seen.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
  return seen.size;
}"""
# Text that its own box cuts: an ellipsis is a cut too, unless the whole text stands in a title.
CUT = """() => [...document.querySelectorAll("#answer *, #costliest *, .bar *, #findings *, #notes *")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX === "hidden")
  .filter((one) => !one.matches(".stack *, .hidden"))
  .map((one) => one.outerHTML.slice(0, 120))"""

VISIBLE = """(element) => {
  const box = element.getBoundingClientRect();
  return box.height > 0 && box.top < innerHeight;
}"""


def fine(page: Opened) -> None:
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate(CUT) == []
    assert page.marks() > 20
    assert page.evaluate(PAINTED) > 4


@pytest.mark.parametrize("name", SAMPLES)
def test_first_screen_has_the_answer(
    browser: Browser, analysis_of: Callable[[str], Analysis], name: str, tmp_path: Path
) -> None:
    analysis = analysis_of(name)
    with opened(browser, render(inputs_of(analysis)), tmp_path) as page:
        fine(page)
        assert page.page.locator("#devices .stack").count() == len(analysis.devices)
        listed = [
            each for words, findings in finding_lists(analysis).items() if words != LITTLE_GAIN for each in findings
        ]
        assert page.page.locator("#cards .card").count() == min(3, len(listed))
        card, finding = page.page.locator("#cards .card").first, analysis.findings[0]
        # a finding without a gain is the end of the answer, and the first card, which alone shows it
        assert page.page.locator("#answer-title").inner_text() == analysis.answer.text.split(f" {finding.title}")[0]
        assert card_title(finding) in card.inner_text() and finding.remedy in card.inner_text()
        assert finding.code.splitlines()[0] not in card.inner_text()
        card.locator("summary").click()
        assert finding.code.splitlines()[0] in card.inner_text()
        assert finding.title.replace("`", "") in card.inner_text()
        card.locator("summary").click()
        assert page.page.locator("#findings .finding").count() == len(analysis.findings)
        assert page.page.locator("#loading").count() == 0
        assert not page.page.locator("#summarised").is_visible()
        assert_upper_half(page, 900)
        labels = page.page.locator("#labels").inner_text()
    for device in analysis.devices:
        assert device.id in labels
        assert device.streams[0].label in labels
    assert labels.count("idle") == labels.count("work") == len(analysis.devices)
    assert "iterations" in labels
    assert all(f"process {process}" in labels for device in analysis.devices for process in device.process_ids)


def card_title(finding: Finding) -> str:
    """Return the title of a card: that of its finding without what is in parentheses or after a semicolon."""
    return re.sub(r" \([^()`<]*\)(?=[ ,;.]|: |$)", "", finding.title.partition("; ")[0]).replace("`", "")


def assert_upper_half(page: Opened, height: int) -> None:
    """Check that the answer and the cards leave the lower half of a screen to the timeline."""
    assert page.evaluate("document.getElementById('timeline').getBoundingClientRect().top") < height / 2
    cards = page.page.locator("#costliest").bounding_box()
    assert cards is not None and cards["y"] + cards["height"] < height / 2


def pinned_row_stays(page: Opened) -> None:
    """A pinned row keeps its place, on the canvas and under the pointer, while the others scroll."""
    labels = page.page.locator("#labels .label")
    page.page.locator("#labels .row-stream", has_text="stream 21").first.hover()
    page.page.locator("#labels .row-stream .tools button:visible").first.click()
    page.page.locator("#scroll").scroll_into_view_if_needed()
    before = labels.first.bounding_box()
    page.evaluate("document.getElementById('scroll').scrollTop = 200")
    page.settle()
    place, canvas = labels.first.bounding_box(), page.page.locator("#canvas").bounding_box()
    assert place == before and place is not None and canvas is not None
    page.page.mouse.move(canvas["x"] + canvas["width"] / 2, place["y"] + place["height"] / 2)
    page.press("p")
    assert page.evaluate("traceview.board.numbered.some(({ pinned }) => pinned)") is False


@pytest.mark.parametrize("name", ["serial", "ddp2"])
def test_timeline_begins_in_the_upper_half(
    browser: Browser, analysis_of: Callable[[str], Analysis], name: str, tmp_path: Path
) -> None:
    with opened(browser, page_of(name), tmp_path, width=1024, height=768) as page:
        assert_upper_half(page, 768)
        if name == "ddp2":
            pinned_row_stays(page)


def test_card_list_timeline_and_panel_are_one_selection(
    browser: Browser, analysis_of: Callable[[str], Analysis], tmp_path: Path
) -> None:
    analysis = analysis_of("serial")
    with opened(browser, render(inputs_of(analysis)), tmp_path) as page:
        page.page.locator("#cards .goto").nth(1).click()
        place = analysis.findings[1].evidence[0].text
        assert page.page.locator(".card").nth(1).get_attribute("aria-current") == "true"
        assert page.page.locator(":not(.card)[aria-current]").all_inner_texts() == [place]
        assert place in page.page.locator("#panel").inner_text()
        page.press("n")
        assert analysis.findings[1].evidence[1].text in page.page.locator("#panel").inner_text()


@pytest.mark.parametrize("name", [name for name in PUBLIC if "nvtx_textid_only" not in name])
def test_public_captures_draw(browser: Browser, name: str, tmp_path: Path) -> None:
    with opened(browser, render(inputs_of(analyzed(shared(name)))), tmp_path) as page:
        fine(page)


def test_light_and_dark_and_navigation(
    browser: Browser, analysis_of: Callable[[str], Analysis], tmp_path: Path
) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, page_of("dual"), tmp_path, dark=True) as page:
        dark = page.evaluate(background)
        page.page.locator("#theme").click()
        page.settle()
        light = page.evaluate(background)
        assert dark != light
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        fine(page)
        links = page.page.locator("nav a[href^='#']")
        for link in links.all():
            page.evaluate("scrollTo(0, 0)")
            link.evaluate("(link) => link.click()")
            target = page.page.locator(str(link.get_attribute("href")))
            page.page.wait_for_function(VISIBLE, arg=target.element_handle())
        assert links.count() > 3
