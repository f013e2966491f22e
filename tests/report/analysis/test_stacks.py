"""The page shows stacks, source lines and states of the host; made evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.measure.host.test_host_time import evidence, random_trace
from tests.pages import inputs_of, long_analysis
from tests.report.browser import Opened, chart, opened
from traceview.model.analysis import Analysis
from traceview.model.charts import StackNode
from traceview.model.composition import composition
from traceview.model.units import share
from traceview.pipeline import analyze
from traceview.report.analysis.page import render
from traceview.report.screen import STATE_WORDS
from traceview.report.timeline.inputs import PageInputs
from traceview.report.timeline.marks import Names
from traceview.report.timeline.rows import sample_marks


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyze(random_trace(2, exact=False), whole=True)


@pytest.fixture(scope="module")
def page(browser: Browser, analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened(browser, render(inputs_of(analysis)), tmp_path_factory.mktemp("stacks")) as shown:
        yield shown
        assert shown.complaints == []


PARTS = "(stage) => ({ at: stage.data[0].customdata, ns: stage.data[0].x, left: stage.data[0].base })"
FAR = "(stage) => stage.layout.xaxis.range[1]"
TOP = {"x": 300, "y": 12}  # a place in the first row of a chart


def times(nodes: Sequence[StackNode], figure: str) -> list[int]:
    return sorted(ns for node in nodes if (ns := getattr(node, figure)))


def test_switch_between_idle_and_host_time(page: Opened, analysis: Analysis) -> None:
    nodes = inputs_of(analysis).charts.stacks.nodes
    idle, host = "GPU idle time by stack", "Host time by stack"
    values = "(stage) => stage.data[0].x"
    assert sorted(chart(page, idle).locator(".chart").evaluate(values)) == times(nodes, "idle_ns")
    chart(page, idle).get_by_role("button", name="host time", exact=True).click()
    assert not page.page.get_by_role("heading", name=idle).is_visible()
    assert sorted(chart(page, host).locator(".chart").evaluate(values)) == times(nodes, "thread_ns")
    pressed = chart(page, host).get_by_role("button", name="host time", exact=True)
    assert pressed.get_attribute("aria-pressed") == "true"
    assert pressed.evaluate("(button) => button === document.activeElement")
    chart(page, host).get_by_role("button", name="GPU idle time", exact=True).click()
    assert page.page.get_by_role("heading", name=idle).is_visible()


def test_parts_lie_below_their_callers(page: Opened, analysis: Analysis) -> None:
    nodes = inputs_of(analysis).charts.stacks.nodes
    shown = [at for at, node in enumerate(nodes) if node.idle_ns]  # the chart numbers these
    drawn = chart(page, "GPU idle time by stack").locator(".chart").evaluate(PARTS)
    spans = {shown[at]: (left, left + ns) for at, ns, left in zip(drawn["at"], drawn["ns"], drawn["left"], strict=True)}
    for at, (start, end) in spans.items():
        above = spans.get(nodes[at].parent)
        assert above is None or (above[0] <= start and end <= above[1])
    assert len(spans) == len(shown)


def test_click_shows_a_part_alone_and_its_top_goes_back(page: Opened, analysis: Analysis) -> None:
    figure = chart(page, "GPU idle time by stack")
    stage = figure.locator(".chart")
    whole, first = stage.evaluate(FAR), stage.evaluate(PARTS)
    part = next(place for place, ns in enumerate(first["ns"]) if ns < whole)
    stage.focus()
    stage.press("Home")
    for _ in range(first["at"][part]):
        stage.press("ArrowRight")
    stage.press("Enter")
    page.settle()
    alone = stage.evaluate(PARTS)
    assert stage.evaluate(FAR) == alone["ns"][0] == first["ns"][part] and len(alone["at"]) < len(first["at"])
    stage.click(position=TOP)
    page.settle()
    while stage.evaluate(FAR) < whole:
        stage.click(position=TOP)
        page.settle()
    assert stage.evaluate(PARTS) == first


def test_tip_has_time_samples_and_share(page: Opened, analysis: Analysis) -> None:
    [root] = [node for node in inputs_of(analysis).charts.stacks.nodes if node.parent < 0 and node.idle_ns]
    figure = chart(page, "GPU idle time by stack")
    figure.locator(".chart").hover(position=TOP)
    figure.locator(".hoverlayer .hovertext").first.wait_for()
    tip = figure.locator(".hoverlayer").text_content() or ""
    assert f"{root.idle_samples} samples" in tip and "100%" in tip and root.place in tip
    figure.get_by_role("button", name="Table").click()
    assert figure.locator("tbody tr").count() == sum(
        node.idle_ns > 0 for node in inputs_of(analysis).charts.stacks.nodes
    )


def table_rows(page: Opened, heading: str) -> list[list[str]]:
    section = page.page.locator("#tables section", has=page.page.get_by_role("heading", name=heading))
    return [row.locator("th, td").all_inner_texts() for row in section.locator("tbody tr").all()]


def test_states_of_the_host_are_beside_the_idle_causes(page: Opened, analysis: Analysis) -> None:
    gaps = analysis.devices[0].gaps
    rows = table_rows(page, "What the host did in idle time")
    known = sorted(((ns, STATE_WORDS[state]) for state, ns in gaps.host_states.ns.items() if ns), reverse=True)
    whole = composition(analysis, analysis.devices[0]).whole_ns
    assert [row[:1] + row[2:3] for row in rows] == [[word, share(ns, whole)] for ns, word in known]
    [waiting] = [row for row in rows if row[0].startswith("waiting")]
    assert all(f"{name} {ns} ns" in waiting[3] for name, ns in gaps.host_states.waits.items())


def test_lines_are_sorted_by_a_heading(page: Opened, analysis: Analysis) -> None:
    lines = analysis.tables["lines"].rows
    assert [row[0] for row in table_rows(page, "Lines that made the GPU wait")] == [line.place for line in lines]
    section = page.page.locator(
        "#tables section", has=page.page.get_by_role("heading", name="Lines that made the GPU wait")
    )
    orders = []
    for _ in range(2):
        section.get_by_role("button", name="samples").click()
        orders.append([int(row[3]) for row in table_rows(page, "Lines that made the GPU wait")])
        assert section.get_by_role("button", name="samples").evaluate("(head) => head === document.activeElement")
    samples = sorted(line.samples for line in lines)
    assert orders == [samples[::-1], samples] and section.locator("th[aria-sort=ascending]").inner_text() == "samples"


def test_sample_shows_its_stack(page: Opened, analysis: Analysis) -> None:
    place = """() => {
      const { board, view, page } = traceview;
      const row = board.shown.find(({ kind }) => kind === "sample");
      const marks = traceview.marksIn(row.lanes[0].exact);
      const i = Array.from(marks.name).findIndex(
        (name, at) => page.names[name].endsWith(" train") && marks.start[at] > view.from && marks.end[at] < view.to,
      );
      const box = document.getElementById("canvas").getBoundingClientRect();
      const x = box.left + ((marks.start[i] - view.from) / (view.to - view.from)) * view.width;
      return [x, box.top + row.y - document.getElementById("scroll").scrollTop + row.h / 2, i];
    }"""
    page.reset()
    page.evaluate("document.getElementById('timeline').scrollIntoView()")
    x, y, _ = page.evaluate(place)
    page.page.mouse.move(x + 1, y)
    page.page.mouse.move(x, y)
    page.settle()
    tip = page.page.locator("#tip")
    frames = tip.locator("dd.lines").inner_text().splitlines()
    assert tip.locator("b").inner_text() in frames and frames[-1] == "train.py:1 <module>"
    page.page.mouse.click(x, y)
    assert page.page.locator("#panel dd.lines").inner_text().splitlines() == frames


def test_area_has_its_stacks_from_both_ends(page: Opened) -> None:
    page.reset()
    page.page.locator("[data-move=measure]").click()
    page.page.wait_for_function("() => traceview.area.result")
    sums = page.evaluate(
        "[...traceview.area.result.names.tables.stack.values()].reduce((sum, { time }) => sum + time, 0)"
    )
    assert sums == page.evaluate(
        "[...traceview.area.result.names.tables.sample.values()].reduce((sum, { time }) => sum + time, 0)"
    )
    down, up = (page.page.get_by_role("region", name=f"stacks, {way}") for way in ("top-down", "bottom-up"))
    assert down.locator("tbody tr").count() >= 1 and up.locator("tbody tr").count() > 1
    before = down.locator("tbody tr").count()
    fold = down.locator("tbody button").first
    fold.click()
    assert down.locator("tbody tr").count() > before
    assert down.locator("tbody button").first.get_attribute("aria-expanded") == "true"
    totals = [float(text.split("%")[0].split(", ")[1]) for text in up.locator("tbody td").all_inner_texts()]
    assert totals == sorted(totals, reverse=True) and sum(totals) == pytest.approx(100, abs=2)
    down.get_by_role("button", name="own").click()
    assert down.locator("th[aria-sort]").inner_text() == "own"


def sample_times(inputs: PageInputs, first: int, last: int) -> Counter[int]:
    """Return the ns of each stack between two times of a page."""
    times: Counter[int] = Counter()
    zero = inputs.span.start
    for marks in sample_marks(inputs.analysis.trace.evidence, inputs.stacks, inputs.span, Names()).values():
        for start, end, stack in zip(marks.start, marks.end, marks.details["stack"], strict=True):
            times[int(stack)] += max(0, min(int(end) - zero, last) - max(int(start) - zero, first))
    return times


def test_area_of_a_summarised_page_has_stacks(browser: Browser, tmp_path: Path) -> None:
    trace = long_analysis().trace
    moments = range(trace.span.start, trace.span.end, 400_000)
    samples = [(at, at, 0, 0, None, number % 4) for number, at in enumerate(moments)]
    inputs = inputs_of(analyze(replace(trace, evidence=evidence(samples, []))))
    with opened(browser, render(inputs, 1_080_000), tmp_path) as page:
        page.page.wait_for_selector("html[data-whole]", state="attached")
        page.evaluate("traceview.setView(...traceview.view.whole)")
        page.page.locator("[data-move=measure]").click()
        page.page.wait_for_function("() => traceview.area.result")
        covered = page.evaluate("(({ exact, from, to }) => [exact, from, to])(traceview.area.result.names)")
        expected = sample_times(inputs, *covered[1:])
        stacks = page.evaluate("[...traceview.area.result.names.tables.stack].map(([at, { time }]) => [at, time])")
        assert covered[0] is False and len(expected) == 4 and dict(stacks) == dict(expected)
        rows = page.evaluate("[...traceview.area.result.names.tables.row].map(([id, { time }]) => [id, time])")
        assert dict(rows)["k:0"] == sum(expected.values())
        assert page.page.get_by_role("region", name="stacks, top-down").locator("tbody tr").count() >= 1
        page.page.locator("[data-move=events]").click()
        lines = page.page.locator("#events tbody tr")
        assert lines.count() == 500 and "only in bins" in page.page.locator("#events h3").inner_text()
        assert page.complaints == []
