"""Tests of figures: selection and formats."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview.pricing.figures import duration, fold_numbers, join_words, median_reordering, quantity, share, size


@given(st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=30))
def test_median(values: list[int]) -> None:
    assert median_reordering(np.array(values, np.int64)) == np.median(values)


def test_formats() -> None:
    assert [duration(ns) for ns in (999, 12_340, 331_449_587, 6_861_000_000)] == [
        "999 ns",
        "12.3 µs",
        "331 ms",
        "6.86 s",
    ]
    assert [size(count) for count in (12, 1356, 126_418_748, 2_684_354_560)] == [
        "12 bytes",
        "1.36 kB",
        "126 MB",
        "2.68 GB",
    ]
    assert (share(1, 3), share(1, 0), quantity(1312, "call"), quantity(1, "copy", "copies")) == (
        "33.3%",
        "0%",
        "1,312 calls",
        "1 copy",
    )
    assert (join_words(["a"]), join_words(["a", "b", "c"]), join_words([])) == ("a", "a, b and c", "")
    assert [fold_numbers(name) for name in ("iteration -3", "h2d", "layer7.attn")] == [
        "iteration #",
        "h2d",
        "layer#.attn",
    ]
