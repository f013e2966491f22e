"""The query of the page in a real browser: its figures are those of the analysis' tables."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pytest
from playwright.sync_api import Browser

from tests.captures import analyzed, sample
from tests.pages import page_of
from tests.report.browser import Opened, opened


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    html = page_of("dual")
    with opened(browser, html, tmp_path_factory.mktemp("page")) as result:
        yield result


def ask(page: Opened, text: str) -> str:
    field = page.page.get_by_role("searchbox", name="Query")
    field.fill(text)
    field.press("Enter")
    return page.page.locator("#query [role=status]").inner_text()


def rows(page: Opened) -> list[list[str]]:
    lines = page.page.locator("#query tbody tr").all()
    return [line.locator("th, td").all_inner_texts() for line in lines]


def test_kernels_by_name_are_those_of_the_capture(page: Opened) -> None:
    operations = analyzed(sample("dual.sqlite")).table("operations").filter(kind="compute")
    assert ask(page, "kernels by:name").startswith(f"{len(operations):,} kernels")
    counts = dict(operations.group_by("name").len().iter_rows())
    shown = {name: int(count.replace(",", "")) for name, count, *_ in rows(page)}
    assert len(shown) == 20 and shown.items() <= counts.items()
    long = operations.filter(pl.col("duration_ns") > 50_000, pl.col("name").str.contains("nvjet"))
    assert ask(page, 'kernels name:"NVJET" duration>50us').startswith(f"{len(long):,} kernels")


def test_gaps_by_cause_lead_to_the_timeline(page: Opened) -> None:
    gaps = analyzed(sample("dual.sqlite")).table("gaps").filter(pl.col("duration_ns") > 100_000)
    assert ask(page, "gaps duration>0.1ms by:cause").startswith(f"{len(gaps):,} gaps")
    assert sum(int(row[1]) for row in rows(page)) == len(gaps)
    page.page.locator("#query tbody tr").first.click()
    page.settle()
    longest = gaps["duration_ns"].max()
    assert page.evaluate("traceview.view.lit.end - traceview.view.lit.start") == longest
    assert page.page.locator("#found").inner_text().endswith(" gaps")


def test_examples_answer_and_errors_are_one_line(page: Opened) -> None:
    examples = page.page.locator("#query .bar button")
    assert examples.count() == 3
    for example in examples.all():
        example.focus()
        example.press("Enter")
        assert rows(page) and page.page.get_by_role("searchbox", name="Query").input_value() == example.inner_text()
    for text in (
        "<img src=x onerror=alert(1)>",
        "kernels cause:host",
        "kernels duration>long",
        "gaps by:__proto__",
        "",
    ):
        answer = ask(page, text)
        assert answer and "\n" not in answer and rows(page) == []
    assert page.complaints == [] and page.evaluate("document.images.length") == 0
