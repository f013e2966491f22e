"""The charts show the analysis's figures, move the timeline, and are saved as PNG and CSV."""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator

from tests.captures import analyzed, shared
from tests.pages import inputs_of
from tests.report.browser import Opened, chart, opened
from traceview.model.analysis import Analysis, Iterations
from traceview.report.analysis.page import render

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
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def rows_of(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))


def test_iterations_are_stacked_by_part(page: Opened, analysis: Analysis) -> None:
    assert isinstance(analysis.iterations, Iterations)
    each = analysis.iterations.per_iteration
    shown = {trace["name"]: trace["y"] for trace in drawn(page, "What each iteration was made of")}
    assert shown["compute"] == pytest.approx([one.compute_ns / 1e6 for one in each])
    assert shown["exposed copy h2d"] == pytest.approx([one.exposed_h2d_ns / 1e6 for one in each])
    assert shown["idle: host"] == pytest.approx([one.idle["host"] / 1e6 for one in each])


def test_click_on_a_bar_moves_to_the_iteration(page: Opened, analysis: Analysis) -> None:
    assert isinstance(analysis.iterations, Iterations)
    figure = chart(page, "What each iteration was made of")
    box = figure.locator(".chart .bars .point").nth(3).bounding_box()
    assert box is not None
    page.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    one = analysis.iterations.per_iteration[3]
    assert goes_to(page, one.start_ns - analysis.trace.span.start, one.end_ns - analysis.trace.span.start)
    assert figure.locator(".said").inner_text().startswith(one.name)


def test_gaps_are_counted_by_length_and_cause(page: Opened, analysis: Analysis) -> None:
    causes = analysis.devices[0].gaps.causes
    shown = {trace["name"]: trace["y"] for trace in drawn(page, "Idle gaps by length") if trace["type"] == "bar"}
    assert set(shown) == {f"idle: {cause.replace('_', ' ')}" for cause, ns in causes.items() if ns}
    for name, column in shown.items():
        assert sum(column) == pytest.approx(causes[name[6:].replace(" ", "_")] / 1e6)


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
    [heat] = drawn(page, "Concurrent streams")
    for i, row in enumerate(together):
        for j, ns in enumerate(row):
            assert heat["z"][i][j] is None if i == j else heat["z"][i][j] == pytest.approx(ns / together[i][i])


@pytest.mark.parametrize("heading", ["Idle gaps by length", "Bandwidth of copies by size", "Concurrent streams"])
def test_keys_move_through_a_chart(page: Opened, heading: str) -> None:
    figure = chart(page, heading)
    stage, said = figure.locator(".chart"), figure.locator(".said")
    stage.focus()
    texts = []
    for key in ("End", "Home", "ArrowRight", "ArrowLeft"):
        stage.press(key)
        page.settle()
        texts.append(said.inner_text())
        assert stage.evaluate("(stage) => stage.layout.shapes.length") == 1
    assert all(texts) and texts[1] == texts[3] and len(set(texts)) == 3


def test_enter_moves_to_the_selected_place(page: Opened, analysis: Analysis) -> None:
    stage = chart(page, "Idle gaps by length").locator(".chart")
    stage.focus()
    stage.press("Home")
    stage.press("Enter")
    longest = inputs_of(analysis).charts.devices[0].gaps[0].longest
    assert goes_to(page, longest.start - analysis.trace.span.start, longest.end - analysis.trace.span.start)


def test_charts_are_saved_as_png(page: Opened) -> None:
    buttons = page.page.locator(".figure-head").get_by_role("button", name="Save as PNG")
    names = set()
    assert buttons.count() == 5
    for at in range(buttons.count()):
        name, data = saved(page, buttons.nth(at))
        names.add(name)
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", data[16:24])
        assert width == 2000 and height >= 960 and len(data) > 20_000
    assert names == {
        f"quad.{what}.png"
        for what in (
            "what_each_iteration_was_made_of",
            "kernel_time_by_module_and_op",
            "idle_gaps_by_length",
            "bandwidth_of_copies_by_size",
            "concurrent_streams",
        )
    }


def test_timeline_is_saved_as_png(page: Opened) -> None:
    name, data = saved(page, page.page.get_by_role("button", name="Save as PNG: Timeline"))
    assert name == "quad.timeline.png" and data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    canvas = page.evaluate("[traceview.view.width, traceview.view.height]")
    assert width > canvas[0] and height > canvas[1] and len(data) > 20_000


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
    _, data = saved(page, page.page.get_by_role("button", name="Save as CSV: Findings"))
    assert [(row["id"], int(row["cost_ns"]), row["advice"], row["code"]) for row in rows_of(data)] == [
        (one.id, one.cost_ns, one.advice, one.code) for one in analysis.findings
    ]
    figure = chart(page, "What each iteration was made of")
    figure.get_by_role("button", name="Table").click()
    _, data = saved(page, figure.get_by_role("button", name="Save as CSV"))
    assert [(row["iteration"], int(row["wall_ns"]), int(row["idle_host_ns"])) for row in rows_of(data)] == [
        (one.name, one.wall_ns, one.idle["host"]) for one in analysis.iterations.per_iteration
    ]
    figure.get_by_role("button", name="Table").click()


def test_table_of_a_chart_has_its_figures(page: Opened, analysis: Analysis) -> None:
    figure = chart(page, "Concurrent streams")
    button = figure.get_by_role("button", name="Table")
    assert button.get_attribute("aria-expanded") == "false" and not figure.locator("table").is_visible()
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    headings = figure.locator("th[scope=row]").all_inner_texts()
    busiest = sorted(analysis.devices[0].streams, key=lambda use: -use.busy_ns)
    assert headings == [use.label for use in busiest]
    button.click()


def test_keys_move_from_place_to_place(page: Opened, analysis: Analysis) -> None:
    places = [place for finding in analysis.findings for place in finding.evidence]
    zero = analysis.trace.span.start
    for place in places[:7]:
        page.page.keyboard.press("]")
        assert goes_to(page, place.start_ns - zero, place.end_ns - zero)
        assert page.page.locator("#all [aria-current=true]").inner_text() == place.text
    page.page.keyboard.press("[")
    assert goes_to(page, places[5].start_ns - zero, places[5].end_ns - zero)
    page.page.keyboard.press("]")
    assert goes_to(page, places[6].start_ns - zero, places[6].end_ns - zero)


def test_iterations_without_a_gpu_show_their_time(browser: Browser, tmp_path: Path) -> None:
    analysis = analyzed(shared("public/nsys2022.4_nvtx_textid_only.sqlite"))
    assert isinstance(analysis.iterations, Iterations)
    with opened(browser, render(inputs_of(analysis)), tmp_path) as page:
        [trace] = drawn(page, "What each iteration was made of")
        assert trace["name"] == "time on the host"
        assert sum(trace["y"]) * 2 == pytest.approx(sum(one.wall_ns for one in analysis.iterations.per_iteration) / 1e6)
        assert page.complaints == []


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
    inputs = inputs._replace(analysis=replace(analysis, iterations=many), charts=charts)
    with (
        TemporaryDirectory() as folder,
        opened(browser, render(inputs), Path(folder)) as page,
    ):
        traces = drawn(page, "What each iteration was made of")
        assert len(traces[0]["x"]) == len(charts.iterations) == 200
        compute = next(trace["y"] for trace in traces if trace["name"] == "compute")
        assert sum(compute) * 5 == pytest.approx(sum(one.compute_ns for one in each) / 1e6)
        assert page.complaints == []
