"""Fewer marks where a capture has more than a page can hold: neighbours merge, and say so."""

from __future__ import annotations

import numpy as np

from traceview.intervals import EMPTY, Intervals, Times
from traceview.report.html.marks import Marks


def summarised(marks: Marks, zero: int, length: int, bins: int, whole: Intervals = EMPTY) -> Marks:
    """Merge marks that start in the same of `bins` equal parts of [zero, zero + length).

    A mark longer than a part stays alone, and so does one that touches the union `whole`. A merged mark
    runs from the first start to the last end, has the name and class of its longest event, and knows how
    many events and how many ns they were.
    """
    if len(marks.start) <= bins:
        return marks
    width = max(1, -(-length // bins))
    spans = marks.end - marks.start
    part = (marks.start - zero) // width
    kept = np.searchsorted(whole.start, marks.end, "right") > np.searchsorted(whole.end, marks.start, "left")
    long = (spans >= width) | kept
    # A long mark and the one after it each begin a group.
    begins = np.ones(len(part), np.bool_)
    begins[1:] = (part[1:] != part[:-1]) | long[1:] | long[:-1]
    first = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    longest = np.lexsort((-spans, group))[first]
    return Marks(
        marks.start[first],
        np.maximum.reduceat(marks.end, first),
        marks.name[longest],
        marks.look[longest],
        {key: np.add.reduceat(column, first) for key, column in marks.sums.items()},
        {key: _of_single(column, first, len(part)) for key, column in marks.details.items()},
        np.diff(np.append(first, len(part))),
        np.add.reduceat(spans, first),
    )


def _of_single(column: Times, first: Times, total: int) -> Times:
    """Keep what holds for one event only where the group is one event."""
    alone = np.diff(np.append(first, total)) == 1
    return np.where(alone, column[first], 0)
