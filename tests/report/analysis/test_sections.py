"""The page holds names as text and each nanosecond once, is reproducible, and holds no private data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.captures import ALL, analyzed, sample, shared
from tests.made_trace import made_trace
from tests.pages import inputs_of, long_analysis, page_of
from tests.report.browser import opened
from tests.report.hostile import IMAGE, NAMES, QUOTES, SCRIPT, hostile_trace
from traceview.model.analysis import Analysis
from traceview.model.findings import Finding, Place
from traceview.model.whatif import WhatIf
from traceview.pipeline import analyze
from traceview.replay.prediction import whatif
from traceview.report.analysis.answer import finding_lists
from traceview.report.analysis.page import render, sections


def hostile_analysis() -> Analysis:
    analysis = analyze(hostile_trace())
    place = Place(QUOTES + IMAGE, 500_000, 900_000, device=SCRIPT, stream=0, thread=0)
    finding = Finding("made", "high", SCRIPT, (place,), 1000, IMAGE, code=SCRIPT)
    return replace(analysis, findings=(finding, *analysis.findings))


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, render(inputs_of(hostile_analysis())), tmp_path) as page:
        assert page.complaints == []
        assert page.evaluate("window.owned") is None
        assert page.evaluate("document.images.length") == 0
        assert page.page.locator("h1").inner_text() == f"{IMAGE}.sqlite"
        assert page.page.locator("#cards .goto").first.inner_text().endswith(f"? {SCRIPT}")
        page.page.locator("#cards summary").first.click()
        assert page.page.locator("#cards pre").first.inner_text() == SCRIPT
        assert IMAGE in page.page.locator("#labels").inner_text()
        assert SCRIPT in page.page.locator("#lacks").inner_text()
        assert set(NAMES) <= set(page.evaluate("traceview.page.names"))
        box = page.page.locator("#canvas").bounding_box()
        assert box is not None
        for y in range(10, int(box["height"]), 20):
            page.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + y)
        page.page.locator("#cards .goto").first.click()
        page.page.locator(".chart").first.hover()
        page.settle()
        assert page.evaluate("window.owned") is None
        assert page.evaluate("document.images.length") == 0
        assert page.complaints == []


def test_same_analysis_same_bytes() -> None:
    path = sample("dual.sqlite")
    assert render(inputs_of(analyzed(path))) == render(inputs_of(analyze(path)))


@pytest.mark.parametrize("name", [name for name in ALL if "nvtx_textid_only" not in name])
def test_parts_add_up_to_the_window(name: str) -> None:
    analysis = analyzed(shared(name))
    content = sections(inputs_of(analysis))
    for device, use in zip(content["devices"], analysis.devices, strict=True):
        views = device["views"]
        figures = [use] if use.steady.window == use.window else [use.steady, use]
        run = max(analysis.run.length, use.window.length)
        assert [view["window_ns"] for view in views] == [run if part is use else part.window.length for part in figures]
        for view, part in zip(views, figures, strict=True):
            parts = {each["look"]: each["ns"] for each in view["parts"]}
            assert sum(parts.values()) == view["window_ns"]
            idle = sum(ns for look, ns in parts.items() if look.startswith("idle")) + parts.get("profiler", 0)
            assert idle == part.idle_ns and parts.get("outside", 0) == view["window_ns"] - part.window.length


def finding_costs(analysis: Analysis) -> list[tuple[str, int, float | None]]:
    return [(finding.title, finding.cost_ns, finding.unprofiled_cost_fraction) for finding in analysis.findings]


def test_steady_part_comes_first_and_the_window_on_a_click(browser: Browser, tmp_path: Path) -> None:
    path = sample("ddp2.sqlite")
    analysis, whole = analyzed(path), analyzed(path, whole=True)
    for shown, other in ((analysis, whole), (whole, analysis)):
        assert finding_costs(inputs_of(shown).analyses[1]) == finding_costs(other) != finding_costs(shown)
    with opened(browser, render(inputs_of(analysis)), tmp_path) as page:
        assert page.page.locator("#answer-title").inner_text() == analysis.answer.text
        page.page.get_by_role("combobox", name="Group the kernels on GPU 0").select_option("family")
        head, line = page.page.locator("#figures .device-head").first, page.page.locator(".device-line").first
        assert "in the counted iterations" in (head.text_content() or "")
        assert line.inner_text().split()[-2:] == ["29.2%", "compute"]
        basis = page.page.locator("#figures")
        assert " lie outside the counted iterations, " in analysis.answer.text
        basis.locator("summary").click()
        assert "lie before" not in basis.inner_text()  # the answer states it
        shares = page.page.locator("section", has_text="Idle time by cause on GPU 0").locator("td:nth-child(3)")
        first = shares.first.inner_text()
        steady = page.evaluate("traceview.page.opens")
        assert page.evaluate("[traceview.view.from, traceview.view.to]") == steady
        assert "#t=" not in page.page.url
        page.page.locator("#covers button").nth(1).click()
        assert "in the run" in (head.text_content() or "")
        assert line.inner_text().split()[-2:] == ["1.0%", "compute"] and shares.first.inner_text() != first
        assert page.page.locator("#answer-title").inner_text() == whole.answer.text
        lists = finding_lists(whole).values()
        titles = [finding.title.replace("`", "") for findings in lists for finding in findings]
        shown = page.page.locator("#all .finding h3").all_text_contents()
        assert shown == titles
        for card, title in zip(page.page.locator("#cards .card").all_inner_texts(), titles, strict=False):
            assert title.partition(" (")[0] in card
        assert page.page.locator("#findings-title").inner_text() == "All findings, from first to last GPU work"
        _, _, families = (grouping for grouping in inputs_of(whole).charts.devices[0].kernels[:3])
        counts = page.page.locator("#kernels .kernels").first.locator("tbody tr > :nth-child(5)").all_inner_texts()
        assert counts == [f"{group.count:,}" for group in families.groups]
        page.page.locator("#cards .goto").first.click()
        assert whole.findings[0].evidence[0].text in page.page.locator("#panel").inner_text()
        page.page.locator("button[data-move=fit]").click()
        page.settle()
        assert page.evaluate("traceview.view.to - traceview.view.from") > 20 * (steady[1] - steady[0])
    with opened(browser, render(inputs_of(whole)), tmp_path) as page:
        assert "in the run" in (page.page.locator("#figures .device-head").first.text_content() or "")
        assert page.evaluate("traceview.page.opens") is None


def test_timeline_opens_on_the_work_of_a_long_capture(browser: Browser, tmp_path: Path) -> None:
    work = [(start, start + 1000, "compute", 0, None) for start in (9_000_000, 9_400_000, 9_900_000)]
    analysis = analyze(made_trace(work, api=[(0, 100, "api", 0)]))
    with opened(browser, render(inputs_of(analysis)), tmp_path) as page:
        first, last = page.view()
        assert 8_900_000 < first < 9_000_000 and 9_901_000 < last < 10_000_000
        page.page.locator("[data-move=fit]").click()
        assert page.view()[0] < 100


def test_page_has_no_private_data(analysis_of: Callable[[str], Analysis]) -> None:
    html = page_of("dual")
    assert str(sample("dual.sqlite").parent) not in html
    assert "dual.sqlite" in html


def test_short_kernel_alone_is_visible(browser: Browser, tmp_path: Path) -> None:
    second = 1_000_000_000
    trace = made_trace(
        [
            (0, 1000, "compute", 0, None),
            (second // 2, second // 2 + 2000, "compute", 0, None),
            (second, second + 1000, "compute", 0, None),
        ]
    )
    painted = """() => {
      const canvas = document.getElementById("canvas");
      const row = traceview.board.shown.find((one) => one.kind === "stream");
      const [r, g, b] = [1, 3, 5].map((at) =>
        parseInt(getComputedStyle(document.documentElement).getPropertyValue("--compute").slice(at, at + 2), 16));
      const from = Math.floor(canvas.width * 0.45), width = Math.floor(canvas.width * 0.1);
      const data = canvas.getContext("2d").getImageData(from, row.y, width, row.h).data;
      const near = (at) => Math.abs(data[at] - r) + Math.abs(data[at + 1] - g) + Math.abs(data[at + 2] - b) < 30;
      const at = (x, y) => 4 * (y * width + x);
      const column = (x) => [...Array(row.h).keys()].some((y) => near(at(x, y)) && data[at(x, y) + 3] > 150);
      return [...Array(width).keys()].filter(column).length;
    }"""
    with opened(browser, render(inputs_of(analyze(trace))), tmp_path) as page:
        assert page.evaluate(painted) == 1


def test_page_beyond_the_budget_is_reported(browser: Browser, tmp_path: Path) -> None:
    html = render(inputs_of(long_analysis()), 1_380_000)
    assert len(html) <= 1_380_000
    with opened(browser, html, tmp_path) as page:
        assert page.complaints == []
        notice = page.page.locator("#summarised")
        assert notice.is_visible()
        assert notice.inner_text().startswith("Summarised: ")
        assert page.marks() > 1000
        events = page.evaluate("traceview.page.timeline.events")
        # Every level of every row stands for all of its events, whatever it merges.
        counted = page.evaluate(
            """traceview.board.groups.flatMap((one) => one.rows)
              .filter((row) => ["stream", "call", "range"].includes(row.kind))
              .map(({ lanes, events }) => [events, ...lanes
                .flatMap((lane) => [...lane.levels, ...(lane.whole ? [lane.exact] : [])])
                .map((one) => traceview.marksIn(one))
                .map((marks) => [...Array(marks.n).keys()].reduce((n, i) => n + traceview.eventCount(marks, i), 0))])"""
        )
        assert sum(row[0] for row in counted) == events > 100_000
        assert all(set(row) == {row[0]} for row in counted)
        assert any(len(row) > 2 for row in counted)


def test_predictions_stand_on_the_cards_of_their_findings(analysis_of: Callable[[str], Analysis]) -> None:
    analysis = analysis_of("serial")
    result = whatif(analysis)
    assert isinstance(result, WhatIf)
    content = sections(inputs_of(analysis), result)
    predicted = {prediction.change: prediction for prediction in result.predictions}
    shown = {finding["gain"]["change"]: finding["gain"] for finding in content["findings"]}
    pin, gain = predicted["pin"], shown["pin"]
    assert (gain["of_ns"], gain["of_ns"] - gain["ns"]) == (result.base_ns, pin.iteration_ns)
    assert (gain["of_ns"] - gain["high_ns"], gain["of_ns"] - gain["low_ns"]) == (pin.low_ns, pin.high_ns)
    rows = content["predictions"]["rows"]
    alone = {row["title"]: (row["ns"], row["low"], row["high"]) for row in rows if len(row["changes"]) == 1}
    assert alone == {one.title: (one.iteration_ns, one.low_ns, one.high_ns) for one in result.predictions}
    without = sections(inputs_of(analysis))
    assert {tuple(row["changes"]) for row in without["predictions"]["rows"]} <= {tuple(row["changes"]) for row in rows}
    assert without["findings"] == content["findings"]
