"""Tests of GpuWork against a search through every gap, and of folded names."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.captures import analyzed, sample
from tests.rules.helpers import rows_of
from traceview import analyze
from traceview.model.names import fold_numbers
from traceview.model.trace import Window


@pytest.mark.parametrize("narrowed", [False, True])
@pytest.mark.parametrize("name", ["dual.sqlite", "ddp2.sqlite"])
def test_gaps_before_operations(name: str, narrowed: bool) -> None:
    analysis = analyzed(sample(name))
    if narrowed:
        window = analysis.devices[0].window
        third = window.length // 3
        analysis = analyze(analysis.trace, window=Window(window.start + third, window.end - third))
    operations = np.arange(len(analysis.trace.operations))
    for device in rows_of(analysis).devices:
        for rows in (device.activity.rows, device.activity.rows[::7], device.activity.rows[:0]):
            expected = np.flatnonzero(np.isin(device.gap_operation, rows))
            assert device.gaps_before(np.isin(operations, rows)).tolist() == expected.tolist()
        begun = (device.gap_start >= device.steady.start) & (device.gap_start < device.steady.end)
        assert np.arange(len(begun))[device.steady_gaps].tolist() == np.flatnonzero(begun).tolist()


def test_folded_numbers() -> None:
    names = ["iteration -3", "h2d", "layer7.attn"]
    assert fold_numbers(pl.Series(names)).to_list() == ["iteration #", "h2d", "layer#.attn"]
