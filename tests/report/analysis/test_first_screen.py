"""The first screen of the page: the bar by kernel family, the strip of iterations, and parts that open on request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from tests.pages import inputs_of, page_of
from tests.report.browser import Opened, opened
from traceview import Analysis
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.units import duration, time_range
from traceview.pipeline import analyze
from traceview.report.analysis.page import render


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyzed(sample("dual.sqlite"))


@pytest.fixture(scope="module")
def page(browser: Browser, analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened(browser, render(inputs_of(analysis)), tmp_path_factory.mktemp("page"), folded=True) as result:
        yield result
        assert result.complaints == []


def test_compute_is_divided_by_family(page: Opened, analysis: Analysis) -> None:
    families = [row for row in analysis.devices[0].tables["kernel_families"].rows if row.family != "communication"]
    pieces = page.page.locator("#devices .stack .of")
    assert pieces.first.inner_text() == "matrix products" and families[0].family == "gemm"
    widths = pieces.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().width)")
    assert widths[1] / widths[0] == pytest.approx(families[1].total_ns / families[0].total_ns, rel=0.1)
    bar = page.page.locator("#devices .stack").bounding_box()
    assert bar is not None
    view = analysis.devices[0]
    assert sum(widths) / bar["width"] == pytest.approx(view.compute_ns / view.window.length, rel=0.01)
    pieces.nth(1).click()
    field = page.page.get_by_role("searchbox", name="Show only kernels")
    assert field.input_value() == families[1].family
    pieces.first.click()
    assert field.input_value() == families[0].family
    assert pieces.last.inner_text() == "other kernels"
    pieces.last.click()
    assert field.input_value() == ""


def test_strip_has_a_bar_for_each_iteration(page: Opened, analysis: Analysis) -> None:
    assert isinstance(analysis.iterations, Iterations)
    bars = page.page.locator("#strip .spark i")
    assert bars.count() == analysis.iterations.count
    assert page.page.locator("#strip").inner_text() == "20 iterations"
    bars.nth(4).click()
    page.settle()
    assert page.page.locator("#found").inner_text() == "5 of 20 iterations"
    one, zero = analysis.iterations.per_iteration[4], analysis.trace.span.start
    assert page.evaluate("traceview.view.lit.start") == one.start_ns - zero
    page.press("n")
    assert page.page.locator("#found").inner_text() == "6 of 20 iterations"
    page.press("Escape")


def test_checked_changes_are_predicted_together(page: Opened, analysis: Analysis) -> None:
    found = inputs_of(analysis).combinations
    assert found is not None
    by_changes = {frozenset(row.change.split("+")): row for row in found.predictions}
    boxes, then = page.page.locator("#changes input"), page.page.locator("#then")
    names = [box.get_attribute("value") for box in boxes.all()]
    assert len(names) == sum(len(changes) == 1 for changes in by_changes) >= 2
    for chosen in (names[:1], names[:2], names[1:2]):
        for box, name in zip(boxes.all(), names, strict=True):
            box.set_checked(name in chosen)
        row = by_changes[frozenset(str(name) for name in chosen)]
        words = time_range(row.low_ns, row.high_ns)
        assert f"→ {duration(row.iteration_ns)}" in then.inner_text() and f"({words})" in then.inner_text()
        assert then.locator(".stack").count() == 2
    for box in boxes.all():
        box.set_checked(False)
    assert then.locator(".stack").count() == 1


def test_parts_open_on_request(page: Opened) -> None:
    assert page.evaluate("document.documentElement.scrollHeight") < 2500
    assert not page.page.locator("#all").is_visible() and page.page.locator("#kernels table").is_visible()
    assert page.page.locator(".chart[data-drawn]").count() == 0
    for part in ("findings", "iterations", "charts", "tables", "notes"):
        page.page.locator(f"nav a[href='#{part}']").click()
        assert page.page.locator(f"#{part} > details").get_attribute("open") is not None
        page.evaluate("scrollTo(0, 0)")
    page.page.locator(".chart[data-drawn]").first.wait_for()


def test_gain_that_rounds_to_nothing_has_no_sign(browser: Browser, analysis: Analysis, tmp_path: Path) -> None:
    first, second, *_ = analysis.findings
    small = [
        replace(one, gain=replace(one.gain, ns=1, low_ns=1, high_ns=1, source=source), severity="low")
        for one, source in ((first, "bound"), (second, "predicted"))
    ]
    html = render(inputs_of(replace(analysis, findings=tuple(small))))
    with opened(browser, html, tmp_path, folded=True) as page:
        assert page.page.locator("#cards .goto .tone").all_inner_texts() == ["<0.1%"]  # the second one is folded


# The texts in the window, and the numbers among them that name no row, stream or version.
TEXTS = """() => { const texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { data, parentElement: parent } = walker.currentNode, range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const { top, width } = range.getBoundingClientRect();
    const hidden = parent.closest(".hidden, .skip") || !parent.checkVisibility({ visibilityProperty: true });
    if (data.trim() && width && top < innerHeight && !hidden) texts.push(data); }
  return texts.join(" "); }"""
FIGURE = re.compile(r"(?<![\w.-])(?<!GPU )(?<!stream )(?<!process )(?<!nsys )\d[\d,.]*\d?%?")


@pytest.mark.parametrize("name", ["dual", "serial"])
def test_first_screen_is_short_and_states_each_figure_once(browser: Browser, tmp_path: Path, name: str) -> None:
    analysis = analyzed(sample(f"{name}.sqlite"))
    with opened(browser, render(inputs_of(analysis)), tmp_path, folded=True) as page:
        text = page.evaluate(TEXTS)
        figures = FIGURE.findall(text)
        words = [word for word in text.split() if re.search(r"\w", word)]
        assert analysis.answer.text.replace("`", "") in text and 80 < len(words) <= 190
        assert 5 < len(figures) <= 25
        shares = [figure for figure in figures if figure.endswith("%")]
        assert sorted(set(shares)) == sorted(shares) and page.complaints == []


def test_share_is_left_out_where_the_answer_names_it(browser: Browser, analysis: Analysis, tmp_path: Path) -> None:
    """A part with the percent of something else in the answer keeps its share."""
    text = "CUDA: 12% is gaps between small kernels and 27% the profiler."
    inputs = inputs_of(replace(analysis, answer=replace(analysis.answer, text=text)))
    with opened(browser, render(inputs), tmp_path, folded=True) as page:
        shown = page.page.locator("#devices .parts li").all_inner_texts()
        assert {"compute 50.0%", "idle: host 11.8%", "profiler (estimated)"} <= {" ".join(one.split()) for one in shown}


def test_capture_without_gpu_work_shows_its_cause_and_remedy(browser: Browser, tmp_path: Path) -> None:
    analysis = analyzed(sample("mpi/ring.sqlite"))
    with opened(browser, render(inputs_of(analysis)), tmp_path, folded=True) as page:
        shown = page.page.locator("#answer").inner_text()
        assert "The capture has no GPU work" in shown and "nsys profile -t cuda,nvtx COMMAND" in shown
        assert "GPUs" not in shown and page.page.locator("#cards .card").count() == 0
        links = page.page.locator("nav a:visible").all_inner_texts()
        assert "What if" not in links and "Tables" in links  # nothing is predicted


COVERED = """(part) => { const heading = document.querySelector(`#${part} h2`).getBoundingClientRect();
  const seen = document.elementFromPoint(heading.left + 4, (heading.top + heading.bottom) / 2);
  return !seen?.closest("#" + part); }"""
BOX = """() => { const { left, top, width, height } = document.querySelector("#changes input").getBoundingClientRect();
  return document.elementFromPoint(left + width / 2, top + height / 2)?.tagName; }"""


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1280, 720), (800, 600)])
@pytest.mark.parametrize("name", ["dual", "ddp2"])
def test_links_lead_to_parts_in_sight(browser: Browser, tmp_path: Path, name: str, width: int, height: int) -> None:
    """What a link of the head leads to is not under the timeline that stays in sight, also with an open panel."""
    html = page_of(name)
    with opened(browser, html, tmp_path, width=width, height=height, folded=True) as page:
        for key in ("Escape", "."):
            for part in ("whatif", "kernels", "findings", "iterations", "charts", "tables", "notes"):
                page.evaluate("scrollTo(0, 0)")
                page.press(key)
                page.page.locator(f"nav a[href='#{part}']").click()
                page.page.wait_for_function(f"() => !({COVERED})('{part}')")
                assert part != "whatif" or page.evaluate(BOX) == "INPUT"
            if width > 1100:
                bottom = page.evaluate("document.getElementById('timeline').getBoundingClientRect().bottom")
                assert bottom < 0.7 * height
        address = page.page.url.partition("#")[0]
        page.page.goto("about:blank")  # the page itself writes its address, which would interrupt a change of it
        page.page.goto(address + "#kernels")
        page.page.wait_for_selector("html[data-ready]", state="attached")
        page.page.wait_for_function(f"() => !({COVERED})('kernels')")


HIDDEN_TEXT = """() => [...document.querySelectorAll("#answer-title, .card > .goto, .card > p, .card summary")]
  .filter((one) => one.scrollHeight > one.clientHeight + 1 || one.scrollWidth > one.clientWidth + 1 ||
    one.getBoundingClientRect().bottom > innerHeight)
  .map((one) => one.textContent)"""
WHOLE_ROWS = """() => { const top = document.getElementById("canvas").getBoundingClientRect().top;
  return traceview.board.shown.filter(({ lanes, y, h }) => lanes?.length && top + y + h <= innerHeight).length; }"""


@pytest.mark.parametrize("name", ["dual", "serial", "ddp2", "quad"])
def test_small_screen_has_the_answer_the_cards_and_rows(browser: Browser, tmp_path: Path, name: str) -> None:
    """At 800 x 600 no text of the cards is cut or below the first screen, and work on the GPU is in it."""
    html = page_of(name)
    with opened(browser, html, tmp_path, width=800, height=600, folded=True) as page:
        assert page.page.locator("#cards .card").count() == 3
        assert page.evaluate(HIDDEN_TEXT) == []
        assert page.evaluate(WHOLE_ROWS) >= 2


def test_bar_covers_the_run_without_iterations(browser: Browser, tmp_path: Path) -> None:
    """Without iterations gains are of the run, which begins with its first CUDA call."""
    ms = 1_000_000
    calls = [(0, 60 * ms, "api", 0), (70 * ms, 71 * ms, "api", 0)]
    analysis = analyze(made_trace([(71 * ms, 91 * ms, "compute", 0, 1)], calls))
    assert isinstance(analysis.iterations, NotMeasured) and analysis.answer.gain.of_ns == 91 * ms
    with opened(browser, render(inputs_of(analysis)), tmp_path) as page:
        page.page.locator("#figures summary").click()
        head = page.page.locator("#figures .device-head").inner_text()
        assert "91.0 ms from the first CUDA call to the last" in head and page.complaints == []
        parts = page.page.locator("#figures ul.parts").inner_text()
        assert re.findall(r"(no GPU work yet|compute)\D+([\d.]+)%", parts) == [
            ("compute", "22.0"),
            ("no GPU work yet", "78.0"),
        ]
