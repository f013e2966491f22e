"""Lanes against a slow and obvious answer."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview.export.lanes import crossing, flat

EVENTS = st.lists(st.tuples(st.integers(-3, 12), st.integers(0, 6), st.integers(0, 2)), max_size=14)
Events = list[tuple[int, int, int]]


def columns(events: Events) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    start = np.array([start for start, _, _ in events], np.int64)
    length = np.array([length for _, length, _ in events], np.int64)
    return start, start + length, np.array([group for _, _, group in events], np.int64)


@given(EVENTS)
def test_events_of_a_lane_never_overlap_and_lanes_are_as_few_as_can_be(events: Events) -> None:
    start, end, group = columns(events)
    lanes = flat(start, end, group)
    for one in range(len(events)):
        for other in range(one):
            if group[one] == group[other] and lanes[one] == lanes[other] and events[one][1] and events[other][1]:
                assert end[one] <= start[other] or end[other] <= start[one]
    for which in set(group.tolist()):
        mine = group == which
        depth = max(int((mine & (end > start) & (start <= at) & (at < end)).sum()) for at in range(-3, 20))
        assert lanes[mine].max() + 1 == max(depth, 1)


@given(EVENTS)
def test_without_what_crosses_everything_nests(events: Events) -> None:
    start, end, group = columns(events)
    found = set(crossing(start, end, group).tolist())
    for one in range(len(events)):
        crosses = any(
            group[one] == group[other] and start[other] < start[one] < end[other] < end[one]
            for other in range(len(events))
        )
        assert (one in found) == crosses
