"""Sums of parts are those of the whole."""

from __future__ import annotations

from functools import reduce

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview.model.sums import MANY, Counts


@given(parts=st.lists(st.lists(st.integers(-3, MANY + 3) | st.integers(0, 9)), min_size=1, max_size=3))
def test_counts_of_parts_have_the_median_of_all(parts: list[list[int]]) -> None:
    counts = reduce(Counts.plus, (Counts.from_values(np.array(part, np.int64)) for part in parts))
    every = np.concatenate([np.array(part, np.int64) for part in parts])
    values, times = np.unique(every, return_counts=True)
    assert counts.values.tolist() == values.tolist() and counts.counts.tolist() == times.tolist()
    assert counts.median == (np.median(every) if len(every) else 0)
