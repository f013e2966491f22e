"""Tests of interval algebra against sets of single nanoseconds."""

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


def as_pairs(union: Intervals) -> list[tuple[int, int]]:
    return list(zip(union.start.tolist(), union.end.tolist(), strict=True))


def is_union(union: Intervals) -> bool:
    pairs = as_pairs(union)
    return all(start < end for start, end in pairs) and all(left[1] <= right[0] for left, right in pairwise(pairs))


def union_of_pairs(pairs: list[tuple[int, int]]) -> Intervals:
    return intervals.union(*arrays(pairs))


@given(PAIRS)
def test_union_merges_touching_intervals(pairs: list[tuple[int, int]]) -> None:
    union = union_of_pairs(pairs)
    assert moments(as_pairs(union)) == moments(pairs)
    assert all(left[1] < right[0] for left, right in zip(as_pairs(union), as_pairs(union)[1:], strict=False))
    assert intervals.length(union) == len(moments(pairs))


@given(PAIRS)
def test_union_of_ordered_input(pairs: list[tuple[int, int]]) -> None:
    assert as_pairs(intervals.union(*arrays(sorted(pairs)), ordered=True)) == as_pairs(union_of_pairs(pairs))


@given(PAIRS, PAIRS)
def test_intersect_subtract_and_overlap(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    common = intervals.intersect(union_of_pairs(left), union_of_pairs(right))
    rest = intervals.subtract(union_of_pairs(left), union_of_pairs(right))
    assert moments(as_pairs(common)) == moments(left) & moments(right)
    assert moments(as_pairs(rest)) == moments(left) - moments(right)
    assert is_union(common)
    assert is_union(rest)
    assert intervals.overlap_length(union_of_pairs(left), union_of_pairs(right)) == len(moments(left) & moments(right))


@given(PAIRS, PAIR)
def test_complement_and_clip(pairs: list[tuple[int, int]], window: tuple[int, int]) -> None:
    whole = moments([window])
    assert moments(as_pairs(intervals.complement(union_of_pairs(pairs), *window))) == whole - moments(pairs)
    assert moments(as_pairs(intervals.clip(union_of_pairs(pairs), *window))) == whole & moments(pairs)


@given(PAIRS, st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), max_size=8))
def test_covered_length(pairs: list[tuple[int, int]], queries: list[tuple[int, int]]) -> None:
    start, end = arrays(queries)
    expected = [len(moments(pairs) & set(range(first, last))) for first, last in queries]
    assert intervals.covered_length(union_of_pairs(pairs), start, end).tolist() == expected


@pytest.mark.parametrize("few", [0, intervals.MEMBER_SEARCH_RATIO])
@given(PAIRS, st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 9)), max_size=8), st.booleans())
def test_overlapping_rows(
    few: int, pairs: list[tuple[int, int]], queries: list[tuple[int, int]], in_order: bool
) -> None:
    start, end = arrays([(first, first + length) for first, length in (sorted(queries) if in_order else queries)])
    expected = [row for row in range(len(start)) if moments(pairs) & set(range(start[row], end[row]))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "MEMBER_SEARCH_RATIO", few)  # search members in queries
        assert Coverage.from_union(union_of_pairs(pairs)).overlapping_rows(start, end).tolist() == expected


@given(PAIRS, st.lists(st.integers(-60, 60), max_size=8))
def test_length_before(pairs: list[tuple[int, int]], at: list[int]) -> None:
    coverage = Coverage.from_union(union_of_pairs(pairs))
    when = np.array(at, np.int64)
    expected = [len({moment for moment in moments(pairs) if moment < one}) for one in at]
    assert coverage.length_before(when).tolist() == expected
    assert coverage.length_up_to(coverage.member_at(when), when).tolist() == expected
    assert [kept.tolist() for kept in coverage.union()] == [kept.tolist() for kept in union_of_pairs(pairs)]


@given(PAIRS)
def test_arguments_do_not_change(pairs: list[tuple[int, int]]) -> None:
    start, end = arrays(pairs)
    before = start.copy(), end.copy()
    union = intervals.union(start, end)
    kept = union.start.copy(), union.end.copy()
    intervals.subtract(union, union_of_pairs([(0, 5)]))
    intervals.clip(union, -3, 3)
    assert start.tolist() == before[0].tolist()
    assert end.tolist() == before[1].tolist()
    assert union.start.tolist() == kept[0].tolist()
    assert union.end.tolist() == kept[1].tolist()
