"""Covered lengths of moments and queries, compared with sets of single nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.intervals.pairs import PAIRS, arrays, moments, union_of_pairs
from traceview import intervals
from traceview.intervals import Coverage, covered_length


@given(PAIRS, st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), max_size=8))
def test_covered_length(pairs: list[tuple[int, int]], queries: list[tuple[int, int]]) -> None:
    start, end = arrays(queries)
    expected = [len(moments(pairs) & set(range(first, last))) for first, last in queries]
    assert covered_length(union_of_pairs(pairs), start, end).tolist() == expected


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
    covered = Coverage.from_union(union_of_pairs(pairs))
    when = np.array(at, np.int64)
    expected = [len({moment for moment in moments(pairs) if moment < one}) for one in at]
    assert covered.length_before(when).tolist() == expected
    assert covered.length_up_to(covered.member_at(when), when).tolist() == expected
    assert [kept.tolist() for kept in covered.union()] == [kept.tolist() for kept in union_of_pairs(pairs)]
