"""Accessibility: colours, contrast, keyboard, names, small and zoomed screens, no layout shift, paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import resources
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Browser

from tests.pages import inputs_of
from tests.report.analysis.test_draws import fine
from tests.report.browser import Opened, opened
from traceview.model.analysis import Analysis
from traceview.report.analysis.page import render
from traceview.report.timeline.work import LOOKS

Colour = NDArray[np.float64]
# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SIGHT = {
    "usual": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "without red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "without green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "without blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
APART = 16  # CIE 1976 difference at which two areas side by side are clearly two
ALONE = ("range", "iteration", "skipped", "counter")  # looks with rows of their own
EXPOSED = [look for look in LOOKS if look.startswith("exposed_")]  # they have a row of their own
SHARED = [look for look in LOOKS if not look.startswith("call_") and look not in (*ALONE, *EXPOSED)]


def own(name: str) -> str:
    return resources.files("traceview.report.assets").joinpath("core", name).read_text(encoding="utf-8")


def themes() -> dict[str, dict[str, str]]:
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})\b", re.sub(r"#(\w)(\w)(\w)\b(?!\w)", r"#\1\1\2\2\3\3", part)))
        for part in own("palette.css").split(':root[data-theme="dark"]')
    )
    named = dict(re.findall(r"--([\w-]+): var\(--([\w-]+)\)", own("palette.css")))
    both = (light, {**light, **dark})
    return {
        theme: {**colours, **{name: colours[other] for name, other in named.items()}}
        for theme, colours in zip(("light", "dark"), both, strict=True)
    }


def linear(colour: str) -> Colour:
    part = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def seen(colour: str, sight: str) -> Colour:
    """Return CIE L*a*b* of a colour, as seen with a colour vision deficiency."""
    rgb = np.clip(np.array(SIGHT[sight]) @ linear(colour), 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    x, y, z = (np.cbrt(one) if one > 0.008856 else 7.787 * one + 16 / 116 for one in xyz / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast(theme: str) -> None:
    colours = themes()[theme]
    for text in ("ink", "soft", "link", "high", "medium", "low", "info"):
        for ground in ("page", "card", "sunk"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for sign in ("focus", "mark", "edge"):
        assert contrast(colours[sign], colours["card"]) >= 3, sign


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", list(SIGHT))
def test_classes_look_different(theme: str, sight: str) -> None:
    colours = themes()[theme]
    [text] = re.findall(r"const PATTERNS = \{(.*?)\};", own("palette.js"), re.DOTALL)
    patterns = dict(re.findall(r'(\w+): "(\w+)"', text))
    for one, other in (*combinations(SHARED, 2), *combinations(EXPOSED, 2)):
        apart = np.linalg.norm(seen(colours[one], sight) - seen(colours[other], sight))
        assert apart >= APART or patterns.get(one) != patterns.get(other), (one, other, apart)


@pytest.fixture(scope="module")
def analysis(analysis_of: Callable[[str], Analysis]) -> Analysis:
    return analysis_of("ddp2")


@pytest.fixture(scope="module")
def html(analysis: Analysis) -> str:
    return render(inputs_of(analysis))


@pytest.fixture(scope="module")
def shared_page(browser: Browser, html: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened(browser, html, tmp_path_factory.mktemp("accessible")) as one:
        one.page.locator("#charts .chart").first.wait_for(state="attached")
        all_charts(one)
        yield one


@pytest.fixture
def page(shared_page: Opened) -> Iterator[Opened]:
    """Return the page as it was when it opened, with all charts."""
    shared_page.reset()
    yield shared_page
    assert shared_page.complaints == []


# Charts that are drawn above it may push a chart out of sight again before the browser has seen it.
DRAWN = """(at) => {
  const chart = document.querySelectorAll(".chart")[at];
  if (!chart.dataset.drawn) chart.scrollIntoView();
  return chart.dataset.drawn;
}"""


def all_charts(page: Opened) -> None:
    """Scroll to every chart until it is drawn."""
    for at in range(page.page.locator(".chart").count()):
        page.page.wait_for_function(DRAWN, arg=at)


NAMELESS = """() => [...document.querySelectorAll("button, a[href], input, select, summary, [tabindex]")]
  .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.[0]?.textContent.trim()))
  .map((one) => one.outerHTML.slice(0, 100))"""
LOST_LABELS = """() => [...document.querySelectorAll("[aria-labelledby], [aria-controls]")].flatMap((one) =>
  [one.getAttribute("aria-labelledby"), one.getAttribute("aria-controls")]
    .filter((id) => id && !document.getElementById(id)))"""
TWICE = """() => { const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  return ids.filter((id, at) => ids.indexOf(id) !== at); }"""
LEVELS = """() => [...document.querySelectorAll("h1, h2, h3, h4")].filter((one) => one.checkVisibility())
  .map((one) => Number(one.tagName[1]))"""


def test_every_control_has_a_name_and_a_role(page: Opened) -> None:
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(LOST_LABELS) == []
    assert page.evaluate(TWICE) == []
    levels = page.evaluate(LEVELS)
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for role in ("main", "navigation", "contentinfo"):
        assert page.page.get_by_role(role).count() == 1, role
    assert page.evaluate("document.documentElement.lang") == "en"


def test_tab_shows_the_focus_on_every_control(page: Opened) -> None:
    page.evaluate("() => { document.body.tabIndex = -1; document.body.focus(); }")  # Tab goes on from the top
    page.evaluate("document.body.removeAttribute('tabindex')")
    unseen, classes = [], set()
    for _ in range(400):
        page.page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => {
              const at = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(at);
              const name = (at.id || at.className || at.tagName).split(" ")[0];
              return [name, outlineStyle !== "none" && parseFloat(outlineWidth) >= 1];
            }"""
        )
        classes.add(name)
        if not outline:
            unseen.append(name)
        if name == "chart":
            break
    assert unseen == []
    assert {"theme", "goto", "search", "stage", "table", "small", "chart"} <= classes


