"""Actions on the timeline: select, step, measure, box zoom, link, fold, filter, reorder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from playwright.sync_api import Browser

from tests.pages import inputs_of, long_analysis
from tests.report.browser import READY, Opened, opened
from traceview import intervals
from traceview.measure.queues import NEAR_END
from traceview.model.analysis import Analysis
from traceview.model.trace import Trace
from traceview.report.analysis.page import render

KIND = "(kind) => traceview.board.shown.find((row) => row.kind === kind && row.lanes.length)"


@pytest.fixture(scope="module")
def analysis(analysis_of: Callable[[str], Analysis]) -> Analysis:
    return analysis_of("dual")


def point_at(page: Opened, row: dict[str, Any], start: int, end: int) -> tuple[float, float]:
    """Bring a stretch of a row into the middle third of the view; return the pixel of its middle."""
    length = max(end - start, 200)
    page.evaluate("([from, to]) => traceview.setView(from, to)", [start - length, end + length])
    page.settle()
    page.page.locator("#stage").scroll_into_view_if_needed()
    box = page.page.locator("#canvas").bounding_box()
    assert box is not None
    first, last = page.view()
    middle = (start + end) / 2
    return box["x"] + box["width"] * (middle - first) / (last - first), box["y"] + row["y"] + row["h"] / 2


def row_of(page: Opened, kind: str) -> dict[str, Any]:
    row = page.evaluate(f"(kind) => {{ const {{ id, y, h }} = ({KIND})(kind); return {{ id, y, h }}; }}", kind)
    assert isinstance(row, dict)
    return row


def a_kernel(analysis: Analysis, row: dict[str, Any], at: int = 900) -> dict[str, Any]:
    frame = analysis.trace.operations
    frame = frame.filter((frame["stream"] == int(row["id"][2:])) & frame["launch"].is_not_null())
    return frame.row(at, named=True)


def test_click_shows_launch_and_ranges(page: Opened, analysis: Analysis) -> None:
    row = row_of(page, "stream")
    kernel = a_kernel(analysis, row)
    launch = analysis.trace.api.row(kernel["launch"], named=True)
    thread = analysis.trace.threads.row(launch["thread"], named=True)
    zero = analysis.trace.span.start
    page.page.mouse.click(*point_at(page, row, kernel["start"] - zero, kernel["end"] - zero))
    page.settle()
    text = page.page.locator("#panel").inner_text()
    for word in (
        kernel["name"],
        launch["name"],
        thread["name"],
        "launched by",
        "NVTX",
        "iteration",
        str(kernel["correlation"]),
    ):
        assert word in text
    [partner] = page.evaluate("traceview.selected.partners.map(({ marks, i }) => [marks.start[i], marks.end[i]])")
    assert partner == [launch["start"] - zero, launch["end"] - zero]
    page.page.get_by_role("button", name="Go to the launch").click()
    page.settle()
    first, last = page.view()
    assert first < launch["start"] - zero and kernel["end"] - zero < last
    assert launch["name"] in page.page.locator("#panel h3").inner_text()
    page.press("l")
    assert kernel["name"] in page.page.locator("#panel h3").inner_text()
    page.press("Escape")
    assert page.page.locator("#panel").is_hidden()


def test_keys_step_along_the_stream(page: Opened, analysis: Analysis) -> None:
    row = row_of(page, "stream")
    frame = analysis.trace.operations.filter(analysis.trace.operations["stream"] == int(row["id"][2:]))
    zero = analysis.trace.span.start
    chosen = "traceview.selected.hit.marks.start[traceview.selected.hit.i]"
    page.page.mouse.click(*point_at(page, row, frame["start"][500] - zero, frame["end"][500] - zero))
    page.page.mouse.move(1, 1)
    for key, at in ((".", 501), (".", 502), (",", 501), (",", 500), (",", 499)):
        page.press(key)
        start = frame["start"][at] - zero
        assert page.evaluate(chosen) == start
        first, last = page.view()
        assert first <= start <= last


def measured(page: Opened) -> dict[str, Any]:
    result = page.evaluate("traceview.area.result")
    assert isinstance(result, dict)
    return result


def union(analysis: Analysis, of: str, start: int, end: int) -> intervals.Intervals:
    frame = analysis.trace.operations
    frame = frame.filter(frame["class"] == of)
    return intervals.clip(intervals.union(frame["start"].to_numpy(), frame["end"].to_numpy()), start, end)


def agrees(analysis: Analysis, found: dict[str, Any]) -> None:
    zero = analysis.trace.span.start
    start, end = found["from"] + zero, found["to"] + zero
    [device] = found["devices"]
    compute, copies = (union(analysis, of, start, end) for of in ("compute", "copy"))
    frame = analysis.trace.operations
    busy = intervals.clip(intervals.union(frame["start"].to_numpy(), frame["end"].to_numpy()), start, end)
    window = analysis.devices[0].window
    assert device["compute"] == intervals.length(compute)
    assert device["copies"] == intervals.length(copies)
    assert device["hidden"] == intervals.overlap_length(compute, copies)
    assert device["idle"] == min(end, window.end) - max(start, window.start) - intervals.length(busy)
    begun = frame.filter((frame["start"] >= start) & (frame["start"] < end))
    assert device["kernels"] == (begun["class"] == "compute").sum()
    assert device["copy_count"] == (begun["class"] == "copy").sum()


def agrees_by_name(page: Opened, analysis: Analysis) -> None:
    """Names of an area of whole bins: the sums of the kernels and ranges, the plain way."""
    found = page.evaluate(
        """() => { const { from, to, exact, tables } = traceview.area.result.names;
          const sum = (table) => [...tables[table].values()].reduce((sum, one) => sum + one.time, 0);
          return { from, to, exact, kernel: sum("kernel"), range: sum("range") }; }"""
    )
    assert found["exact"] is False
    start, end = (found[edge] + analysis.trace.span.start for edge in ("from", "to"))
    work = analysis.trace.operations
    for table, frame in (("kernel", work.filter(work["class"] == "compute")), ("range", analysis.trace.ranges)):
        assert found[table] == (frame["end"].clip(start, end) - frame["start"].clip(start, end)).sum()


def test_measure_between_two_points_is_exact(page: Opened, analysis: Analysis) -> None:
    page.evaluate("traceview.setView(100e6, 140e6)")
    page.settle()
    box = page.page.locator("#canvas").bounding_box()
    assert box is not None
    for share in (0.2, 0.71):
        page.page.mouse.move(box["x"] + share * box["width"], box["y"] + 40)
        page.press("m")
    page.page.wait_for_selector("#measured")
    found = measured(page)
    assert found["exact"] is True
    assert found["from"] == pytest.approx(108e6, abs=1e5) and found["to"] == pytest.approx(128.4e6, abs=1e5)
    agrees(analysis, found)
    assert "exact to the nanosecond" in page.page.locator("#panel").inner_text()
    page.press("Escape")
    assert page.page.locator("#measured").count() == 0


def test_keyboard_measures_the_visible_range(page: Opened, analysis: Analysis) -> None:
    page.evaluate("traceview.setView(50e6, 60e6)")
    page.settle()
    page.press("m")
    page.page.wait_for_selector("#measured")
    found = measured(page)
    assert [found["from"], found["to"]] == [50_000_000, 60_000_000]
    agrees(analysis, found)


def test_measure_from_bins_ends_at_their_borders(browser: Browser, tmp_path: Path) -> None:
    analysis = long_analysis()
    with opened(browser, render(inputs_of(analysis), 1_080_000), tmp_path) as page:
        page.page.wait_for_selector("html[data-whole]", state="attached")
        assert page.evaluate("traceview.page.timeline.whole") is False
        # The stretch between the places that are in full.
        start, end = page.evaluate(
            """() => { const { starts, ends } = traceview.board.cover;
              const gaps = ends.map((end, i) => [end, starts[i + 1] ?? traceview.page.timeline.span[1]]);
              return gaps.sort((a, b) => b[1] - b[0] - a[1] + a[0])[0]; }"""
        )
        page.evaluate("([from, to]) => traceview.setView(from, to)", [start + 10, end - 10])
        page.settle()
        page.press("m")
        page.page.wait_for_selector("#measured")
        found = measured(page)
        assert found["exact"] is False
        agrees(analysis, found)
        assert "bins" in page.page.locator("#panel").inner_text()
        page.evaluate("traceview.setView(...traceview.view.whole)")
        page.settle()
        page.press("m")
        page.page.wait_for_selector("[data-table=kernel]")
        agrees_by_name(page, analysis)
        assert page.complaints == []


def test_link_restores_the_view(page: Opened, browser: Browser, analysis: Analysis, tmp_path: Path) -> None:
    page.evaluate("traceview.setView(123456789, 125000001)")
    page.page.wait_for_function("() => location.hash.startsWith('#t=123456789')")
    fragment = page.evaluate("location.hash")
    assert fragment == "#t=123456789..125000001"
    with opened(browser, render(inputs_of(analysis)), tmp_path) as other:
        other.page.goto((tmp_path / "page.html").as_uri() + fragment)
        other.page.reload()
        other.page.wait_for_selector(READY, state="attached")
        assert other.view() == (123456789, 125000001)
        other.evaluate("location.hash = '#t=5000..9000&row=n:0:0'")
        other.settle()
        assert other.view() == (5000, 9000)
        for hostile in ("#t=9..5", "#t=x..y", "#t=1..2&row=%3Cimg%3E", "#t=1..99999999999999999999"):
            other.evaluate("(hash) => { location.hash = hash; }", hostile)
            other.settle()
        assert other.complaints == []
    page.press("Escape")
    page.page.locator("[data-move=fit]").click()
    page.page.wait_for_function("() => location.hash === ''")


def test_n_steps_through_the_matches(page: Opened) -> None:
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.page.keyboard.type("memcpy h2d")
    page.page.keyboard.press("Enter")
    page.settle()
    page.press("Escape")
    first = page.evaluate("traceview.linked.at")
    page.press("n")
    assert page.evaluate("traceview.linked.at") == first + 1
    assert page.page.locator("#panel h3").inner_text() == "memcpy h2d"
    page.press("N")
    assert page.evaluate("traceview.linked.at") == first
    assert page.page.locator("#found").inner_text() == "1 of 20 found"


def test_help_lists_the_keys_and_restores_the_focus(page: Opened) -> None:
    page.page.locator("#stage").focus()
    page.press("?")
    assert page.page.locator("#help").is_visible()
    assert page.page.locator("#keys tr").count() > 12
    page.page.set_viewport_size({"width": 1440, "height": 400})
    page.press("Escape")
    page.press("?")
    assert page.evaluate(
        "(({ scrollTop, scrollHeight, clientHeight }) => [scrollTop, scrollHeight > clientHeight])(help)"
    ) == [0, True]
    assert page.page.locator("#help-title").bounding_box()["y"] >= 0
    page.page.set_viewport_size({"width": 1440, "height": 900})
    page.press("Escape")
    assert not page.page.locator("#help").is_visible()
    assert page.evaluate("document.activeElement.id") == "stage"


def labels(page: Opened) -> list[str]:
    """The labels without the buttons that a label shows under the pointer or with the focus."""
    texts = page.page.locator("#labels .label").all_inner_texts()
    return [text.replace("▾ ", "").split("\n⤒")[0] for text in texts]


def test_rows_are_filtered(page: Opened) -> None:
    every = labels(page)
    page.page.locator("#filter").fill("stream")
    page.settle()
    assert [text for text in labels(page) if text.startswith("stream")] == [t for t in every if t.startswith("stream")]
    assert len(labels(page)) < len(every)
    page.page.locator("#filter").fill("")
    page.settle()
    assert labels(page) == every


def test_rows_are_reordered_by_key_and_by_dragging(page: Opened) -> None:
    every = labels(page)
    group = page.page.locator("#labels .fold")
    group.nth(1).focus()
    page.page.keyboard.press("Alt+ArrowUp")
    page.settle()
    assert labels(page) != every and sorted(labels(page)) == sorted(every)
    page.page.keyboard.press("Alt+ArrowDown")
    page.settle()
    assert labels(page) == every
    streams = page.page.locator("#labels .row-stream .name")
    one, two = streams.all_inner_texts()[:2]
    page.page.locator("#labels .row-stream").nth(1).drag_to(page.page.locator("#labels .row-stream").nth(0))
    page.settle()
    assert streams.all_inner_texts()[:2] == [two, one]
    page.page.locator("#labels .row-stream").nth(1).drag_to(page.page.locator("#labels .row-stream").nth(0))
    page.settle()
    assert labels(page) == every


def test_folded_group_shows_its_first_row(page: Opened) -> None:
    every = labels(page)
    part = page.page.locator("#labels .name[aria-expanded]").first
    part.click()
    page.settle()
    assert 0 < len(every) - len(labels(page)) < 10
    assert part.get_attribute("aria-expanded") == "false"
    part.click()
    page.settle()
    assert labels(page) == every


def test_projected_ranges_cover_their_work(page: Opened, analysis: Analysis) -> None:
    frame = inputs_of(analysis).projected
    found = page.evaluate(
        """() => traceview.board.groups.flatMap((group) => group.rows).filter((row) => row.kind === "projected")
          .flatMap(({ lanes: [lane] }) => { const marks = traceview.marksIn(lane.exact);
            return [...Array(marks.n).keys()].map((i) => [marks.start[i], marks.end[i], marks.operations[i]]); })"""
    )
    zero = analysis.trace.span.start
    assert sorted(map(tuple, found)) == sorted(
        (start - zero, end - zero, count)
        for start, end, count in frame.select("start", "end", "operations").iter_rows()
    )
    assert len(found) > 50


def click_event(page: Opened, row: str, start: int, end: int) -> None:
    """Click the middle of an event of a row, after the view has moved there."""
    page.evaluate("([from, to]) => traceview.setView(from, to)", [start - 1e5, end + 1e5])
    page.settle()
    place = page.evaluate(
        """(id) => { const { y, h } = traceview.board.shown.find((row) => row.id === id);
          const scroll = document.getElementById("scroll");
          scroll.scrollTop = y - 40;
          const box = document.getElementById("canvas").getBoundingClientRect();
          return [box.left + box.width / 2, box.top + y + h / 2 - scroll.scrollTop]; }""",
        row,
    )
    page.settle()
    page.page.mouse.click(*place)
    page.settle()


def awaited_operations(trace: Trace) -> list[tuple[int, int, int]]:
    """Return the operations that wait for another stream, as (row, row of the awaited one, ns), by a plain loop."""
    work = trace.operations
    start, end, stream, device, launch = (work[n].to_list() for n in ("start", "end", "stream", "device", "launch"))
    returned = trace.api["end"].to_list()
    found, ended = [], dict.fromkeys(stream, 0)
    for row in range(len(work)):
        own, ended[stream[row]] = ended[stream[row]], end[row]
        if launch[row] is None:
            continue
        before = [at for at in range(max(0, row - 60), row) if device[at] == device[row] and end[at] <= start[row]]
        ready, last = max(own, returned[launch[row]]), max(before, key=lambda at: end[at], default=row)
        if end[last] > ready and stream[last] != stream[row] and start[row] - end[last] <= NEAR_END:
            found.append((row, last, end[last] - ready))
    return found


def test_operation_leads_to_what_it_waited_for(
    browser: Browser, analysis_of: Callable[[str], Analysis], tmp_path: Path
) -> None:
    """Each wait of 20 µs that the page shows follows a cudaStreamWaitEvent, which the page does not read."""
    analysis = analysis_of("ddp2")
    trace, zero = analysis.trace, analysis.trace.span.start
    waits = sorted(awaited_operations(trace), key=lambda wait: -wait[2])
    long = [wait for wait in waits if wait[2] > 20_000]
    events = trace.api.with_row_index().filter(pl.col("name").cast(pl.String).str.contains("StreamWaitEvent"))
    for row, _, _ in long:
        launch = trace.operations["launch"][row]
        thread = trace.api["thread"][launch]
        launches = trace.operations.filter(pl.col("launch") < launch)["launch"]
        earlier = max(at for at in launches.to_list() if trace.api["thread"][at] == thread)
        assert len(events.filter((pl.col("thread") == thread) & pl.col("index").is_between(earlier, launch)))
    assert len(long) > 10
    with opened(browser, render(inputs_of(analysis)), tmp_path) as page:
        for row, awaited, ns in long[:3]:
            one, other = (trace.operations.row(at, named=True) for at in (row, awaited))
            click_event(page, f"s:{one['stream']}", one["start"] - zero, one["end"] - zero)
            page.page.wait_for_function("() => traceview.selected?.producer")
            found = page.evaluate(
                "(({ row, marks, i, wait }) => [row.id, marks.start[i], wait])(traceview.selected.producer)"
            )
            assert found == [f"s:{other['stream']}", other["start"] - zero, ns]
            assert f"waited for\n{other['name']} on" in page.page.locator("#panel").inner_text()
        page.page.get_by_role("button", name="Go to what it waited for").click()
        page.settle()
        assert page.evaluate("(({ item, marks, i }) => [item.id, marks.start[i]])(traceview.selected.hit)") == found[:2]
        page.press("Escape")
        assert page.evaluate("traceview.selected.producer") is None and page.complaints == []


def test_wait_of_the_host_leads_to_what_it_waited_for(page: Opened, analysis: Analysis) -> None:
    trace, zero = analysis.trace, analysis.trace.span.start
    work = trace.operations.sort("end")
    waits = trace.api.filter(pl.col("role") == "sync").sort("end")
    waits = waits.join_asof(work.select(pl.col("end").alias("done"), "stream"), left_on="end", right_on="done")
    wait = waits.filter(pl.col("done") > pl.col("start")).row(-1, named=True)
    click_event(page, f"t:{wait['thread']}", wait["start"] - zero, wait["end"] - zero)
    assert page.evaluate("(({ row, marks, i }) => [row.id, marks.end[i]])(traceview.selected.producer)") == [
        f"s:{wait['stream']}",
        wait["done"] - zero,
    ]


def test_collective_leads_to_that_of_the_other_gpu(
    browser: Browser, analysis_of: Callable[[str], Analysis], tmp_path: Path
) -> None:
    """Arrows join a collective with the same one on the other GPU, which overlaps it in time."""
    analysis = analysis_of("ddp2")
    work, zero = analysis.trace.operations, analysis.trace.span.start
    work = work.filter(work["class"] == "communication")
    here, there = (work.filter(work["device"] == device).sort("start") for device in work["device"].unique().sort())
    assert len(here) == len(there)
    chosen = here.row(len(here) // 2, named=True)
    start, end = (chosen[edge] - zero for edge in ("start", "end"))
    with opened(browser, render(inputs_of(analysis)), tmp_path) as page:
        click_event(page, f"s:{chosen['stream']}", start, end)
        found = page.evaluate("traceview.selected.peers.map(({ row, marks, i }) => [row.group.label, marks.start[i]])")
        assert found == [["GPU 1", there["start"][len(here) // 2] - zero]]  # both run the same collectives in turn
        later = there["start"][len(here) // 2] - chosen["start"]
        text = page.page.locator("#panel").inner_text()
        assert ("for GPU 1, the last of 2 GPUs" if later > 0 else "the others wait for this one") in text
        page.press("Escape")
        assert page.evaluate("traceview.selected.peers") == [] and page.complaints == []
