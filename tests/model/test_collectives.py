"""Columns of any values: they come back, and equal values have equal keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview.model.fleet import PackedColumn

near = st.integers(-300, 300)
anywhere = st.integers(-(1 << 62), 1 << 62)


@given(st.lists(st.one_of(near, near, near, anywhere), max_size=60))
def test_round_trip(values: list[int]) -> None:
    column = PackedColumn.pack(np.array(values, np.int64))
    assert column.values().tolist() == values and len(column) == len(values)
    assert column.key() == PackedColumn.pack(column.values()).key()


def test_pauses_and_early_collectives_stay_narrow() -> None:
    starts = np.cumsum(np.where(np.arange(1000) % 250 == 249, 60 * 10**9, 20_000_000))
    steps = np.concatenate([np.full(8, -(1 << 62)), np.repeat(np.arange(124), 8)])
    assert [PackedColumn.pack(values).steps.itemsize for values in (starts, steps)] == [4, 1]
