"""The measure in the docstring of traceview.measure works."""

from __future__ import annotations

import json
from textwrap import dedent
from typing import Any

import polars as pl
import pytest

from tests.made_trace import made_trace
from traceview import measure
from traceview.frozen import frozen
from traceview.measure import devices
from traceview.measure.base import PartInput, PartMeasure
from traceview.model.columns import Table, column
from traceview.pipeline import analyze
from traceview.report.analysis import page, terminal
from traceview.report.analysis.document import to_json


def test_example_measure_reaches_every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure.__doc__ is not None
    names: dict[str, Any] = {"frozen": frozen, "column": column, "pl": pl, "Table": Table, "__name__": __name__}
    names |= {"PartInput": PartInput, "PartMeasure": PartMeasure}
    exec(dedent(measure.__doc__.split("For example::")[1]), names)
    monkeypatch.setattr(devices, "all_measures", lambda: (*measure.MEASURES, names["LONGEST_KERNELS"]))
    trace = made_trace([(0, 10, "compute", 0, None), (20, 50, "compute", 0, None), (60, 80, "compute", 1, None)])
    analysis = analyze(trace)
    assert "Longest kernels on GPU 0" in terminal.render(analysis)
    assert '"Longest kernels"' in page.render(analysis)
    assert json.loads(to_json(analysis))["devices"][0]["longest_kernels"] == [
        {"stream": 0, "duration_ns": 30},
        {"stream": 1, "duration_ns": 20},
    ]
