"""An analysis as a plain value."""

from __future__ import annotations

import pickle
from dataclasses import replace

import polars as pl
import pytest

from tests.captures import analyzed, sample
from traceview.model.analysis import Analysis


@pytest.mark.parametrize("name", ["dual.sqlite", "cudagraph.sqlite", "torch_profiler/serial.json.gz"])
def test_analysis_pickles_and_compares(name: str) -> None:
    analysis = analyzed(sample(name))
    copy = pickle.loads(pickle.dumps(analysis))
    assert isinstance(copy, Analysis) and copy is not analysis and copy == analysis
    later = pl.col("end") + pl.lit(1)
    trace = replace(copy.trace, operations=copy.trace.operations.with_columns(later))
    assert replace(copy, trace=trace) != analysis
    assert replace(copy, findings=copy.findings[1:]) != analysis
    assert replace(copy, whole=True) != analysis
    assert copy != "analysis"
