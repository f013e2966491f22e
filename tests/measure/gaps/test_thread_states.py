"""Tests of the time of threads in calls against sets of single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from traceview import intervals
from traceview.intervals import EMPTY
from traceview.measure.gaps import ThreadCalls

# Mostly one after the other, like calls; sometimes nested.
CALLS = st.lists(st.tuples(st.sampled_from([0, 1, 3, 3, 9, -2]), st.integers(0, 4), st.integers(0, 1)), max_size=40)
QUESTIONS = st.lists(st.tuples(st.integers(-9, 150), st.integers(-3, 120)), max_size=9)


@example([(0, 4, 1), (0, 4, 1), (-2, 4, 1)], [(0, 99)])  # overlapping calls
@given(CALLS, QUESTIONS)
def test_lookups_equal_counted_nanoseconds(calls: list[tuple[int, int, int]], questions: list[tuple[int, int]]) -> None:
    spans, at = [], 0
    for after, length, thread in calls:
        spans.append((at := max(at + after, 0), at + length, thread))
        at += length
    spans.sort()
    start, end, thread = (np.array([span[side] for span in spans], np.int64) for side in range(3))
    first, lasting = (np.array([one[side] for one in questions], np.int64) for side in (0, 1))
    for _, rows in intervals.rows_by_code(thread):
        own = [spans[row][:2] for row in rows.tolist()]
        moments = {moment for begin, stop in own for moment in range(begin, stop)}
        found = ThreadCalls.build(start[rows], end[rows], np.zeros(len(rows), np.uint8), EMPTY).all
        expected = [len(moments & set(range(begin, begin + ns))) for begin, ns in questions]
        assert found.length_between(first, first + lasting).tolist() == expected
        asked = intervals.union(first, first + lasting)
        both = intervals.intersect(found.members_near(asked), asked)
        inside = {moment for begin, ns in questions for moment in range(begin, begin + ns)}
        assert intervals.length(both) == len(moments & inside)
