"""The page's scripts write figures as traceview/model/units.py does."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Browser

from traceview.report.assets import plain_script, read_text

EXAMPLES = Path(__file__).parents[1] / "units.json"
# The writer of a figure and the units of a column, by the unit of a declared column.
WRITERS = """
const FIGURE = {
  ns: duration, bytes: bytesText, bytes_per_ns: (rate) => bandwidth(rate, 1), fraction: (share) => percent(share, 1),
  ratio, count: countText, flops: operations, flops_per_s: (rate) => operations(rate) + "/s",
};
const SCALES = { ns: TIMES, bytes: SIZES, bytes_per_ns: RATES };
return {
  figures: examples.figures.map(({ unit, value }) => FIGURE[unit](value)),
  columns: examples.columns.map(({ unit, values }) =>
    SCALES[unit] ? columnTexts(values, SCALES[unit]) : values.map(FIGURE[unit])),
  moments: [0, 999, 30000125, 11298036289].map(momentText),
};
"""


def test_figures_are_those_of_the_other_reports(browser: Browser) -> None:
    examples = json.loads(EXAMPLES.read_text("utf-8"))
    words = plain_script(read_text("core/words.js"))
    page = browser.new_page()
    try:
        written = page.evaluate(f"(examples) => {{ {words} {WRITERS} }}", examples)
    finally:
        page.close()
    assert written["figures"] == [example["text"] for example in examples["figures"]]
    assert written["columns"] == [example["texts"] for example in examples["columns"]]
    assert written["moments"] == ["0 ms", "999 ns", "30.000125 ms", "11.298036289 s"]
