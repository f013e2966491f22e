"""The rows of the timeline: devices with their bands and streams, processes with their threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from traceview import intervals
from traceview.intervals import Intervals
from traceview.model import Analysis, Iterations
from traceview.report.html.columns import Columns
from traceview.report.html.lanes import HostLanes, StreamLanes
from traceview.report.html.looks import LOOKS
from traceview.report.html.marks import Marks, Names
from traceview.report.html.rows import Group, Row, device_bands
from traceview.report.html.summary import summarised

# Above this the page holds a summary: what a browser draws and loads without a wait.
FULL_DETAIL = 100_000
SHOWN_ROWS = 16
SHORT_PLACE = 200  # a place longer than the capture divided by this is summarised too


@dataclass(frozen=True, slots=True)
class Span:
    """The stretch that the timeline covers, in ns on the capture's clock."""

    start: int
    end: int


def origin(analysis: Analysis) -> int:
    """Return the moment from which the page counts time: the first event, or the window's start."""
    return _span(analysis).start


def timeline(analysis: Analysis, zero: int, columns: Columns) -> tuple[dict[str, object], list[str]]:
    """Put every row's marks into `columns`; return what the script needs to draw them, and their names."""
    names = Names()
    groups = list(_groups(analysis, names))
    events = sum(row.events for group in groups for row in group.rows)
    span = _span(analysis)
    whole = events <= FULL_DETAIL
    if not whole:
        rows = sum(len(group.rows) for group in groups)
        places = _evidence(analysis, (span.end - span.start) // SHORT_PLACE)
        groups = [_smaller(group, span, rows, places) for group in groups]
    groups, texts = _only_used(groups, names.texts)
    content = {
        "span": [span.start - zero, span.end - zero],
        "events": events,
        "whole": whole,
        "limit": FULL_DETAIL,
        "looks": list(LOOKS),
        "groups": [_written(group, columns, zero) for group in groups],
    }
    return content, texts


def _only_used(groups: list[Group], texts: list[str]) -> tuple[list[Group], list[str]]:
    """Number the names anew: those that merging left without a mark stay out of the page."""
    numbers = [row.marks.name for group in groups for row in group.rows if row.marks is not None]
    used = np.unique(np.concatenate(numbers)) if numbers else np.empty(0, np.int64)
    renamed = [
        replace(
            group,
            rows=tuple(
                row
                if row.marks is None
                else replace(row, marks=replace(row.marks, name=np.searchsorted(used, row.marks.name)))
                for row in group.rows
            ),
        )
        for group in groups
    ]
    return renamed, [texts[number] for number in used]


def _span(analysis: Analysis) -> Span:
    if analysis.trace.window is not None:
        return Span(analysis.trace.window.start, analysis.trace.window.end)
    frames = (analysis.trace.operations, analysis.trace.api, analysis.trace.ranges)
    starts = [int(frame["start"].to_numpy()[0]) for frame in frames if len(frame)]
    ends = [int(frame["end"].to_numpy().max()) for frame in frames if len(frame)]
    return Span(min(starts, default=0), max(ends, default=1))


def _groups(analysis: Analysis, names: Names) -> Iterator[Group]:
    if isinstance(analysis.iterations, Iterations):
        yield _ruler(analysis.iterations, names)
    streams = StreamLanes.of(analysis, names)
    for device in analysis.devices:
        note = f"{device.name} " if device.name else ""
        rows = (*device_bands(analysis, device, names), *streams.rows(device))
        yield Group(device.id, note.strip(), rows)
    yield from HostLanes.of(analysis, names).groups()


def _ruler(found: Iterations, names: Names) -> Group:
    each = found.per_iteration
    start = np.array([one.start_ns for one in each], np.int64)
    order = np.argsort(start, kind="stable")
    marks = Marks(
        start,
        np.array([one.end_ns for one in each], np.int64),
        np.array([names.number(one.name) for one in each], np.int64),
        np.array([LOOKS.index("skipped" if one.skipped else "iteration") for one in each], np.int64),
    ).take(order)
    return Group("", "", (Row("ruler", "ruler", "iterations", found.range, marks),))


def _evidence(analysis: Analysis, longest: int) -> Intervals:
    """Return the places that decide a finding: what lies there stays in full detail."""
    places = [place for finding in analysis.findings for place in finding.evidence]
    start = np.array([place.start_ns for place in places], np.int64)
    end = np.array([place.end_ns for place in places], np.int64)
    short = end - start <= longest
    return intervals.union(start[short], end[short])


def _smaller(group: Group, span: Span, rows: int, whole: Intervals) -> Group:
    bins = max(200, FULL_DETAIL // (2 * rows))
    length = span.end - span.start
    smaller = (
        row if row.marks is None else replace(row, marks=summarised(row.marks, span.start, length, bins, whole))
        for row in group.rows
    )
    return Group(group.label, group.note, tuple(smaller))


def _written(group: Group, columns: Columns, zero: int) -> dict[str, object]:
    return {
        "label": group.label,
        "note": group.note,
        "rows": [
            {
                "kind": row.kind,
                "id": row.id,
                "label": row.label,
                "note": row.note,
                "more": row.more or place >= SHOWN_ROWS,
                "marks": None if row.marks is None else row.marks.write(columns, zero),
            }
            for place, row in enumerate(group.rows)
        ],
    }
