"""The page of a fleet in a browser: offline, keyboard control, a thousand ranks, hostile names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser

from tests.ranks.reports import ranks_of, result_of
from tests.report.browser import Opened, opened
from traceview.model.fleet import Fleet, Skipped
from traceview.model.trace import Note
from traceview.ranks.iterations import MAX_BINS, merge_bins
from traceview.ranks.merge import MAX_SHOWN_BINS, merge
from traceview.report.fleet import content, render

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e=1+1"


@pytest.fixture(scope="module")
def page(browser: Browser, slow_host: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened(browser, render(slow_host), tmp_path_factory.mktemp("page")) as page:
        yield page


def drawn(page: Opened) -> list[str]:
    page.settle()
    return str(page.evaluate("document.documentElement.dataset.drawn")).split(" ")


def readout(page: Opened) -> str:
    return page.page.inner_text("#readout")


def test_advice_without_network_requests(page: Opened) -> None:
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    advice = page.page.inner_text("#advice button")
    assert advice.startswith("slowhost_rank1: own time is 89.6% longer than the others'")
    assert page.page.inner_text("#title") == "4 reports, 4 ranks"
    assert readout(page).startswith("slowhost_rank1 (straggler): own 25.6 ms, +11.1 ms compared to the others")


def test_keyboard_reaches_every_cell(page: Opened, slow_host: Fleet) -> None:
    page.page.locator("#stage").focus()
    for key in ("End", "Home", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.page.keyboard.press(key)
    figure, _, row, column, _ = drawn(page)
    assert (figure, row, column) == ("own", "1", "3")
    heat = slow_host.heat
    assert heat is not None
    assert f"Iteration {heat.steps[3]}: own {heat.own[0][3] / 1e6:.1f} ms" in readout(page)
    before = page.page.locator("#canvas").screenshot()
    page.page.get_by_role("button", name="wait", exact=True).click()
    assert drawn(page)[0] == "wait" and page.page.locator("#canvas").screenshot() != before
    page.page.get_by_role("button", name="own", exact=True).click()
    page.page.locator("#stage").focus()
    high = float(drawn(page)[1])
    page.page.keyboard.press("-")
    assert float(drawn(page)[1]) < high
    page.page.keyboard.press("0")
    assert float(drawn(page)[1]) == high


def test_search_and_order(page: Opened) -> None:
    page.page.locator("#order").select_option("given")
    page.page.keyboard.press("/")
    page.page.locator("#find").fill("RANK3")
    assert drawn(page)[2] == "3" and readout(page).startswith("slowhost_rank3:")
    page.page.locator("#find").fill("")
    page.page.locator("#order").select_option("slowest")
    page.page.locator("#advice button").click()
    assert drawn(page)[2] == "0" and readout(page).startswith("slowhost_rank1")


def test_table_is_saved_as_csv(page: Opened, slow_host: Fleet) -> None:
    with page.page.expect_download() as saved:
        page.page.get_by_role("button", name="Save as CSV: Ranks, means per steady iteration, slowest first").click()
    rows = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text(encoding="utf-8-sig"))))
    assert [int(row["own_ns"]) for row in rows] == sorted((rank.own for rank in slow_host.ranks), reverse=True)
    assert [(row["rank"], row["straggler"]) for row in rows[:2]] == [("slowhost_rank1", "1"), ("slowhost_rank0", "0")]


def many(fleet: Fleet, count: int) -> Fleet:
    """Return a fleet with `count` ranks, repeated from a real one."""
    heat = fleet.heat
    assert heat is not None
    take = np.arange(count) % len(fleet.ranks)
    ranks = [replace(fleet.ranks[row], label=f"rank{index:04}") for index, row in enumerate(take)]
    names = ("wall", "own", "compute", "wait")
    figures = {name: getattr(heat, name)[take] for name in names}
    common, merged = fleet.clocks[0], -(-count * MAX_BINS // MAX_SHOWN_BINS)
    work = [each and merge_bins(each, common, merged) for each in fleet.work]
    return replace(fleet, ranks=tuple(ranks), heat=replace(heat, **figures), work=tuple(work[row] for row in take))


def test_thousand_ranks(browser: Browser, slow_host: Fleet, tmp_path: Path) -> None:
    thousand = many(slow_host, 1000)
    lanes: list[dict[str, int]] = content(thousand)[0]["work"]  # type: ignore[assignment]
    assert 100_000 < sum(lane["count"] for lane in lanes) <= 400_000 + len(lanes)
    with opened(browser, render(thousand), tmp_path, dark=True) as page:
        assert page.complaints == []
        assert float(drawn(page)[1]) * 1000 <= 600
        page.page.locator("#find").fill("rank0999")
        page.page.locator("[data-rows=in]").click(click_count=8)
        scrolled = drawn(page)
        assert float(scrolled[1]) > 10 and int(scrolled[4]) > 3000
        assert readout(page).startswith("rank0999")
        assert page.page.locator("#each section").first.locator("tbody tr").count() == 40


def test_names_are_text(browser: Browser, slow_host: Fleet, tmp_path: Path) -> None:
    ranks = tuple(replace(rank, label=HOSTILE, gpu=HOSTILE) for rank in slow_host.ranks)
    hostile = replace(
        slow_host,
        ranks=ranks,
        notes=(Note("report", HOSTILE),),
        skipped=(Skipped(HOSTILE, HOSTILE),),
        advice=tuple(replace(advice, title=HOSTILE, text=HOSTILE) for advice in slow_host.advice),
    )
    html = render(hostile)
    assert html.count("<script") == render(slow_host).count("<script")
    with opened(browser, html, tmp_path) as page:
        assert page.complaints == []
        assert page.page.locator("img").count() == 0
        assert page.page.inner_text("#advice button").startswith("</script><img")
        assert page.page.locator("#skipped").is_visible()


def test_no_heat_map_without_iterations(browser: Browser, slow_host: Fleet, tmp_path: Path) -> None:
    with opened(browser, render(replace(slow_host, heat=None)), tmp_path) as page:
        assert page.complaints == []
        assert not page.page.locator("#figures").is_visible()
        assert "Iteration" not in readout(page)


def test_many_iterations_share_columns(browser: Browser, slow_host: Fleet, tmp_path: Path) -> None:
    heat = slow_host.heat
    assert heat is not None
    take = np.arange(1200) % len(heat.steps)
    names = ("wall", "own", "compute", "wait")
    long = replace(
        heat, steps=np.arange(1200), steady=heat.steady[take], **{name: getattr(heat, name)[:, take] for name in names}
    )
    with opened(browser, render(replace(slow_host, heat=long)), tmp_path) as page:
        assert page.page.inner_text("#merged").startswith("Each column stands for 3 iterations")
        assert (
            json.loads(page.evaluate("document.getElementById('content').textContent"))["heat"]["names"][0] == "0 to 2"
        )


def test_all_ranks_stand_on_one_clock(browser: Browser, slow_host: Fleet, tmp_path: Path) -> None:
    with opened(browser, render(slow_host), tmp_path) as page:
        canvas, stage = page.page.locator("#together-canvas"), page.page.locator("#together-stage")
        first, last = map(int, str(canvas.get_attribute("data-drawn")).split())
        stage.press("w")
        closer = list(map(int, str(canvas.get_attribute("data-drawn")).split()))
        assert first < closer[0] < closer[1] < last
        stage.press("0")
        [group] = slow_host.times
        starts, ends = group.start, group.end
        works = [work for work in slow_host.work if work is not None]
        zero = min(int(starts.min()), *(work.start for work in works))
        latest = max(int(ends.max()), *(work.start + work.width * len(work.kernel) for work in works)) - zero
        assert float(str(canvas.get_attribute("data-drawn")).split()[1]) == pytest.approx(1.02 * latest)
        box = canvas.bounding_box()
        assert box is not None
        arrival = int(np.ptp(starts, axis=0).argmax())  # the longest wait
        rank = int(starts[:, arrival].argmin())
        x = (int(starts[rank, arrival]) - zero) / (1.02 * latest)
        order = page.page.locator("#each table").first.locator("tbody th").all_inner_texts()
        label = slow_host.ranks[int(group.ranks[rank])].label
        y = box["y"] + 22 + (order.index(label) + 0.75) * (box["height"] - 22) / len(order)
        page.page.mouse.move(box["x"] + 190 + x * (box["width"] - 190) + 2, y)
        assert page.page.inner_text("#tip").startswith(f"{label} · AllReduce, ")
        latest_rank = int(group.ranks[int(starts[:, arrival].argmax())])
        assert f"for {slow_host.ranks[latest_rank].label}" in page.page.inner_text("#tip")
        # The upper half of a row shows the work: here, in the bin that computes most.
        shown = slow_host.work[int(group.ranks[rank])]
        assert shown is not None
        bin = int(shown.compute.argmax())
        x = (shown.start + (bin + 0.5) * shown.width - zero) / (1.02 * latest)
        y -= 0.5 * (box["height"] - 22) / len(order)
        stage.press("0")
        page.page.mouse.move(box["x"] + 190 + x * (box["width"] - 190), y)
        assert page.page.inner_text("#tip").startswith(f"{label} · compute ")
        assert ", mostly " in page.page.inner_text("#tip")
        assert page.complaints == []


def test_timeline_keeps_the_middle_of_many_collectives(slow_host: Fleet) -> None:
    reports = [result_of(path) for path in ranks_of("slowhost")]
    fleet = merge(slow_host.reports, reports, max_shown=40)
    values, _ = content(fleet)
    [group], [whole] = values["times"], slow_host.times  # type: ignore[misc]
    assert group["count"] == 10 and values["timesLeftOut"] == len(whole.kind) - 10
    [shown] = fleet.times
    middle = np.sort(whole.start.max(axis=0))[(len(whole.kind) - 10) // 2 :][:10]
    assert np.sort(shown.start.max(axis=0)).tolist() == middle.tolist() and shown.first == whole.first
