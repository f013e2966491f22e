"""The examples of docs/extending.md work, and reach the reports."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from tests.captures import analyzed, sample
from tests.docs_examples import SECTIONS, examples
from tests.made_trace import made_trace
from tests.pages import inputs_of
from tests.rules.helpers import US, findings
from traceview import measure
from traceview.pipeline import analyze
from traceview.replay import changes, prediction
from traceview.replay.prediction import measured, predict
from traceview.report.analysis import page, terminal, to_json

# What the tests of the page use without importing it.
USED = {"US": US, "analyze": analyze, "analyzed": analyzed, "findings": findings, "made_trace": made_trace}
USED |= {"measured": measured, "predict": predict, "sample": sample}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the examples define, with the measure and the change in their registries."""
    defined: dict[str, Any] = {**USED, "__name__": __name__}
    for section in SECTIONS:
        exec("\n".join(examples(section)), defined)
    monkeypatch.setattr(measure, "MEASURES", (*measure.MEASURES, defined["LONGEST_KERNELS"]))
    monkeypatch.setattr(prediction, "CHANGES", (*changes.CHANGES, defined["NO_MEMSETS"]))
    return defined


@pytest.mark.parametrize("section", SECTIONS)
def test_tests_of_the_page_pass(section: str, names: dict[str, Any]) -> None:
    [test] = ast.parse(examples(section)[1]).body
    assert isinstance(test, ast.FunctionDef)
    names[test.name]()


def test_example_measure_reaches_every_report(names: dict[str, Any]) -> None:
    trace = made_trace([(0, 10, "compute", 0, None), (20, 50, "compute", 0, None), (60, 80, "compute", 1, None)])
    analysis = analyze(trace)
    assert "Longest kernels on GPU 0" in terminal.render(analysis)
    assert '"Longest kernels"' in page.render(inputs_of(analysis))
    assert json.loads(to_json(analysis))["devices"][0]["longest_kernels"] == [
        {"stream": 0, "duration_ns": 30},
        {"stream": 1, "duration_ns": 20},
    ]