MOVED = """() => new Promise((done) => {
  const found = [];
  new PerformanceObserver((list) => found.push(...list.getEntries().map((one) => one.value)))
    .observe({ type: "layout-shift", buffered: true });
  requestAnimationFrame(() => requestAnimationFrame(() => done(found)));
})"""
CUT_HEADINGS = """() => [...document.querySelectorAll("h1, h2, h3, .card *, .parts *, .figure-head *, .looks li")]
  .filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => one.outerHTML.slice(0, 100))"""


# 200% of a screen is half of its pixels, each twice as large.
@pytest.mark.parametrize(
    ("width", "height", "dark"),
    [(1440, 900, False), (800, 600, False), (720, 450, False), (400, 300, True)],
)
def test_screens_of_all_sizes(browser: Browser, html: str, tmp_path: Path, width: int, height: int, dark: bool) -> None:
    with opened(browser, html, tmp_path, width=width, height=height, dark=dark) as page:
        page.page.locator("#charts .chart").first.wait_for(state="attached")
        page.settle()
        assert sum(page.evaluate(MOVED)) < 0.01  # nothing moves after it is drawn
        if width >= 800:
            fine(page)
            assert page.evaluate("document.getElementById('frame').getBoundingClientRect().width") > 700
        all_charts(page)
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        assert page.evaluate(CUT_HEADINGS) == []
        assert page.complaints == []


def test_switch_changes_the_colours_of_charts(page: Opened) -> None:
    colour = """() => [...document.querySelectorAll(".chart")].map((one) =>
      one.layout.font.color + JSON.stringify(one.data[0].marker?.color ?? one.data[0].colorscale))"""
    light, switch = page.evaluate(colour), page.page.get_by_role("button", name="Dark colours")
    assert switch.get_attribute("aria-pressed") == "false"
    switch.press("Enter")
    page.page.wait_for_function(f"(light) => ({colour})().every((one, at) => one !== light[at])", arg=light)
    assert switch.get_attribute("aria-pressed") == "true"
    switch.press("Enter")  # as it was, for the other tests


def test_forced_colours_keep_the_colours_of_marks(browser: Browser, html: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    context = browser.new_context(forced_colors="active")
    try:
        page = context.new_page()
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        fills = page.locator(".swatch").evaluate_all("(all) => all.map((one) => getComputedStyle(one).backgroundColor)")
        assert len(set(fills)) > 5
    finally:
        context.close()


def test_print_fills_the_width_and_cuts_nothing(browser: Browser, html: str, tmp_path: Path) -> None:
    """On A4 inside its margins, the timeline's picture is as wide as the page, and all columns of kernels are on it."""
    with opened(browser, html, tmp_path) as page:
        height = page.evaluate("document.getElementById('frame').offsetHeight")
        page.page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.page.set_viewport_size({"width": 703, "height": 1000})
        page.settle()
        box = "(one) => (({ left, right }) => [left, right])(document.querySelector(one).getBoundingClientRect())"
        assert page.evaluate(box, "#timeline .paper") == [0, 703]
        assert page.page.locator("#frame").is_hidden()
        columns = page.page.locator("#kernel-tables thead th")
        assert columns.count() > 15
        assert page.evaluate(box, "#kernel-tables table")[1] <= 1.25 * 703, "a browser scales what is a little wider"
        # as many pixels of marks in the last tenth of the picture as elsewhere
        marks = page.evaluate(
            """() => {
              const picture = document.querySelector(".paper"), { width, height } = picture;
              const { data } = picture.getContext("2d").getImageData(width * 0.9, 0, width * 0.1, height);
              return data.filter((value, at) => at % 4 === 0 && value !== data[0]).length / (width * height * 0.1);
            }"""
        )
        assert marks > 0.05
        page.page.emulate_media(media="screen")
        page.page.set_viewport_size({"width": 1440, "height": 900})
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.page.wait_for_function("!document.querySelector('.paper')")
        page.settle()
        assert page.evaluate("document.getElementById('frame').offsetHeight") == height


def test_print_shows_every_chart_in_light_colours(browser: Browser, html: str, tmp_path: Path) -> None:
    """A chart that the reader has not seen is printed as its table: it has no picture yet."""
    with opened(browser, html, tmp_path, dark=True) as page:
        page.page.locator("#charts .chart").first.scroll_into_view_if_needed()
        page.page.locator("#charts .chart[data-drawn]").first.wait_for()
        page.settle()
        page.evaluate(
            """() => addEventListener("beforeprint", () => {
              const widths = [], tables = [];
              for (const one of document.querySelectorAll(".chart"))
                if (one.dataset.drawn) widths.push(one._fullLayout.width);
                else tables.push(one.querySelectorAll("tbody tr").length);
              window.onPaper = [document.documentElement.dataset.theme, widths, tables];
            })"""
        )
        pdf = page.page.pdf(format="A4")
        theme, widths, tables = page.evaluate("window.onPaper")
        assert pdf.startswith(b"%PDF") and len(pdf) > 100_000
        assert theme == "light" and len(widths) + len(tables) == 4 and widths and tables
        assert all(600 < width <= 700 for width in widths) and all(tables)
        page.page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
        all_charts(page)
        assert page.page.locator(".chart .table").count() == 0
        assert page.complaints == []
