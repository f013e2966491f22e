"""The page's tables of kernels in a real browser: sorted, filtered, grouped, and leading to the timeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from tests.pages import inputs_of
from tests.report.analysis.test_charts import goes_to
from tests.report.browser import Opened, opened
from traceview import Analysis, analyze
from traceview.model.charts import KernelInstance, SimilarKernels
from traceview.model.rows import KernelPlace
from traceview.model.units import duration, share
from traceview.report.analysis.page import render


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyzed(sample("dual.sqlite"))


@pytest.fixture(scope="module")
def html(analysis: Analysis) -> str:
    return render(inputs_of(analysis))


@pytest.fixture(scope="module")
def shared_page(browser: Browser, html: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened(browser, html, tmp_path_factory.mktemp("page")) as result:
        yield result


@pytest.fixture
def page(shared_page: Opened) -> Iterator[Opened]:
    shared_page.page.get_by_role("searchbox", name="Show only kernels").fill("")
    shared_page.page.get_by_role("combobox", name="Group the kernels").select_option("shape")
    yield shared_page
    assert shared_page.complaints == []


def groups(analysis: Analysis, by: str) -> list[SimilarKernels]:
    (device,) = inputs_of(analysis).charts.devices
    return [group for grouping in device.kernels if grouping.by == by for group in grouping.groups]


def column(page: Opened, number: int) -> list[str]:
    return page.page.locator(f"#kernels tbody tr:not(.member) > :nth-child({number})").all_inner_texts()


def shows(page: Opened, analysis: Analysis, instance: KernelInstance) -> bool:
    zero = analysis.trace.span.start
    return goes_to(page, instance.start - zero, instance.end - zero)


def test_rows_have_the_figures_of_the_table(page: Opened, analysis: Analysis) -> None:
    uses = analysis.devices[0].steady.tables["kernels"].rows
    status = page.page.locator("#kernels [role=status]")
    assert status.inner_text() == f"{len(uses)} of {len(uses)} rows"
    page.page.locator("#kernels").get_by_role("button", name="Show all").click()
    assert column(page, 5) == [f"{use.count:,}" for use in uses]
    assert column(page, 2) == [share(use.share) for use in uses]
    titles = page.page.locator("#kernels tbody th > span").evaluate_all("(all) => all.map((one) => one.title)")
    assert all(title[:200] in (use.demangled or "") for title, use in zip(titles, uses, strict=True))


def test_headings_sort(page: Opened, analysis: Analysis) -> None:
    head = page.page.locator("#kernels thead")
    counts = sorted((use.count for use in analysis.devices[0].steady.tables["kernels"].rows), reverse=True)
    assert head.locator("[aria-sort=descending]").inner_text() == "total"
    head.get_by_role("button", name="count").press("Enter")
    assert [int(text.replace(",", "")) for text in column(page, 5)] == counts[:20]
    assert page.evaluate("document.activeElement.textContent") == "count"
    head.get_by_role("button", name="count").press("Enter")
    assert [int(text.replace(",", "")) for text in column(page, 5)] == counts[::-1][:20]
    head.get_by_role("button", name="kernel").click()
    names = column(page, 1)
    initials = [name[0].casefold() for name in names]
    assert initials == sorted(initials) and len(names) == 20
    assert head.locator("[aria-sort]").all_inner_texts() == ["kernel"]


def test_filter_and_groups(page: Opened, analysis: Analysis) -> None:
    menu = page.page.get_by_role("combobox", name="Group the kernels")
    assert menu.locator("option").all_inner_texts() == ["launch shape", "kernel", "family", "range", "direction"]
    menu.select_option("family")
    families = {group.name: group.total_ns for group in groups(analysis, "family")}
    assert column(page, 1) == list(families)
    field = page.page.get_by_role("searchbox", name="Show only kernels")
    field.fill("GammaBeta")
    assert column(page, 1) == ["normalization"]
    share = families["normalization"] / sum(families.values())
    status = page.page.locator("#kernels [role=status]").inner_text()
    assert status == f"1 of {len(families)} rows, {100 * share:.1f}% of the kernel time"
    field.fill("")
    menu.select_option("range")
    assert set(column(page, 1)) == {group.name or "no range" for group in groups(analysis, "range")}
    field.fill("no such kernel")
    assert column(page, 1) == []


def merged_counts(rows: list[KernelPlace]) -> list[int]:
    """Return the number of kernels of each name, the costliest first."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        figures = sums.setdefault(row.kernel, [0, 0])
        figures[0] += row.total_ns
        figures[1] += row.count
    return [count for _, count in sorted(sums.values(), key=lambda figures: -figures[0])]


def test_group_shows_its_kernels(page: Opened, analysis: Analysis) -> None:
    table = page.page.locator("#kernels tbody")
    for by, members in (("family", "kernels"), ("range", "kernel_places")):
        page.page.get_by_role("combobox", name="Group the kernels").select_option(by)
        name = groups(analysis, by)[0].name
        rows = [row for row in analysis.devices[0].steady.tables[members].rows if getattr(row, by) == name]
        counts = [row.count for row in rows] if by == "family" else merged_counts(rows)
        button = table.locator("button.members").first
        button.click()
        assert button.get_attribute("aria-expanded") == "true"
        shown = table.locator(".member > :nth-child(5)").all_inner_texts()
        assert shown == [f"{count:,}" for count in counts]
        button.press("Enter")
        assert table.locator(".member").count() == 0


@pytest.mark.parametrize("by", ["shape", "range"])
def test_times_lead_to_the_timeline(page: Opened, analysis: Analysis, by: str) -> None:
    page.page.get_by_role("combobox", name="Group the kernels").select_option(by)
    group = groups(analysis, by)[0]
    line = page.page.locator("#kernels tbody tr").first
    line.get_by_role("button", name="Show the longest").press("Enter")
    assert shows(page, analysis, group.longest)
    assert page.page.locator(".label.lit").count() >= 1
    page.page.locator("[data-move=fit]").click()
    line.locator("td").first.click()
    assert shows(page, analysis, group.longest)
    texts = line.locator("> *").all_inner_texts()
    for name in ("median", "longest", "first"):
        instance = getattr(group, name)
        assert duration(instance.end - instance.start) in texts, name


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (800, 600)])
def test_screens(page: Opened, width: int, height: int) -> None:
    page.page.set_viewport_size({"width": width, "height": height})
    page.page.get_by_role("link", name="Kernels").click()
    page.settle()  # charts follow after a moment
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if width == 1440:
        region = page.page.get_by_role("region", name="Kernels on GPU 0")
        assert region.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    first = page.page.locator("#kernels tbody th").first
    names = first.bounding_box()
    page.page.get_by_role("region", name="Kernels on GPU 0").evaluate("(one) => one.scrollTo(one.scrollWidth, 0)")
    assert first.bounding_box() == names  # names stay in sight


def test_captures_without_kernels(browser: Browser, tmp_path: Path) -> None:
    """Whole CUDA graphs, and copies alone."""
    copies = analyze(made_trace([(0, 10, "copy", 0, None)]))
    assert inputs_of(copies).charts.devices[0].kernels == ()
    graphs = analyzed(sample("cudagraph.sqlite"))
    with opened(browser, render(inputs_of(graphs)), tmp_path) as page:
        assert page.complaints == []
        assert page.page.locator("#kernel-tables").inner_text().startswith("The capture has no single kernels")
