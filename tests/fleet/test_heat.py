"""Lags against a loop; stragglers against scatter. Hand-made."""

from __future__ import annotations

from statistics import median

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.fleet.made import MS, rank, report
from traceview.fleet.heat import ABSENT, less_others
from traceview.fleet.merge import merge


@given(st.lists(st.one_of(st.just(ABSENT), st.integers(0, 10**9)), min_size=1, max_size=9))
def test_each_value_is_compared_with_the_median_of_the_others(values: list[int]) -> None:
    found = less_others(np.array(values, np.int64))
    for place, value in enumerate(values):
        others = [other for at, other in enumerate(values) if at != place and other != ABSENT]
        if value == ABSENT or not others:
            assert np.isnan(found[place])
        else:
            assert found[place] == value - median(others)


def own(values: list[list[int]]) -> list[int]:
    """Return the stragglers of ranks with these own times in ms."""
    ranks = [rank([], communicators=(), steps=range(len(row)), own=[ms * MS for ms in row]) for row in values]
    return [one.rank for one in merge(["x"], [report(*ranks)]).stragglers]


def test_a_straggler_is_slower_by_the_margin_and_beyond_its_scatter() -> None:
    even = [100] * 8
    assert own([even, even, even, [104] * 8]) == []
    assert own([even, even, even, [106] * 8]) == [3]
    # Twice as slow, but only now and then: its median is not.
    assert own([even, even, even, [100, 200, 100, 100, 100, 200, 100, 100]]) == []
    # Slower by 20 on the middle, but its iterations scatter by 60.
    assert own([even, even, even, [20, 60, 110, 120, 120, 180, 200, 240]]) == []
    assert own([even, [130] * 8]) == [1]


def test_two_iterations_are_too_few_to_judge() -> None:
    assert own([[100, 100], [200, 200]]) == []
