"""The search index keeps places of each name, spread evenly over all of its events in all rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview.report.timeline import summary
from traceview.report.timeline.marks import Marks
from traceview.report.timeline.rows import Group, TimelineRow
from traceview.report.timeline.summary import Index

lanes = st.lists(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 300)), max_size=40), max_size=5)


def row(number: int, events: list[tuple[int, int]]) -> TimelineRow:
    start = np.array(sorted(first for first, _ in events), np.int64)
    name = np.array([at for _, at in events], np.int32)
    marks = Marks(start, start + name + 1, name, np.zeros(len(events), np.uint8))
    return TimelineRow("stream", f"s:{number % 3}", "", "", (marks,), len(events))


@given(lanes, st.integers(1, 5))
def test_places_are_spread_over_the_events_of_a_name(events: list[list[tuple[int, int]]], most: int) -> None:
    rows = [row(number, one) for number, one in enumerate(events)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "MAX_PLACES_OF_NAME", most)
        found = Index.from_groups([Group("", "", tuple(rows))], 301)
    of_name: dict[int, list[tuple[int, str, int]]] = {}
    for one in rows:
        for start, end, name in zip(one.lanes[0].start, one.lanes[0].end, one.lanes[0].name, strict=True):
            of_name.setdefault(int(name), []).append((int(start), one.id, int(end - start)))
    expected = []
    for name, places in sorted(of_name.items()):
        kept = min(len(places), most)
        chosen = [places[rank * len(places) // kept] for rank in range(kept)]
        expected += [(name, len(places), *place) for place in sorted(chosen, key=lambda place: place[0])]
    columns = (found.name, found.count, found.start, [found.rows[at] for at in found.row], found.length)
    assert list(zip(*(list(column) for column in columns), strict=True)) == expected
