"""Operations on unions, compared with sets of single nanoseconds."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given

from tests.intervals.pairs import PAIR, PAIRS, arrays, as_pairs, moments, union_of_pairs
from traceview import intervals
from traceview.intervals import Intervals


def is_union(union: Intervals) -> bool:
    pairs = as_pairs(union)
    return all(start < end for start, end in pairs) and all(left[1] <= right[0] for left, right in pairwise(pairs))


@given(PAIRS)
def test_union_merges_touching_intervals(pairs: list[tuple[int, int]]) -> None:
    union = union_of_pairs(pairs)
    assert moments(as_pairs(union)) == moments(pairs)
    assert all(left[1] < right[0] for left, right in zip(as_pairs(union), as_pairs(union)[1:], strict=False))
    assert intervals.length(union) == len(moments(pairs))


@given(PAIRS)
def test_union_of_ordered_input(pairs: list[tuple[int, int]]) -> None:
    assert as_pairs(intervals.union(*arrays(sorted(pairs)), ordered=True)) == as_pairs(union_of_pairs(pairs))


@given(PAIRS)
def test_own_lengths_are_what_no_earlier_interval_covers(pairs: list[tuple[int, int]]) -> None:
    ordered = sorted(pairs)
    own = intervals.own_lengths(*arrays(ordered)).tolist()
    assert own == [len(moments([pair]) - moments(ordered[:place])) for place, pair in enumerate(ordered)]


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
