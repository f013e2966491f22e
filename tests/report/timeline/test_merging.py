"""Packed columns round-trip, and merged marks lose no event."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview import intervals
from traceview.report.columns import Columns
from traceview.report.timeline.levels import merged
from traceview.report.timeline.marks import Marks

numbers = st.lists(st.integers(0, 2**53), max_size=40)
spans = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 300)), min_size=1, max_size=120)


def planes(buffer: bytes, place: list[int], length: int) -> list[int]:
    first, width = place
    parts = [buffer[first + order * length : first + (order + 1) * length] for order in range(width)]
    return [sum(part[at] << (8 * order) for order, part in enumerate(parts)) for at in range(length)]


def unpacked(columns: Columns, place: list[int], length: int) -> list[int]:
    return planes(columns.raw(), place, length)


@given(st.lists(numbers, min_size=1, max_size=5))
def test_columns_round_trip(lists: list[list[int]]) -> None:
    columns = Columns()
    places = [columns.add(np.array(values, np.int64)) for values in lists]
    assert [unpacked(columns, place, len(values)) for place, values in zip(places, lists, strict=True)] == lists


@given(numbers)
def test_ascending_columns_hold_differences(values: list[int]) -> None:
    values.sort()
    columns = Columns()
    place = columns.add_ascending(np.array(values, np.int64))
    assert np.cumsum(np.array(unpacked(columns, place, len(values)), np.int64)).tolist() == values


@given(st.lists(st.integers(-(2**51), 2**51), max_size=40))
def test_signed_numbers_round_trip(values: list[int]) -> None:
    columns = Columns()
    place = columns.add_signed(np.array(values, np.int64))
    assert [-(one + 1) // 2 if one % 2 else one // 2 for one in unpacked(columns, place, len(values))] == values


def marks_of(pairs: list[tuple[int, int]]) -> Marks:
    pairs.sort()
    start = np.array([first for first, _ in pairs], np.int64)
    length = np.array([span for _, span in pairs], np.int64)
    rows = np.arange(len(pairs))
    return Marks(start, start + length, rows, rows % 3, {"bytes": rows + 1}, {"correlation": rows + 1})


@given(spans, st.integers(0, 14), st.integers(1, 4))
def test_merging_loses_no_event(pairs: list[tuple[int, int]], shift: int, further: int) -> None:
    marks = marks_of(pairs)
    once = merged(marks, 0, shift)
    for found in (once, merged(once, 0, shift + further)):
        if found.merge is None:
            assert len(found) == len(pairs)
            continue
        assert found.merge.count.sum() == len(pairs)
        assert found.merge.busy.sum() == (marks.end - marks.start).sum()
        assert found.sums["bytes"].sum() == marks.sums["bytes"].sum()
        assert (np.diff(found.start) >= 0).all()
        alone = found.merge.count == 1
        assert (found.details["correlation"][alone] > 0).all()
        assert (found.details["correlation"][~alone] == 0).all()
        covered = intervals.union(found.start, found.end)
        assert intervals.length(intervals.subtract(intervals.union(marks.start, marks.end), covered)) == 0


@given(spans, st.integers(0, 62), st.integers(1, 4))
def test_merged_mark_has_longest_name_and_main_class(pairs: list[tuple[int, int]], shift: int, further: int) -> None:
    marks = marks_of(pairs)
    found = merged(merged(marks, 0, shift), 0, min(shift + further, 62))
    if found.merge is None:
        return
    last = np.cumsum(found.merge.count)
    for at, (first, until) in enumerate(zip(last - found.merge.count, last, strict=True)):
        length = (marks.end - marks.start)[first:until]
        assert length[found.name[at] - first] == length.max() == found.merge.top[at]
        of_class = np.bincount(marks.look[first:until], weights=length, minlength=3)
        assert of_class[found.look[at]] == of_class.max()


@given(spans, st.integers(0, 14), st.integers(1, 9), st.booleans())
def test_block_size_does_not_change_marks(pairs: list[tuple[int, int]], shift: int, block: int, alike: bool) -> None:
    marks = marks_of(pairs)
    if alike:
        marks = replace(marks, name=marks.name * 0, look=marks.look * 0)
    found = []
    for size in (intervals.BLOCK, block):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(intervals, "BLOCK", size)
            once = merged(marks, 0, shift)
            found += [repr(asdict(once)), repr(asdict(merged(once, 0, shift + 2)))]
    assert found[:2] == found[2:]


def test_equal_marks_take_the_first_name() -> None:
    for shift in (12, 62):
        found = merged(marks_of([(at * 10, 7) for at in range(100)]), 0, shift)
        assert found.name.tolist() == [0] and found.merge is not None and found.merge.top.tolist() == [7]


def test_long_mark_is_not_merged() -> None:
    found = merged(marks_of([(at * 10, 2) for at in range(100)] + [(401, 500)]), 0, 7)
    assert found.merge is not None
    [at] = np.flatnonzero(found.start == 401)
    assert found.merge.count[at] == 1 and found.end[at] == 901
    assert len(found) < 15
