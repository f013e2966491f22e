"""Tests of sums against Python's sum."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview import intervals
from traceview.measure.sums import covered_length_few_queries, sums_before, sums_between

SPANS = st.lists(st.tuples(st.integers(-20, 60), st.integers(-3, 25)), max_size=12)
FAR = 1 << 61  # sums of starts, and of ends, overflow


@given(st.lists(st.integers(-9, 9), max_size=20), st.data())
def test_sums_before_and_between(values: list[int], data: st.DataObject) -> None:
    places = st.lists(st.integers(0, len(values)), min_size=1, max_size=8)
    first, last = data.draw(places), data.draw(places)
    column = np.array(values, np.int64)
    assert sums_before(column, np.array(last)).tolist() == [sum(values[:place]) for place in last]
    pairs = list(zip(first, last, strict=False))
    found = sums_between(column, *(np.array(side) for side in zip(*pairs, strict=True)))
    assert found.tolist() == [sum(values[:end]) - sum(values[:start]) for start, end in pairs]


def test_booleans_are_summed_as_integers() -> None:
    assert sums_before(np.array([True, True, False, True]), np.array([4, 0, 2])).tolist() == [3, 0, 2]


@given(SPANS, SPANS, st.sampled_from([0, FAR]))
def test_covered_length(members: list[tuple[int, int]], queries: list[tuple[int, int]], moved: int) -> None:
    start, length = (np.array([span[side] for span in members], np.int64) for side in (0, 1))
    union = intervals.union(start + moved, start + moved + np.maximum(length, 0))
    first, lasting = (np.array([span[side] for span in queries], np.int64) for side in (0, 1))
    inside = {moment for begin, ns in members for moment in range(begin, begin + ns)}
    expected = [len(inside & set(range(begin, begin + ns))) for begin, ns in queries]
    assert covered_length_few_queries(union, first + moved, first + lasting + moved).tolist() == expected
