"""Ways to move the timeline: findings, places, keys, wheel, drag, search."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.report.browser import Opened
from traceview.model.analysis import Analysis


@pytest.fixture(scope="module")
def analysis(analysis_of: Callable[[str], Analysis]) -> Analysis:
    return analysis_of("serial")


def middle(page: Opened) -> tuple[float, float]:
    box = page.page.locator("#canvas").bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def shows(page: Opened, start: int, end: int) -> bool:
    first, last = page.view()
    return first <= start and end <= last and last - first <= 4 * max(end - start, 500)


def test_finding_moves_to_its_worst_place(page: Opened, analysis: Analysis) -> None:
    worst = analysis.findings[0].evidence[0]
    zero = analysis.trace.span.start
    assert not shows(page, worst.start_ns - zero, worst.end_ns - zero)
    page.page.locator("#cards .goto").first.click()
    page.settle()
    assert shows(page, worst.start_ns - zero, worst.end_ns - zero)
    lit = page.evaluate("[traceview.view.lit.start, traceview.view.lit.end]")
    assert lit == [worst.start_ns - zero, worst.end_ns - zero]
    assert page.page.locator(".label.lit").count() >= 1


def test_every_place_moves_the_timeline(page: Opened, analysis: Analysis) -> None:
    zero = analysis.trace.span.start
    finding = analysis.findings[1]
    buttons = page.page.locator(f"[data-finding={finding.id}] .places button")
    for number, place in enumerate(finding.evidence):
        buttons.nth(number).click()
        page.settle()
        assert shows(page, place.start_ns - zero, place.end_ns - zero)
        current = page.page.locator("#all .places [aria-current=true]")
        assert current.all_inner_texts() == [buttons.nth(number).inner_text()]


def test_keys(page: Opened) -> None:
    whole = page.view()
    page.page.locator("#stage").focus()
    for key in ("w", "ArrowUp"):
        before = page.view()
        after = page.press(key)
        assert before[0] < after[0] and after[1] < before[1]
    for forth, back in (("d", "a"), ("ArrowRight", "ArrowLeft")):
        before = page.view()
        moved = page.press(forth)
        assert moved[0] > before[0] and moved[1] - moved[0] == pytest.approx(before[1] - before[0])
        assert page.press(back) == pytest.approx(before)
    before = page.view()
    assert page.press("s")[0] < before[0]
    assert page.press("ArrowDown")[1] > before[1]
    page.press("w")
    assert page.press("Home") == pytest.approx(whole)


def test_wheel_keeps_the_moment_under_the_pointer(page: Opened) -> None:
    _, y = middle(page)
    box = page.page.locator("#canvas").bounding_box()
    assert box is not None
    share = 0.25
    before = page.view()
    pointed = before[0] + share * (before[1] - before[0])
    page.page.mouse.move(box["x"] + share * box["width"], y)
    page.page.keyboard.down("Control")
    page.page.mouse.wheel(0, -300)
    page.page.keyboard.up("Control")
    page.page.wait_for_function("([at]) => traceview.view.from > at", arg=[before[0] + 1])
    page.settle()
    after = page.view()
    assert after[1] - after[0] < before[1] - before[0]
    assert after[0] + share * (after[1] - after[0]) == pytest.approx(pointed, rel=1e-3)
    page.press("0")
    assert page.view() == pytest.approx(before)


def test_wheel_scrolls_the_page_unless_the_timeline_has_it(page: Opened) -> None:
    page.page.mouse.click(1, 1)
    x, y = middle(page)
    before, top = page.view(), page.evaluate("scrollY")
    page.page.mouse.move(x, y)
    page.page.mouse.wheel(0, 40)
    page.page.wait_for_function("([top]) => scrollY > top", arg=[top])
    assert page.view() == before and page.evaluate("document.getElementById('scroll').scrollTop") == 0
    page.reset()
    x, y = middle(page)
    page.page.mouse.click(x, y)
    page.page.mouse.wheel(0, -200)
    page.page.wait_for_function("([at]) => traceview.view.from > at", arg=[before[0]])
    page.page.keyboard.press("Home")
    page.settle()
    whole, top = page.view(), page.evaluate("scrollY")
    page.page.mouse.wheel(0, 2000)
    page.settle()
    assert page.view() == whole and page.evaluate("scrollY") == top
    page.reset()


def test_touchpad_scrolls_the_page_and_pans_sideways(page: Opened) -> None:
    page.evaluate("traceview.setView(100e6, 140e6)")
    page.page.mouse.click(1, 1)
    x, y = middle(page)
    before, top = page.view(), page.evaluate("scrollY + document.getElementById('scroll').scrollTop")
    page.page.mouse.move(x, y)
    for _ in range(12):  # two fingers down, with some drift
        page.page.mouse.wheel(1, 6)
    page.page.wait_for_function(
        "([top]) => scrollY + document.getElementById('scroll').scrollTop > top + 40", arg=[top]
    )
    assert page.view() == before
    for _ in range(5):
        page.page.mouse.wheel(9, 1)
    page.page.wait_for_function("([from]) => traceview.view.from > from", arg=[before[0]])
    page.settle()
    after = page.view()
    assert after[1] - after[0] == pytest.approx(before[1] - before[0])


def test_drag_and_buttons(page: Opened) -> None:
    page.page.locator("[data-move=in]").click()
    page.settle()
    before = page.view()
    x, y = middle(page)
    page.page.mouse.move(x, y)
    page.page.mouse.down()
    page.page.mouse.move(x - 100, y, steps=4)
    page.page.mouse.up()
    page.settle()
    after = page.view()
    assert after[0] > before[0] and after[1] - after[0] == pytest.approx(before[1] - before[0])
    page.page.locator("[data-move=left]").click()
    page.settle()
    assert page.view()[0] < after[0]


def test_hover_describes_a_mark(page: Opened, analysis: Analysis) -> None:
    copy = max(
        analysis.trace.operations.filter(analysis.trace.operations["class"] == "copy").iter_rows(named=True),
        key=lambda row: row["end"] - row["start"],
    )
    zero = analysis.trace.span.start
    page.evaluate("([from, to]) => traceview.setView(from, to)", [copy["start"] - zero, copy["end"] - zero])
    page.settle()
    y = page.evaluate("traceview.board.shown.find((row) => row.kind === 'stream').y + 8")
    box = page.page.locator("#canvas").bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + y)
    text = page.page.locator("#tip").inner_text()
    assert copy["name"] in text
    for word in ("start", "duration", "bytes", "bandwidth", "pageable", str(copy["correlation"])):
        assert word in text


def test_hover_names_the_cause_of_a_gap(page: Opened) -> None:
    page.evaluate(
        """() => {
          const marks = traceview.marksIn(traceview.board.shown.find((row) => row.kind === "idle").lanes[0].exact);
          traceview.setView(marks.start[5], marks.end[5]);
        }"""
    )
    page.settle()
    y = page.evaluate("traceview.board.shown.find((row) => row.kind === 'idle').y + 8")
    box = page.page.locator("#canvas").bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + y)
    text = page.page.locator("#tip").inner_text()
    assert text.startswith("idle until ")
    assert "host" in text


def test_click_on_exposed_time_names_what_follows_and_what_it_waits_for(page: Opened, analysis: Analysis) -> None:
    """The row has each exposed nanosecond with its cause, and a mark the operations around it."""
    marks = page.evaluate(
        """() => {
          const marks = traceview.marksIn(traceview.board.shown.find((row) => row.kind === "exposed").lanes[0].exact);
          const at = marks.awaited.findIndex((one) => one);
          traceview.setView(marks.start[at], marks.end[at]);
          const names = traceview.page.names, of = (numbers) => [...numbers].map((one) => names[one - 1] ?? "");
          const next = of([...marks.name].map((one) => one + 1));
          return { at, next, exposed: of(marks.exposed), awaited: of(marks.awaited),
            look: [...marks.look].map((one) => traceview.page.looks[one]),
            length: [...marks.start].map((start, i) => marks.end[i] - start) };
        }"""
    )
    sums: dict[str, int] = {}
    for look, length in zip(marks["look"], marks["length"], strict=True):
        sums[look] = sums.get(look, 0) + length
    [device] = analysis.devices
    expected: dict[str, int] = {}
    for row in device.tables["exposed_ranges"].rows:
        for cause, ns in row.exposed_causes.items():
            if ns:
                expected[f"exposed_{cause}"] = expected.get(f"exposed_{cause}", 0) + ns
    assert sums == expected
    page.settle()
    y = page.evaluate("traceview.board.shown.find((row) => row.kind === 'exposed').y + 5")
    box = page.page.locator("#canvas").bounding_box()
    assert box is not None
    page.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + y)
    text, at = page.page.locator("#panel").inner_text(), marks["at"]
    assert f"exposed until {marks['next'][at]}" in text and "which waits for" in text
    assert marks["exposed"][at] in text and marks["awaited"][at] in text
    assert marks["look"][at].removeprefix("exposed_").replace("_", " ") in text


def test_search_moves_from_match_to_match(page: Opened) -> None:
    search = page.page.locator("#search")
    search.fill("cudaDeviceSynchronize")
    search.press("Enter")
    page.settle()
    first = page.view()
    search.press("Enter")
    page.settle()
    assert page.view()[0] > first[0]
    assert page.page.locator("#found").inner_text().endswith("found")
    before = page.page.locator("#frame").bounding_box()
    search.fill("no such name")
    page.page.wait_for_function("() => document.getElementById('found').textContent.startsWith('no match')")
    search.fill("memcpy h2d")
    page.page.wait_for_function("() => document.getElementById('found').textContent === '20 found'")
    assert page.page.locator("#frame").bounding_box() == before


def test_folding_a_group(page: Opened) -> None:
    fold = page.page.locator("#labels .fold").first
    assert fold.get_attribute("aria-expanded") == "true"
    rows = page.page.locator("#labels .label").count()
    fold.click()
    page.settle()
    assert page.page.locator("#labels .label").count() < rows
    assert fold.get_attribute("aria-expanded") == "false"
    fold.click()
    page.settle()
    assert page.page.locator("#labels .label").count() == rows


def test_rows_are_pinned_and_hidden(page: Opened) -> None:
    labels = page.page.locator("#labels .label")
    every = [text for text in labels.all_inner_texts() if "more" not in text]
    streams = page.page.locator("#labels .row-stream")
    name = streams.last.locator(".name").inner_text()
    streams.last.hover()
    streams.last.locator(".tools button").first.click()
    page.settle()
    assert labels.first.inner_text().startswith(name)
    page.page.wait_for_function("() => location.hash.includes('pin=')")
    labels.first.hover()
    labels.first.locator(".tools button").last.click()
    page.settle()
    assert not labels.first.inner_text().startswith(name)
    page.page.locator("#labels .row-more button").first.click()
    streams.last.hover()
    x, _ = middle(page)
    box = streams.last.bounding_box()
    assert box is not None
    page.page.mouse.move(x, box["y"] + box["height"] / 2)
    page.press("h")
    assert [text for text in labels.all_inner_texts() if "more" not in text] == every


def test_folded_group_shows_its_work_and_the_strip_moves_the_view(page: Opened) -> None:
    fold = page.page.locator("#labels .fold").first
    fold.click()
    page.settle()
    assert page.evaluate("traceview.board.shown.find((item) => item.summary)?.lanes.length") == 3
    fold.click()
    page.evaluate("traceview.setView(0, 1e6)")
    page.page.locator("#overview").scroll_into_view_if_needed()
    strip = page.page.locator("#overview").bounding_box()
    assert strip is not None
    page.page.mouse.click(strip["x"] + strip["width"] / 2, strip["y"] + 8)
    page.settle()
    first, last = page.view()
    whole = page.evaluate("traceview.view.whole")
    assert (first + last) / 2 == pytest.approx(sum(whole) / 2, rel=0.01) and last - first == pytest.approx(1e6)


def test_tab_reaches_every_control(page: Opened) -> None:
    page.page.locator("h1").click()
    reached = set()
    for _ in range(40):
        page.page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"theme", "goto", "search", "stage"} <= reached


def test_lane_is_filled_to_its_share(page: Opened, analysis: Analysis) -> None:
    """Zoomed out, the filled part of the idle row is the idle part of the window."""
    filled = page.evaluate(
        """() => { const { y, h } = traceview.board.shown.find((row) => row.kind === "idle");
          const canvas = document.getElementById("canvas"), wide = canvas.width;
          const pixels = canvas.getContext("2d").getImageData(0, y + 1, wide, h - 3).data, colour = new Set();
          for (let i = 0; i < pixels.length; i += 4)  // the grid and the border of the row are grey
            if (pixels[i + 3] && Math.abs(pixels[i] - pixels[i + 2]) > 20) colour.add(i);
          const { from, to } = traceview.view;
          return colour.size / (pixels.length / 4) * (to - from); }"""
    )
    assert filled == pytest.approx(analysis.devices[0].gaps.total_ns, rel=0.15)
