"""Interval algebra against sets of single nanoseconds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview import intervals
from traceview.intervals import Coverage, Intervals

PAIR = st.tuples(st.integers(-40, 40), st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))
PAIRS = st.lists(PAIR, max_size=12)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([start for start, _ in pairs], np.int64),
        np.array([end for _, end in pairs], np.int64),
    )


def moments(pairs: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in pairs for moment in range(start, end)}


def of(union: Intervals) -> list[tuple[int, int]]:
    return list(zip(union.start.tolist(), union.end.tolist(), strict=True))


def is_union(union: Intervals) -> bool:
    pairs = of(union)
    return all(start < end for start, end in pairs) and all(left[1] <= right[0] for left, right in pairwise(pairs))


def made(pairs: list[tuple[int, int]]) -> Intervals:
    return intervals.union(*arrays(pairs))


@given(PAIRS)
def test_union_holds_exactly_its_moments_and_merges_what_touches(pairs: list[tuple[int, int]]) -> None:
    union = made(pairs)
    assert moments(of(union)) == moments(pairs)
    assert all(left[1] < right[0] for left, right in zip(of(union), of(union)[1:], strict=False))
    assert intervals.length(union) == len(moments(pairs))


@given(PAIRS)
def test_union_of_ordered_input_is_the_same(pairs: list[tuple[int, int]]) -> None:
    assert of(intervals.union(*arrays(sorted(pairs)), ordered=True)) == of(made(pairs))


@given(PAIRS, PAIRS)
def test_intersect_subtract_and_overlap(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    common = intervals.intersect(made(left), made(right))
    rest = intervals.subtract(made(left), made(right))
    assert moments(of(common)) == moments(left) & moments(right)
    assert moments(of(rest)) == moments(left) - moments(right)
    assert is_union(common)
    assert is_union(rest)
    assert intervals.overlap_length(made(left), made(right)) == len(moments(left) & moments(right))


@given(PAIRS, PAIR)
def test_complement_and_clip_split_a_window(pairs: list[tuple[int, int]], window: tuple[int, int]) -> None:
    whole = moments([window])
    assert moments(of(intervals.complement(made(pairs), *window))) == whole - moments(pairs)
    assert moments(of(intervals.clip(made(pairs), *window))) == whole & moments(pairs)


@given(PAIRS, st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), max_size=8))
def test_covered_answers_any_queries(pairs: list[tuple[int, int]], queries: list[tuple[int, int]]) -> None:
    start, end = arrays(queries)
    expected = [len(moments(pairs) & set(range(first, last))) for first, last in queries]
    assert intervals.covered_length(made(pairs), start, end).tolist() == expected


@pytest.mark.parametrize("few", [0, intervals.MEMBER_SEARCH_RATIO])
@given(PAIRS, st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 9)), max_size=8), st.booleans())
def test_the_queries_that_meet_a_union(
    few: int, pairs: list[tuple[int, int]], queries: list[tuple[int, int]], in_order: bool
) -> None:
    start, end = arrays([(first, first + length) for first, length in (sorted(queries) if in_order else queries)])
    expected = [row for row in range(len(start)) if moments(pairs) & set(range(start[row], end[row]))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "MEMBER_SEARCH_RATIO", few)  # a union of few members is asked the other way round
        assert Coverage.from_union(made(pairs)).overlapping_rows(start, end).tolist() == expected


@given(PAIRS, st.lists(st.integers(-60, 60), max_size=8))
def test_what_lies_before_any_moment(pairs: list[tuple[int, int]], at: list[int]) -> None:
    coverage = Coverage.from_union(made(pairs))
    when = np.array(at, np.int64)
    expected = [len({moment for moment in moments(pairs) if moment < one}) for one in at]
    assert coverage.length_before(when).tolist() == expected
    assert coverage.length_up_to(coverage.member_at(when), when).tolist() == expected
    assert [kept.tolist() for kept in coverage.union()] == [kept.tolist() for kept in made(pairs)]


@given(PAIRS)
def test_nothing_is_changed_in_place(pairs: list[tuple[int, int]]) -> None:
    start, end = arrays(pairs)
    before = start.copy(), end.copy()
    union = intervals.union(start, end)
    kept = union.start.copy(), union.end.copy()
    intervals.subtract(union, made([(0, 5)]))
    intervals.clip(union, -3, 3)
    assert start.tolist() == before[0].tolist()
    assert end.tolist() == before[1].tolist()
    assert union.start.tolist() == kept[0].tolist()
    assert union.end.tolist() == kept[1].tolist()
