"""The charts show the analysis's figures, move the timeline, and their tables are saved as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator

from tests.captures import analyzed, shared
from tests.pages import inputs_of
from tests.report.browser import Opened, chart, opened
from traceview.model.analysis import Analysis, Iterations
from traceview.model.units import share
from traceview.report.analysis.page import render

OUTLINED = "(stage) => stage.data.flatMap(({ marker }) => marker.line.width).filter((width) => width > 1).length"
DOWNLOAD_PAUSE = 110  # ms; Chromium silently drops what a page saves beyond ten downloads in a second
PICTURE = "(stage) => ({ data: stage.data.map(({ name, x, y, z, type }) => ({ name, x, y, z, type })) })"


@pytest.fixture(scope="module")
def analysis(analysis_of: Callable[[str], Analysis]) -> Analysis:
    return analysis_of("quad")


@pytest.fixture(scope="module")
def shared_page(browser: Browser, analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened(browser, render(inputs_of(analysis)), tmp_path_factory.mktemp("charts")) as one:
        yield one


@pytest.fixture
def page(shared_page: Opened) -> Iterator[Opened]:
    shared_page.page.locator("[data-move=fit]").click()
    shared_page.settle()
    yield shared_page
    assert shared_page.complaints == []


def drawn(page: Opened, heading: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = chart(page, heading).locator(".chart").evaluate(PICTURE)["data"]
    return data


def goes_to(page: Opened, start: int, end: int) -> bool:
    page.settle()
    first, last = page.view()
    return first <= start and end <= last and last - first <= 4 * max(end - start, 500)


def saved(page: Opened, button: Locator) -> tuple[str, bytes]:
    with page.page.expect_download() as waiting:
        button.click()
    page.page.wait_for_timeout(DOWNLOAD_PAUSE)
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def rows_of(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))


def figure(page: Opened, heading: str) -> Locator:
    return page.page.locator("section", has=page.page.get_by_role("heading", name=heading, exact=True)).last


def parts_of(bar: Locator) -> list[tuple[str, float]]:
    """Return the parts of a bar and their lengths in ns; a browser keeps six digits."""
    found: list[tuple[str, float]] = bar.locator("span").evaluate_all(
        "(all) => all.map((one) => [one.title.split(': ').slice(0, -1).join(': '), Number(one.style.flexGrow)])"
    )
    return [(name, ns) for name, ns in found]


def bars_of(page: Opened) -> Locator:
    return page.page.locator("#bars .columns > button")


def test_iterations_are_stacked_by_part(page: Opened, analysis: Analysis) -> None:
    assert isinstance(analysis.iterations, Iterations)
    each = analysis.iterations.per_iteration
    shown = [dict(parts_of(bar)) for bar in bars_of(page).all()]
    assert [bar["compute"] for bar in shown] == pytest.approx([one.compute_ns for one in each], rel=1e-5)
    assert [bar["exposed copy h2d"] for bar in shown] == pytest.approx([one.exposed_h2d_ns for one in each], rel=1e-5)
    assert [bar["idle: host"] for bar in shown] == pytest.approx([one.idle["host"] for one in each], rel=1e-5)


def test_bars_are_as_high_as_their_iterations(page: Opened, analysis: Analysis) -> None:
    assert isinstance(analysis.iterations, Iterations)
    heights = bars_of(page).locator(".stack").evaluate_all("(all) => all.map((one) => one.offsetHeight)")
    each = [one.wall_ns for one in analysis.iterations.per_iteration]
    assert heights == pytest.approx([max(heights) * ns / max(each) for ns in each], abs=2)


@pytest.mark.parametrize("by", ["click", "Enter"])
def test_bar_moves_to_the_iteration(page: Opened, analysis: Analysis, by: str) -> None:
    assert isinstance(analysis.iterations, Iterations)
    bar = bars_of(page).nth(3)
    if by == "click":
        bar.click()
    else:
        bar.press(by)
    one = analysis.iterations.per_iteration[3]
    assert goes_to(page, one.start_ns - analysis.trace.span.start, one.end_ns - analysis.trace.span.start)
    assert str(bar.get_attribute("aria-label")).startswith(one.name)


def test_arrows_lead_from_bar_to_bar(page: Opened) -> None:
    bars = bars_of(page)
    bars.first.focus()
    at = "[...document.querySelectorAll('#bars .columns > button')].indexOf(document.activeElement)"
    last = bars.count() - 1
    for key, wanted in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", last),
        ("ArrowRight", last),
        ("Home", 0),
    ):
        page.page.keyboard.press(key)
        assert page.evaluate(at) == wanted
    assert bars.evaluate_all("(all) => all.filter((one) => one.tabIndex === 0).length") == 1


def test_gaps_are_counted_by_length_and_cause(page: Opened, analysis: Analysis) -> None:
    causes = analysis.devices[0].gaps.causes
    sums: dict[str, float] = {}
    for bar in figure(page, "Idle gaps by length").locator(".stack").all():
        for name, ns in parts_of(bar):
            sums[name] = sums.get(name, 0) + ns
    expected = {f"idle: {cause.replace('_', ' ')}": ns for cause, ns in causes.items() if ns}
    assert sums == pytest.approx(expected, rel=1e-5)


def test_copies_are_at_their_size_and_bandwidth(page: Opened, analysis: Analysis) -> None:
    groups = inputs_of(analysis).charts.devices[0].copies
    points = {
        (round(x), round(y, 6))
        for trace in drawn(page, "Bandwidth of copies by size")
        for x, y in zip(trace["x"], trace["y"], strict=True)
    }
    assert points == {(round(one.bytes / one.count), round(one.bytes / one.duration_ns, 6)) for one in groups}


def test_concurrent_streams_are_a_matrix(page: Opened, analysis: Analysis) -> None:
    together = inputs_of(analysis).charts.devices[0].streams.together_ns
    lines = figure(page, "Concurrent streams").locator("tbody tr").all()
    assert len(lines) == len(together)
    for i, (line, row) in enumerate(zip(lines, together, strict=True)):
        texts = line.locator(".share").all_inner_texts()
        expected = [share(ns / row[i]) if ns else "never" for ns in row]
        assert texts == ["" if i == j else text for j, text in enumerate(expected)]
        label = line.locator("th").inner_text()
        assert label == sorted(analysis.devices[0].streams, key=lambda use: -use.busy_ns)[i].label


def test_keys_move_through_a_chart(page: Opened) -> None:
    copies = chart(page, "Bandwidth of copies by size")
    stage, said = copies.locator(".chart"), copies.locator(".said")
    stage.focus()
    texts = []
    for key in ("End", "Home", "ArrowRight", "ArrowLeft"):
        stage.press(key)
        page.settle()
        texts.append(said.inner_text())
        assert stage.evaluate(OUTLINED) == 1
    assert all(texts) and texts[1] == texts[3] and len(set(texts)) == 3


@pytest.mark.parametrize("by", ["row", "Enter"])
def test_row_of_gaps_moves_to_the_longest(page: Opened, analysis: Analysis, by: str) -> None:
    line = figure(page, "Idle gaps by length").locator("tbody tr").first
    if by == "row":
        line.locator("th").click()
    else:
        line.get_by_role("button").press(by)
    longest = inputs_of(analysis).charts.devices[0].gaps[0].longest
    assert goes_to(page, longest.start - analysis.trace.span.start, longest.end - analysis.trace.span.start)


def test_tables_are_saved_as_csv(page: Opened) -> None:
    buttons = page.page.get_by_role("button", name="Save as CSV")
    assert buttons.count() >= 7
    for at in range(buttons.count()):
        name, data = saved(page, buttons.nth(at))
        assert name.startswith("quad.") and name.endswith(".csv")
        rows = rows_of(data)
        assert rows and all(None not in row and None not in row.values() for row in rows)


def test_csv_holds_the_figures(page: Opened, analysis: Analysis) -> None:
    assert isinstance(analysis.iterations, Iterations)
    page.page.locator("#bars summary").click()
    _, data = saved(page, page.page.locator("#bars").get_by_role("button", name="Save as CSV"))
    assert [(row["iteration"], int(row["wall_ns"]), int(row["idle_host_ns"])) for row in rows_of(data)] == [
        (one.name, one.wall_ns, one.idle["host"]) for one in analysis.iterations.per_iteration
    ]
    page.page.locator("#bars summary").click()


def test_table_of_a_chart_has_its_figures(page: Opened, analysis: Analysis) -> None:
    copies = chart(page, "Bandwidth of copies by size")
    button = copies.get_by_role("button", name="Table")
    assert button.get_attribute("aria-expanded") == "false" and not copies.locator("table").is_visible()
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    assert copies.locator("tbody tr").count() == min(50, len(inputs_of(analysis).charts.devices[0].copies))
    button.click()


def test_keys_move_from_place_to_place(page: Opened, analysis: Analysis) -> None:
    zero = analysis.trace.span.start
    number, places = next((at, one.evidence) for at, one in enumerate(analysis.findings) if len(one.evidence) > 2)
    page.page.locator("#all .finding").nth(number).locator(".places button").first.click()
    for key, at in (("n", 1), ("n", 2), ("N", 1)):
        page.page.keyboard.press(key)
        assert goes_to(page, places[at].start_ns - zero, places[at].end_ns - zero)
        assert page.page.locator("#all [aria-current=true]").inner_text() == places[at].text.replace("`", "")


def test_iterations_without_a_gpu_show_their_time(browser: Browser, tmp_path: Path) -> None:
    analysis = analyzed(shared("public/nsys2022.4_nvtx_textid_only.sqlite"))
    assert isinstance(analysis.iterations, Iterations)
    with opened(browser, render(inputs_of(analysis)), tmp_path) as page:
        parts = [part for bar in bars_of(page).all() for part in parts_of(bar)]
        assert {name for name, _ in parts} == {"time on the host"}
        assert sum(ns for _, ns in parts) * 2 == pytest.approx(
            sum(one.wall_ns for one in analysis.iterations.per_iteration), rel=1e-4
        )
        assert page.complaints == []


WATCHED = """addEventListener("DOMContentLoaded", () => {
  const asked = requestIdleCallback;
  window.idle = { free: 0, drawn: [] };
  window.requestIdleCallback = (act) => asked((deadline) => { idle.free++; act(deadline); });
  const note = ({ target }) => idle.drawn.push([idle.free, target.closest("section").id]);
  new MutationObserver((all) => all.forEach(note))
    .observe(document.body, { subtree: true, attributeFilter: ["data-drawn"] });
})"""


def test_library_runs_for_an_open_section_and_draws_a_chart_in_each_idle_moment(
    browser: Browser, analysis: Analysis, tmp_path: Path
) -> None:
    """plotly.js is a script of its own, which the browser compiles beside the page; no task draws several charts."""
    browser_page = browser.new_page()
    browser_page.add_init_script(WATCHED)
    path = tmp_path / "page.html"
    path.write_text(render(inputs_of(analysis)), encoding="utf-8")
    try:
        browser_page.goto(path.as_uri())
        browser_page.wait_for_selector("html[data-ready]", state="attached")
        browser_page.wait_for_function("() => document.querySelectorAll('.chart').length > 1")
        assert browser_page.evaluate("typeof Plotly") == "undefined"
        assert browser_page.evaluate("document.getElementById('library').textContent.length") > 100_000
        browser_page.set_viewport_size({"width": 1440, "height": 4000})
        browser_page.evaluate("document.querySelector('#charts > details').open = true")
        browser_page.wait_for_function("() => !document.querySelector('.chart:not([data-drawn])')")
        drawn = browser_page.evaluate("idle.drawn")
        assert [free for free, _ in drawn] == [1, 2] and len({name for _, name in drawn}) == 2
        assert browser_page.evaluate("[document.getElementById('library'), typeof Plotly]") == [None, "object"]
        assert browser_page.evaluate("[...document.scripts].filter(({ src }) => src.startsWith('blob:')).length") == 1
    finally:
        browser_page.close()


def test_more_iterations_than_bars_are_averaged(browser: Browser, analysis_of: Callable[[str], Analysis]) -> None:
    """No capture at hand has 1,000 iterations; the content is made from one with 20, over and over."""
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from traceview.model.charts import iteration_bars

    analysis = analysis_of("dual")
    assert isinstance(analysis.iterations, Iterations)
    each = analysis.iterations.per_iteration * 50
    many = replace(analysis.iterations, per_iteration=each, count=len(each))
    inputs = inputs_of(analysis)
    charts = inputs.charts._replace(iterations=iteration_bars(each))
    inputs = replace(inputs, analysis=replace(analysis, iterations=many), charts=charts)
    with (
        TemporaryDirectory() as folder,
        opened(browser, render(inputs), Path(folder)) as page,
    ):
        assert bars_of(page).count() == len(charts.iterations) == 200
        parts = parts_of(page.page.locator("#bars .stack"))
        assert sum(ns for name, ns in parts if name == "compute") * 5 == pytest.approx(
            sum(one.compute_ns for one in each), rel=1e-4
        )
        assert page.complaints == []
