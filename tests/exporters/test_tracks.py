"""Lanes and crossing rows against a slow, simple computation."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview.captures.export.slices import assign_lanes, crossing_rows

EVENTS = st.lists(st.tuples(st.integers(-3, 12), st.integers(0, 6), st.integers(0, 2)), max_size=14)
Events = list[tuple[int, int, int]]


def columns(events: Events) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    start = np.array([start for start, _, _ in events], np.int64)
    length = np.array([length for _, length, _ in events], np.int64)
    return start, start + length, np.array([group for _, _, group in events], np.int64)


@given(EVENTS)
def test_lanes_do_not_overlap_and_are_few(events: Events) -> None:
    start, end, group = columns(events)
    lanes = assign_lanes(start, end, group)
    for first in range(len(events)):
        for second in range(first):
            same_lane = group[first] == group[second] and lanes[first] == lanes[second]
            if same_lane and events[first][1] and events[second][1]:
                assert end[first] <= start[second] or end[second] <= start[first]
    for which in set(group.tolist()):
        mine = group == which
        depth = max(int((mine & (end > start) & (start <= at) & (at < end)).sum()) for at in range(-3, 20))
        assert lanes[mine].max() + 1 == max(depth, 1)


@given(EVENTS)
def test_crossing_rows(events: Events) -> None:
    start, end, group = columns(events)
    crossing = set(crossing_rows(start, end, group).tolist())
    for first in range(len(events)):
        crosses = any(
            group[first] == group[second] and start[second] < start[first] < end[second] < end[first]
            for second in range(len(events))
        )
        assert (first in crossing) == crosses
