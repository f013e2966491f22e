"""Cases of traces that torch writes although they are not JSON, or that end early."""

from __future__ import annotations

import pytest

from tests.cases.made import analyzed_case
from traceview.report.analysis import document


@pytest.mark.parametrize(
    "name",
    [
        "quotes_in_name",
        "newline_in_name",
        "bad_escape",
        "control_char",
        "na_bare",
        "nan_bare",
        "inf_bandwidth",
        "not_utf8",
        "json5_trailing",
    ],
)
def test_figures_are_those_of_the_whole_trace(name: str) -> None:
    made, intact = (document(analyzed_case("torch", case)) for case in (name, "base_copy"))
    for part in ("answer", "iterations", "devices", "nvtx", "findings"):
        assert made[part] == intact[part], part
    texts = [note["text"] for note in made["notes"]]
    words = "no closing bracket" if name == "json5_trailing" else "1 event of the trace not valid JSON: 1 repaired"
    assert [text for text in texts if words in text] and not [text for text in texts if "export it again" in text]
