"""The search index keeps places of each name, spread over the time of its events in all rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview.report.timeline import packing
from traceview.report.timeline.marks import Marks
from traceview.report.timeline.packing import Index
from traceview.report.timeline.rows import Group, TimelineRow

lanes = st.lists(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 300)), max_size=40), max_size=5)


def row(number: int, events: list[tuple[int, int]]) -> TimelineRow:
    start = np.array(sorted(first for first, _ in events), np.int64)
    name = np.array([at for _, at in events], np.int32)
    marks = Marks(start, start + name + 1, name, np.zeros(len(events), np.uint8))
    return TimelineRow("stream", f"s:{number % 3}", "", "", (marks,), len(events))


@given(lanes, st.integers(1, 5))
def test_places_are_the_first_events_of_the_narrowest_bins(events: list[list[tuple[int, int]]], most: int) -> None:
    rows = [row(number, one) for number, one in enumerate(events)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "MAX_PLACES_OF_NAME", most)
        chosen = Index.from_groups([Group("", "", tuple(rows))], 301)
    of_name: dict[int, list[tuple[int, str, int]]] = {}
    for one in rows:
        for start, end, name in zip(one.lanes[0].start, one.lanes[0].end, one.lanes[0].name, strict=True):
            of_name.setdefault(int(name), []).append((int(start), one.id, int(end - start)))
    expected = []
    for name, places in sorted(of_name.items()):
        places.sort(key=lambda place: place[:2])
        kept, width = places, 0
        while len(kept) > most:
            firsts = {place[0] >> width: place for place in reversed(places)}
            kept, width = [firsts[bin] for bin in sorted(firsts)], width + 1
        expected += [(name, len(places), *place) for place in kept]
    columns = (chosen.name, chosen.count, chosen.start, [chosen.rows[at] for at in chosen.row], chosen.length)
    assert list(zip(*(list(column) for column in columns), strict=True)) == expected
