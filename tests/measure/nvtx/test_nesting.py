"""Tests of open ranges against their definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from traceview.measure.nvtx import Nesting, innermost_ranges

RANGE = st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 2))
QUERY = st.tuples(st.integers(-2, 45), st.integers(-1, 3))


def open_rows(ranges: list[tuple[int, int, int]], thread: int, at: int) -> list[int]:
    found = [row for row, (start, length, of) in enumerate(ranges) if of == thread and start <= at < start + length]
    return sorted(found, key=lambda row: (-ranges[row][0], ranges[row][1], -row))


def columns(rows: list[tuple[int, ...]], count: int) -> list[np.ndarray]:
    return [np.array([row[index] for row in rows], np.int64) for index in range(count)]


@settings(max_examples=150, deadline=None)
@given(st.lists(RANGE, max_size=12), st.lists(QUERY, max_size=10))
def test_open_ranges_innermost_first(ranges: list[tuple[int, int, int]], queries: list[tuple[int, int]]) -> None:
    start, length, thread = columns(ranges, 3)
    at, asked = columns(queries, 2)
    nesting = Nesting.build(start, start + length, thread)
    found: list[list[int]] = [[] for _ in queries]
    for several, places in nesting.levels(nesting.innermost(asked, at), at):
        for query, place in zip(several.tolist(), places.tolist(), strict=True):
            found[query].append(int(nesting.rows[place]))
    expected = [open_rows(ranges, of, moment) for moment, of in queries]
    keys = [[ranges[row] for row in rows] for rows in found]
    assert keys == [[ranges[row] for row in rows] for rows in expected]
    assert [sorted(rows) for rows in found] == [sorted(rows) for rows in expected]
    inner = innermost_ranges(start, start + length, thread, asked, at).tolist()
    assert inner == [rows[0] if rows else -1 for rows in found]
