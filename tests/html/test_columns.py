"""Packed columns come out as they went in, and merged marks lose no event."""

from __future__ import annotations

import base64
import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview import intervals
from traceview.report.html.columns import Columns
from traceview.report.html.marks import Marks
from traceview.report.html.summary import summarised

numbers = st.lists(st.integers(0, 2**53), max_size=40)
spans = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 300)), min_size=1, max_size=120)


def unpacked(columns: Columns, place: list[int | str], length: int) -> list[int]:
    buffer = zlib.decompress(base64.b64decode(columns.packed()))
    return [int(one) for one in np.frombuffer(buffer, f"<{place[1]}", length, int(place[0]))]


@given(st.lists(numbers, min_size=1, max_size=5))
def test_columns_come_out_as_they_went_in(lists: list[list[int]]) -> None:
    columns = Columns()
    places = [columns.add(np.array(values, np.int64)) for values in lists]
    assert all(int(place[0]) % 8 == 0 for place in places)
    assert [unpacked(columns, place, len(values)) for place, values in zip(places, lists, strict=True)] == lists


@given(numbers)
def test_ascending_columns_hold_the_steps(values: list[int]) -> None:
    values.sort()
    columns = Columns()
    place = columns.add_ascending(np.array(values, np.int64))
    assert np.cumsum(np.array(unpacked(columns, place, len(values)), np.int64)).tolist() == values


def marks_of(pairs: list[tuple[int, int]]) -> Marks:
    pairs.sort()
    start = np.array([first for first, _ in pairs], np.int64)
    length = np.array([span for _, span in pairs], np.int64)
    rows = np.arange(len(pairs))
    return Marks(start, start + length, rows, rows % 3, {"bytes": rows + 1}, {"correlation": rows + 1})


@given(spans, st.integers(1, 50))
def test_merging_loses_nothing(pairs: list[tuple[int, int]], bins: int) -> None:
    marks = marks_of(pairs)
    merged = summarised(marks, 0, 10_300, bins)
    if merged.count is None or merged.busy is None:
        assert len(pairs) <= bins
        return
    assert merged.count.sum() == len(pairs)
    assert merged.busy.sum() == (marks.end - marks.start).sum()
    assert merged.sums["bytes"].sum() == marks.sums["bytes"].sum()
    assert (np.diff(merged.start) >= 0).all()
    alone = merged.count == 1
    assert (merged.details["correlation"][alone] > 0).all()
    assert (merged.details["correlation"][~alone] == 0).all()
    covered = intervals.union(merged.start, merged.end)
    assert intervals.length(intervals.subtract(intervals.union(marks.start, marks.end), covered)) == 0


def test_a_long_mark_and_a_place_that_decides_stay_alone() -> None:
    marks = marks_of([(at * 10, 2) for at in range(100)] + [(401, 500)])
    place = intervals.union(np.array([200], np.int64), np.array([230], np.int64))
    merged = summarised(marks, 0, 1000, 10, place)
    assert merged.count is not None
    single = {int(start) for start, count in zip(merged.start, merged.count, strict=True) if count == 1}
    assert {200, 210, 220, 230, 401} <= single
    assert len(merged.start) < 30
