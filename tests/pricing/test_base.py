"""What rules share gives the same as asking every gap and every number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import sample
from traceview import analyze
from traceview.model.trace import Window
from traceview.pricing.base import facts_of
from traceview.pricing.largest import middle


@pytest.mark.parametrize("narrowed", [False, True])
@pytest.mark.parametrize("name", ["dual.sqlite", "ddp2.sqlite"])
def test_the_gaps_that_operations_end(name: str, narrowed: bool) -> None:
    analysis = analyze(sample(name))
    if narrowed:
        whole = analysis.devices[0].window
        third = whole.length // 3
        analysis = analyze(analysis.trace, window=Window(whole.start + third, whole.end - third))
    facts = facts_of(analysis)
    for device in facts.devices:
        for rows in (device.activity.rows, device.activity.rows[::7], device.activity.rows[:0]):
            expected = np.flatnonzero(np.isin(device.gap_operation, rows))
            assert device.ended_by(rows).tolist() == expected.tolist()
        begun = (device.gap_start >= device.steady.start) & (device.gap_start < device.steady.end)
        assert np.arange(len(begun))[device.in_steady].tolist() == np.flatnonzero(begun).tolist()


@given(st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=30))
def test_the_median(values: list[int]) -> None:
    assert middle(np.array(values, np.int64)) == np.median(values)
