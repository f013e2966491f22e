"""Lengths of time on the page."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser

from tests.made_trace import made_trace
from tests.report.browser import opened
from traceview.pipeline import analyze
from traceview.report.analysis.page import render
from traceview.report.timeline.build import origin

LENGTHS = {
    12_345: "0.012 ms",
    999_940_000: "999.9 ms",
    999_960_000: "1.00 s",
    7_170_000_000: "7.17 s",
    9_996_000_000: "10.0 s",
    32_195_000_000: "32.2 s",
    128_372_000_000: "128 s",
    1_280_000_000_000: "1,280 s",
}


def test_page_writes_lengths_alike(browser: Browser, tmp_path: Path) -> None:
    lengths = sorted(LENGTHS)
    starts = [sum(lengths[:at]) + at * 100 for at in range(len(lengths))]
    spans = [(start, start + ns) for start, ns in zip(starts, lengths, strict=True)]
    operations = [(start, end, "compute", at, None) for at, (start, end) in enumerate(spans)]
    analysis = analyze(made_trace(operations))
    assert origin(analysis) == 0
    with opened(browser, render(analysis), tmp_path) as page:
        section = page.page.locator("section", has=page.page.get_by_role("heading", name="Streams", exact=True))
        shown = section.locator("tbody td:nth-child(5)").all_inner_texts()
    assert sorted(shown) == sorted(LENGTHS.values())
