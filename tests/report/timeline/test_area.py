"""An area of the timeline: figures by name, of some rows, and of two areas side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from tests.report.browser import Opened
from traceview.model.analysis import Analysis


@pytest.fixture(scope="module")
def analysis(analysis_of: Callable[[str], Analysis]) -> Analysis:
    return analysis_of("dual")


def drag(page: Opened, area: str, first: tuple[float, float], last: tuple[float, float]) -> dict[str, Any]:
    """Drag over an element, from one place to another (share of the width, pixels from the top); return the result."""
    page.page.locator(area).scroll_into_view_if_needed()
    box = page.page.locator(area).bounding_box()
    assert box is not None
    for act, (x, y) in (("down", first), ("up", last)):
        page.page.mouse.move(box["x"] + x * box["width"], box["y"] + y, steps=3)
        getattr(page.page.mouse, act)()
    page.page.wait_for_function("() => traceview.area.result")
    result = page.evaluate(
        """() => { const { from, to, exact, rows, names } = traceview.area.result;
          const named = (sums) => [...sums].map(([at, sum]) => [traceview.page.names[at], sum.time, sum.started]);
          const tables = Object.entries(names.tables).map(([table, sums]) => [table, named(sums)]);
          return { from, to, exact, rows, names: { ...names, tables: Object.fromEntries(tables) } }; }"""
    )
    assert isinstance(result, dict)
    return result


def sums_by_name(frame: pl.DataFrame, start: int, end: int) -> list[tuple[str, int, int]]:
    """Return name, ns inside [start, end) and events that start there, the plain way."""
    clipped = pl.min_horizontal("end", pl.lit(end)) - pl.max_horizontal("start", pl.lit(start))
    begun = (pl.col("start") >= start) & (pl.col("start") < end)
    frame = frame.filter((clipped > 0) | begun).group_by(pl.col("name").cast(pl.String))
    return sorted(frame.agg(clipped.clip(0).sum(), begun.sum().alias("begun")).rows())


def test_drag_on_the_ruler_sums_every_row_by_name(page: Opened, analysis: Analysis) -> None:
    before = page.view()
    found = drag(page, "#axis", (0.25, 10), (0.5, 12))
    length = before[1] - before[0]
    assert (found["from"], found["to"]) == pytest.approx(
        (before[0] + 0.25 * length, before[0] + 0.5 * length), rel=0.01
    )
    assert page.view() == before and found["rows"] is None and found["exact"] and found["names"]["exact"]
    start, end = (found[edge] + analysis.trace.span.start for edge in ("from", "to"))
    work = analysis.trace.operations
    copies = work["class"].is_in(["copy", "memset"])
    tables = found["names"]["tables"]
    for table, frame in (
        ("kernel", work.filter(~copies)),
        ("copy", work.filter(copies)),
        ("call", analysis.trace.api),
        ("range", analysis.trace.ranges),
    ):
        assert sorted(map(tuple, tables[table])) == sums_by_name(frame, start, end)
    text = page.page.locator("[data-table=kernel]").inner_text()
    assert max(tables["kernel"], key=lambda row: row[1])[0][:20] in text
    assert page.page.locator("[data-table=idle]").count() == 1
    page.press("f")
    first, last = page.view()
    assert first < found["from"] < found["to"] < last and last - first < 1.2 * (found["to"] - found["from"])


def test_area_of_one_row_compared_with_another(page: Opened, analysis: Analysis) -> None:
    row = page.evaluate(
        "(({ id, y, h }) => ({ id, y, h }))(traceview.board.shown.find((row) => row.kind === 'stream'))"
    )
    page.page.keyboard.down("Shift")
    middle = row["y"] + row["h"] / 2
    first = drag(page, "#canvas", (0.2, middle - 2), (0.3, middle + 2))
    page.press("c")
    second = drag(page, "#canvas", (0.4, middle - 2), (0.5, middle + 2))
    page.page.keyboard.up("Shift")
    assert first["rows"] == second["rows"] == [row["id"]]
    assert set(second["names"]["tables"]) <= {"kernel", "copy", "row"}
    work = analysis.trace.operations
    work = work.filter((work["stream"] == int(row["id"][2:])) & ~work["class"].is_in(["copy", "memset"]))
    for found in (first, second):
        start, end = (found[edge] + analysis.trace.span.start for edge in ("from", "to"))
        assert sorted(map(tuple, found["names"]["tables"]["kernel"])) == sums_by_name(work, start, end)
    panel = page.page.locator("#panel")
    assert [text[:2] for text in panel.locator("h3").all_inner_texts()] == ["A:", "B:"]
    assert "B − A" in panel.locator("[data-table=kernel] thead").inner_text()
    page.press("Escape")
    assert page.evaluate("traceview.area.points") == [] and panel.is_hidden()


def test_panel_timeline_and_link_have_one_selection(page: Opened) -> None:
    """An area, an event and a worst place replace one another."""
    panel = page.page.locator("#panel h3")
    drag(page, "#axis", (0.25, 10), (0.5, 12))
    assert panel.inner_text().startswith("Area:")
    page.press(".")
    assert page.evaluate("traceview.area.points") == [] and not panel.inner_text().startswith("Area:")
    page.page.locator("#cards .goto").first.click()
    page.page.wait_for_function("() => traceview.view.lit && traceview.selected.hit === null")
    assert panel.inner_text() == page.page.locator("#cards .card").first.locator(".goto").inner_text().split("% ", 1)[1]


def rows_of(page: Opened, table: str) -> list[list[str]]:
    lines = page.page.locator(f"#panel [data-table={table}] tbody tr").all()
    return [line.locator("th, td").all_inner_texts() for line in lines]


def test_area_has_a_table_of_its_rows_and_leads_to_each(page: Opened, analysis: Analysis) -> None:
    found = drag(page, "#axis", (0.25, 10), (0.5, 12))
    start, end = (found[edge] + analysis.trace.span.start for edge in ("from", "to"))
    shown = {row[0]: row for row in rows_of(page, "row")}
    for stream in analysis.devices[0].streams:
        work = analysis.trace.operations.filter(analysis.trace.operations["stream"] == stream.stream)
        begun = ((work["start"] >= start) & (work["start"] < end)).sum()
        assert shown[f"GPU 0 {stream.label} {stream.purpose}"][3] == f"{begun:,}"
    assert page.page.locator("#measured").count() == 1
    page.page.locator("#panel [data-table=row] button.plain", has_text="stream").first.click()
    page.page.wait_for_function("() => traceview.area.result?.rows?.length === 1")
    [row] = page.evaluate("traceview.area.result.rows")
    assert row.startswith("s:") and page.evaluate("traceview.area.points") == [found["from"], found["to"]]
    # The figures of the whole GPU are not those of one of its streams.
    assert page.page.locator("#measured").count() == 0
    assert {name for name in HEADS if rows_of(page, name)} <= {"row", "kernel", "copy"}


HEADS = ("row", "kernel", "copy", "idle", "sample", "projected", "range", "call")


def test_tables_of_an_area_are_sorted_by_any_heading(page: Opened) -> None:
    drag(page, "#axis", (0.25, 10), (0.5, 12))
    heads = page.page.locator("#panel [data-table=kernel] thead").get_by_role("button")
    heads.filter(has_text="started").click()
    counts = [int(row[3].replace(",", "")) for row in rows_of(page, "kernel")]
    assert counts == sorted(counts, reverse=True)
    heads.filter(has_text="kernels").click()
    names = [row[0].lower() for row in rows_of(page, "kernel")]
    assert names[0] < names[-1]


@pytest.mark.parametrize("place", ["#axis", "#canvas"])
def test_end_of_an_area_is_dragged(page: Opened, place: str) -> None:
    first = drag(page, "#axis", (0.25, 10), (0.5, 12))
    box = page.page.locator(place).bounding_box()
    view = page.view()
    assert box is not None
    x = box["x"] + (first["to"] - view[0]) / (view[1] - view[0]) * box["width"]
    page.page.mouse.move(x + 2, box["y"] + 14)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 14, steps=3)
    page.page.mouse.up()
    page.page.wait_for_function("(to) => traceview.area.result?.to > to", arg=first["to"])
    last = page.evaluate("traceview.area.result")
    assert last["from"] == first["from"] and page.view() == view
    assert last["to"] == pytest.approx(view[0] + 0.7 * (view[1] - view[0]), rel=0.01)


def test_panel_is_in_sight_and_has_room_for_an_area(page: Opened) -> None:
    bottom = "document.getElementById('panel').getBoundingClientRect().bottom"
    assert page.evaluate("document.getElementById('frame').getBoundingClientRect().bottom") > 800
    page.press(".")
    assert page.evaluate(bottom) <= 900
    low = page.evaluate("document.getElementById('panel').offsetHeight")
    drag(page, "#axis", (0.4, 14), (0.5, 14))
    assert page.evaluate(bottom) <= 900 and page.evaluate("scrollY") == 0
    assert page.evaluate("document.getElementById('panel').offsetHeight") > 2 * low


def test_table_of_events_and_timeline_have_one_selection(page: Opened, analysis: Analysis) -> None:
    page.evaluate("traceview.setView(100e6, 102e6)")
    page.settle()
    row = page.evaluate(
        "(({ id, y, h }) => ({ id, y, h }))(traceview.board.shown.find((row) => row.kind === 'stream'))"
    )
    page.page.keyboard.down("Shift")
    middle = row["y"] + row["h"] / 2
    found = drag(page, "#canvas", (0.2, middle - 2), (0.8, middle + 2))
    page.page.keyboard.up("Shift")
    page.page.locator("[data-move=events]").click()
    events, lines = page.page.locator("#events"), page.page.locator("#events tbody tr")
    start, end = (found[edge] + analysis.trace.span.start for edge in ("from", "to"))
    work = analysis.trace.operations.filter(analysis.trace.operations["stream"] == int(row["id"][2:]))
    work = work.filter((work["start"] < end) & (work["end"] > start)).sort("start")
    assert lines.count() == len(work) > 12 and f"Events of the area: {len(work)}" in events.inner_text()
    assert lines.locator("th").all_inner_texts() == work["name"].cast(pl.String).to_list()
    lines.nth(9).click()
    page.settle()
    assert (
        page.evaluate("traceview.selected.hit.marks.start[traceview.selected.hit.i]")
        == work["start"][9] - analysis.trace.span.start
    )
    assert lines.nth(9).get_attribute("aria-current") == "true"
    page.press(".")
    assert [at for at, line in enumerate(lines.all()) if line.get_attribute("aria-current")] == [10]
    page.press("e")
    assert events.is_hidden()
