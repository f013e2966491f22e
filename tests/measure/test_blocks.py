"""Tests that the size of blocks and batches changes no figure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from traceview import analyze, intervals
from traceview.measure import sums
from traceview.report.analysis import to_json

PAIRS = st.lists(st.tuples(st.integers(-30, 30), st.integers(0, 9)), max_size=30)


@pytest.mark.parametrize("name", ["dual.sqlite", "ddp2.sqlite"])
def test_block_size_changes_no_figure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = to_json(analyzed(sample(name)))
    monkeypatch.setattr(intervals, "BLOCK", 1001)
    monkeypatch.setattr(sums, "MAX_BATCH", 500)
    monkeypatch.setattr(intervals, "LARGEST_BLOCK", 7)
    assert to_json(analyze(sample(name))) == whole


@given(PAIRS, st.integers(1, 5))
def test_union_length(pairs: list[tuple[int, int]], block: int) -> None:
    ordered = sorted((start, start + length) for start, length in pairs)
    start, end = (np.array([pair[side] for pair in ordered], np.int64) for side in (0, 1))
    moments = {moment for first, last in ordered for moment in range(first, last)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "BLOCK", block)
        assert intervals.union_length(start, end, np.arange(len(start))) == len(moments)


@given(PAIRS)
def test_ordered_union_returns_first_intervals(pairs: list[tuple[int, int]]) -> None:
    ordered = sorted((start, start + length) for start, length in pairs)
    start, end = (np.array([pair[side] for pair in ordered], np.int64) for side in (0, 1))
    union, first = intervals.ordered_union(start, end)
    assert start[first].tolist() == union.start.tolist()
    assert (end[first] > start[first]).all()
    for row in first:
        before = end[:row] > start[:row]
        assert (end[:row][before] < start[row]).all()


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(0, 7), st.integers(1, 9))
def test_largest_positions_are_ordered(values: list[int], count: int, block: int) -> None:
    expected = sorted((row for row, value in enumerate(values) if value), key=lambda row: (-values[row], row))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "LARGEST_BLOCK", block)
        assert intervals.largest_positions(np.array(values, np.int64), count) == expected[:count]


@given(st.lists(st.integers(0, 5), max_size=40))
def test_rows_of_each_code(codes: list[int]) -> None:
    expected = {code: [row for row, each in enumerate(codes) if each == code] for code in sorted(set(codes))}
    rows = dict(intervals.rows_by_code(np.array(codes, np.int16)))
    assert {code: own.tolist() for code, own in rows.items()} == expected and list(rows) == list(expected)
