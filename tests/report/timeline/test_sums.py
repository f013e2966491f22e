"""Sums by name and bin, against a loop over every nanosecond."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview.report.timeline.marks import Marks
from traceview.report.timeline.sums import name_sums

EVENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.sampled_from([0, 3, 9])), max_size=25)
EDGES = st.lists(st.integers(0, 80), min_size=2, max_size=7, unique=True).map(sorted)


@given(EVENTS, EDGES)
def test_sums_agree_with_every_nanosecond(events: list[tuple[int, int, int]], borders: list[int]) -> None:
    events = sorted(events)
    start, length, name = (np.array([event[part] for event in events], np.int64) for part in range(3))
    marks = Marks(start, start + length, name, np.zeros(len(events), np.uint8))
    edges = np.array(borders, np.int64)
    time: Counter[tuple[int, int]] = Counter()
    started: Counter[tuple[int, int]] = Counter()
    for first, long, number in events:
        for place, (low, high) in enumerate(itertools.pairwise(borders)):
            time[place, number] += len(range(max(first, low), min(first + long, high)))
            started[place, number] += low <= first < high
    expected = [(*key, time[key], started[key]) for key in sorted(time) if time[key] or started[key]]
    assert list(zip(*(column.tolist() for column in name_sums(marks, edges)), strict=True)) == expected
