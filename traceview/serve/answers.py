"""Answers to the page's requests, from all marks of the timeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.model.analysis import Analysis
from traceview.report.timeline.build import works
from traceview.report.timeline.columns import Columns
from traceview.report.timeline.marks import Marks, Names
from traceview.report.timeline.merge import merged
from traceview.report.timeline.rows import Group, Row
from traceview.report.timeline.search_index import SEARCHED
from traceview.report.timeline.sums import Work, device_sums
from traceview.serve.query import (
    MAX_CORRELATION,
    MAX_SHIFT,
    Query,
    moment,
    row_numbers,
    searched_text,
    whole_number,
)

MAX_LANE_MARKS = 20_000  # of one lane in one answer; more are merged into bins
MAX_LANE_BINS = 1 << 16  # of one lane in one answer: bins are wider than requested where more would be needed
MAX_ANSWER_MARKS = 4_000_000  # of one answer, about 160 MB
MAX_PLACES = 4096  # of one search, those nearest to where the page looks
MAX_PARTNERS = 4096  # of one call
Json = dict[str, Any]


class Lane:
    """One lane's marks, with the latest end so far, which can be searched."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    @cached_property
    def reach(self) -> Times:
        """The latest end up to each mark, in ns."""
        reach: Times = np.maximum.accumulate(self.marks.end)
        return reach

    def between(self, start: int, end: int) -> Marks:
        """Return the marks that touch [start, end], in ns on the capture's clock."""
        first = int(np.searchsorted(self.reach, start, side="left"))
        last = int(np.searchsorted(self.marks.start, end, side="right"))
        return self.marks.take(slice(first, max(first, last)))


@dataclass(frozen=True)
class Answers:
    """All rows of a capture's timeline, in the order in which the page has them; times count from `zero`."""

    analysis: Analysis
    rows: Sequence[Row]
    lanes: Sequence[Sequence[Lane]]
    work: Sequence[Work]  # of each device
    idle: Sequence[Marks]  # its gaps
    texts: Sequence[str]
    zero: int

    @classmethod
    def from_groups(cls, analysis: Analysis, groups: Sequence[Group], names: Names, zero: int) -> Answers:
        """Return the answers of a timeline's rows; no mark is copied."""
        rows = [row for group in groups for row in group.rows]
        lanes = [[Lane(marks) for marks in row.lanes] for row in rows]
        idle = [row.lanes[0] for row in rows if row.kind == "idle"]
        return cls(analysis, rows, lanes, works(groups), idle, names.texts, zero)

    def marks(self, query: Query) -> bytes:
        """Answer `from`, `to`, `shift`, `rows`: the marks of those rows, as a header and packed columns.

        The first four bytes are the length of the header, which is JSON: for each row and lane the bins' width
        in ns (0: every event) and where its columns lie in what follows. Raises RequestError.
        """
        start, end = moment(query, "from"), moment(query, "to")
        shift = max(whole_number(query, "shift", 0, MAX_SHIFT), (max(0, end - start) // MAX_LANE_BINS).bit_length())
        columns, rows, total = Columns(), {}, 0
        for number in row_numbers(query, "rows", len(self.rows)):
            lanes = []
            for lane in self.lanes[number]:
                marks, width = self._lane_marks(lane, start, end, shift)
                total += len(marks)
                if total > MAX_ANSWER_MARKS:
                    raise RequestError(f"rows: more than {MAX_ANSWER_MARKS} marks; request fewer rows")
                lanes.append({"bin": width, "marks": marks.write(columns, self.zero)})
            rows[number] = lanes
        header = json.dumps({"from": start, "to": end, "rows": rows}).encode()
        return len(header).to_bytes(4, "little") + header + columns.raw()

    def _lane_marks(self, lane: Lane, start: int, end: int, shift: int) -> tuple[Marks, int]:
        """Return the marks of a lane between two moments and the width of their bins, 0 for single events."""
        marks = lane.between(start + self.zero, end + self.zero)
        if len(marks) <= MAX_LANE_MARKS:
            return marks, 0
        return merged(marks, self.zero, shift), 1 << shift

    def measure(self, query: Query) -> Json:
        """Answer `from`, `to`: what each device did between the two moments, to the nanosecond."""
        start, end = moment(query, "from"), moment(query, "to")
        edges = np.array([start, max(start, end)], np.int64) + self.zero
        devices = []
        for device, work, idle in zip(self.analysis.devices, self.work, self.idle, strict=True):
            figures = device_sums(self.analysis, device, work, idle, edges)
            sums = {name: int(values[0]) for name, values in figures.items()}
            causes = {cause: sums.pop(cause, 0) for cause in device.gaps.causes}
            devices.append({"id": device.id, **sums, "causes": {cause: ns for cause, ns in causes.items() if ns}})
        return {"from": start, "to": end, "exact": True, "devices": devices}

    def find(self, query: Query) -> Json:
        """Answer `text`, `at`: how many events have it in their names, and the places nearest to `at`."""
        wanted, at = searched_text(query, "text"), moment(query, "at")
        fits = np.array([bool(wanted) and wanted in text.lower() for text in self.texts], np.bool_)
        start, end, row = (np.concatenate(parts) for parts in zip(*self._fitting(fits), strict=True))
        order = np.lexsort((end, start))
        middle = int(np.searchsorted(start[order], at + self.zero))
        first = max(0, min(middle - MAX_PLACES // 2, len(order) - MAX_PLACES))
        chosen = order[first : first + MAX_PLACES]
        places = np.stack([row[chosen], start[chosen] - self.zero, end[chosen] - self.zero], axis=1)
        return {"total": len(order), "first": first, "places": places.tolist()}

    def _fitting(self, fits: np.ndarray[Any, np.dtype[np.bool_]]) -> list[tuple[Times, Times, Times]]:
        nothing = np.empty(0, np.int64)
        places = [(nothing, nothing, nothing)]
        for number, (row, lanes) in enumerate(zip(self.rows, self.lanes, strict=True)):
            for lane in lanes if row.kind in SEARCHED else ():
                here = np.flatnonzero(fits[lane.marks.name])
                places.append((lane.marks.start[here], lane.marks.end[here], np.full(len(here), number)))
        return places

    def partner(self, query: Query) -> list[Json]:
        """Answer `row`, `correlation`: the call that launched this work, or the work that this call launched."""
        row = self.rows[whole_number(query, "row", 0, len(self.rows) - 1)]
        correlation = whole_number(query, "correlation", -MAX_CORRELATION, MAX_CORRELATION)
        kind = {"stream": "call", "call": "stream"}.get(row.kind)
        partners: list[Json] = []
        for number, other in enumerate(self.rows):
            if other.kind != kind or other.process != row.process or correlation == 0:
                continue
            for lane in self.lanes[number]:
                rows = _rows_with(lane.marks, correlation)[: MAX_PARTNERS - len(partners)]
                partners.extend(self._mark(number, lane.marks, at) for at in rows.tolist())
        return partners

    def _mark(self, row: int, marks: Marks, at: int) -> Json:
        own = {"start": marks.start[at] - self.zero, "end": marks.end[at] - self.zero}
        rest = {"name": marks.name[at], "look": marks.look[at], "correlation": marks.details["correlation"][at]}
        return {"row": row, **{key: int(value) for key, value in {**own, **rest}.items()}}


def _rows_with(marks: Marks, correlation: int) -> Times:
    """Return the rows of the marks with a correlation id."""
    if "correlation" not in marks.details:
        return np.empty(0, np.int64)
    return np.flatnonzero(marks.details["correlation"] == correlation)
