"""Tests of figures: selection and words."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview.pricing.figures import fold_numbers, join_words, median_reordering


@given(st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=30))
def test_median(values: list[int]) -> None:
    assert median_reordering(np.array(values, np.int64)) == np.median(values)


def test_words() -> None:
    assert (join_words(["a"]), join_words(["a", "b", "c"]), join_words([])) == ("a", "a, b and c", "")
    assert [fold_numbers(name) for name in ("iteration -3", "h2d", "layer7.attn")] == [
        "iteration #",
        "h2d",
        "layer#.attn",
    ]
