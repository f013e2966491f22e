"""Lags compared with a loop, and stragglers compared with scatter. Hand-made ranks."""

from __future__ import annotations

from statistics import median

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks.hand_made import MS, rank, report
from traceview.ranks.merge import merge
from traceview.ranks.rank_figures import ABSENT, difference_from_others


@given(st.lists(st.one_of(st.just(ABSENT), st.integers(0, 10**9)), min_size=1, max_size=9))
def test_difference_from_the_median_of_the_others(values: list[int]) -> None:
    difference = difference_from_others(np.array(values, np.int64))
    for place, value in enumerate(values):
        others = [other for at, other in enumerate(values) if at != place and other != ABSENT]
        if value == ABSENT or not others:
            assert np.isnan(difference[place])
        else:
            assert difference[place] == value - median(others)


def stragglers_of(values: list[list[int]]) -> list[int]:
    """Return the stragglers among ranks with these own times in ms."""
    ranks = [rank([], communicators=(), steps=range(len(row)), own=[ms * MS for ms in row]) for row in values]
    return [straggler.rank for straggler in merge(["x"], [report(*ranks)]).stragglers]


def test_straggler_exceeds_margin_and_scatter() -> None:
    even = [100] * 8
    assert stragglers_of([even, even, even, [104] * 8]) == []
    assert stragglers_of([even, even, even, [106] * 8]) == [3]
    # Sometimes twice as slow, but not in the median.
    assert stragglers_of([even, even, even, [100, 200, 100, 100, 100, 200, 100, 100]]) == []
    # The median is 20 slower, but the iterations scatter by 60.
    assert stragglers_of([even, even, even, [20, 60, 110, 120, 120, 180, 200, 240]]) == []
    assert stragglers_of([even, [130] * 8]) == [1]


def test_two_iterations_are_too_few() -> None:
    assert stragglers_of([[100, 100], [200, 200]]) == []
