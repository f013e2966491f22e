"""Tests of figures: selection and words."""

from __future__ import annotations

from traceview.pricing.figures import fold_numbers, join_words


def test_words() -> None:
    assert (join_words(["a"]), join_words(["a", "b", "c"]), join_words([])) == ("a", "a, b and c", "")
    assert [fold_numbers(name) for name in ("iteration -3", "h2d", "layer7.attn")] == [
        "iteration #",
        "h2d",
        "layer#.attn",
    ]
