"""Every page passes all rules of axe-core, in light and in dark colours. `npm ci` installs axe-core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.captures import SAMPLES, analyzed, sample
from tests.pages import inputs_of, page_of
from tests.report.browser import Opened, opened
from traceview.model.whatif import WhatIf
from traceview.ranks.analyze_reports import analyze_reports
from traceview.replay.prediction import whatif
from traceview.report.analysis.page import render
from traceview.report.fleet import render as render_fleet

AXE = Path(__file__).resolve().parents[2] / "node_modules" / "axe-core" / "axe.min.js"
SHOWN = """async () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const chart of document.querySelectorAll(".chart")) {
    chart.scrollIntoView();
    while (!chart.dataset.drawn) await new Promise(requestAnimationFrame);
  }
  scrollTo(0, 0);
}"""
VIOLATIONS = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.map(({ id, nodes }) => [id, ...nodes.slice(0, 5).map(({ html }) => html.slice(0, 200))]);
}"""


def what_if() -> str:
    analysis = analyzed(sample("serial.sqlite"))
    result = whatif(analysis)
    assert isinstance(result, WhatIf)
    return render(inputs_of(analysis), whatif=result)


PAGES: dict[str, Callable[[], str]] = {
    "analysis": lambda: page_of("ddp2"),
    "what-if": what_if,
    "fleet": lambda: render_fleet(analyze_reports(sorted((SAMPLES / "ranks").glob("slowhost*.sqlite.xz")), workers=1)),
}


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci")
@pytest.mark.parametrize("name", PAGES)
def test_page_has_no_violation(browser: Browser, name: str, tmp_path: Path) -> None:
    with opened(browser, PAGES[name](), tmp_path) as page:
        page.evaluate(SHOWN)
        if name == "analysis":
            page.page.locator("[data-move=measure]").click()
            page.page.wait_for_function("() => traceview.area.result")
            page.page.locator("[data-move=events]").click()
        page.evaluate(AXE.read_text("utf-8"))
        assert page.evaluate(VIOLATIONS) == []
        _darken(page)
        assert page.evaluate(VIOLATIONS) == []


def _darken(page: Opened) -> None:
    page.page.get_by_role("button", name="Dark colours").click()
    page.settle()
