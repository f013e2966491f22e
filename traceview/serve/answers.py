"""Answers to the page's requests, computed from every mark of the timeline; each request parameter has bounds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.model.analysis import Analysis
from traceview.report.timeline.build import works
from traceview.report.timeline.columns import Columns
from traceview.report.timeline.levels import merged
from traceview.report.timeline.marks import MAX_NAME_LENGTH, Marks, Names
from traceview.report.timeline.name_sums import row_sums
from traceview.report.timeline.rows import Group, TimelineRow
from traceview.report.timeline.summary import SEARCHED, Work, device_sums

MAX_LANE_MARKS = 20_000  # per lane and answer; a lane with more is merged into bins
MAX_LANE_BINS = 1 << 16  # per lane and answer; bins become wider than requested beyond this
MAX_ANSWER_MARKS = 4_000_000  # per answer, about 160 MB
MAX_PLACES = 4096  # per search: the places nearest to the page's view
MAX_NAMES = 500  # per row and measurement: those with the most time
MAX_PARTNERS = 4096  # per call
MAX_PARAMETERS = 20
MAX_NS = (1 << 53) - 1  # the largest integer that JavaScript holds exactly; the page counts in it
MAX_CORRELATION = (1 << 63) - 1
MAX_SHIFT = 52
MAX_ROWS = 1000
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")

Json = dict[str, Any]
Query = Mapping[str, str]


class LaneIndex:
    """One lane's marks with a searchable running maximum of their ends."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    @cached_property
    def latest_end(self) -> Times:
        """The latest end of each mark and those before it, in ns."""
        latest: Times = np.maximum.accumulate(self.marks.end)
        return latest

    def between(self, start: int, end: int) -> Marks:
        """Return the marks that touch [start, end], in ns on the capture's clock."""
        first = int(np.searchsorted(self.latest_end, start, side="left"))
        last = int(np.searchsorted(self.marks.start, end, side="right"))
        return self.marks.take(slice(first, max(first, last)))


@dataclass(frozen=True)
class Answers:
    """Every row of the timeline, in the page's order. Requests and answers count times from `zero`."""

    analysis: Analysis
    groups: Sequence[Group]
    rows: Sequence[TimelineRow]
    lanes: Sequence[Sequence[LaneIndex]]
    work: Sequence[Work]  # one per device
    idle: Sequence[Marks]  # the gaps of each device
    texts: Sequence[str]
    zero: int

    @classmethod
    def from_groups(cls, analysis: Analysis, groups: Sequence[Group], names: Names, zero: int) -> Answers:
        """Build the answers from a timeline's rows without copying a mark."""
        rows = [row for group in groups for row in group.rows]
        lanes = [[LaneIndex(marks) for marks in row.lanes] for row in rows]
        idle = [row.lanes[0] for row in rows if row.kind == "idle"]
        return cls(analysis, groups, rows, lanes, works(groups), idle, names.texts, zero)

    def marks(self, query: Query) -> bytes:
        """Answer `from`, `to`, `shift`, `rows` with the marks of these rows, as a header and packed columns.

        The first four bytes hold the length of the header. The header is JSON: for each row and lane, the bin width
        in ns (0: single events) and the position of its columns in the bytes that follow. Raises RequestError.
        """
        start, end = time_parameter(query, "from"), time_parameter(query, "to")
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

    def _lane_marks(self, lane: LaneIndex, start: int, end: int, shift: int) -> tuple[Marks, int]:
        """Return a lane's marks between two times and their bin width in ns, 0 for single events."""
        marks = lane.between(start + self.zero, end + self.zero)
        if len(marks) <= MAX_LANE_MARKS:
            return marks, 0
        return merged(marks, self.zero, shift), 1 << shift

    def measure(self, query: Query) -> Json:
        """Answer `from`, `to` with each device's figures between the two times, exact to the nanosecond."""
        start, end = time_parameter(query, "from"), time_parameter(query, "to")
        edges = np.array([start, max(start, end)], np.int64) + self.zero
        devices = []
        for device, work, idle in zip(self.analysis.devices, self.work, self.idle, strict=True):
            figures = device_sums(self.analysis, device, work, idle, edges)
            sums = {name: int(values[0]) for name, values in figures.items()}
            causes = {cause: sums.pop(cause, 0) for cause in device.gaps.causes}
            devices.append({"id": device.id, **sums, "causes": {cause: ns for cause, ns in causes.items() if ns}})
        return {"from": start, "to": end, "exact": True, "devices": devices, "sums": self._sums(edges)}

    def _sums(self, edges: Times) -> list[Json]:
        """Return the names with the most time of each row, as [name, ns, events that start] between two times."""
        sums = []
        for part in row_sums(self.groups, edges):
            most = np.argsort(-part.time, kind="stable")[:MAX_NAMES]
            names = np.stack([part.name[most], part.time[most], part.started[most]], axis=1)
            sums.append({"row": part.row, "table": part.table, "names": names.tolist()})
        return sums

    def find(self, query: Query) -> Json:
        """Answer `text`, `at` with the number of events whose name contains `text`, and the places nearest to `at`."""
        needle, at = search_text(query, "text"), time_parameter(query, "at")
        fits = np.array([bool(needle) and needle in text.lower() for text in self.texts], np.bool_)
        start, end, row = (np.concatenate(parts) for parts in zip(*self._matching_events(fits), strict=True))
        order = np.lexsort((end, start))
        middle = int(np.searchsorted(start[order], at + self.zero))
        first = max(0, min(middle - MAX_PLACES // 2, len(order) - MAX_PLACES))
        chosen = order[first : first + MAX_PLACES]
        places = np.stack([row[chosen], start[chosen] - self.zero, end[chosen] - self.zero], axis=1)
        return {"total": len(order), "first": first, "places": places.tolist()}

    def _matching_events(self, fits: NDArray[np.bool_]) -> list[tuple[Times, Times, Times]]:
        """Return start, end and row number of the events whose name fits, per lane."""
        nothing = np.empty(0, np.int64)
        places = [(nothing, nothing, nothing)]
        for number, (row, lanes) in enumerate(zip(self.rows, self.lanes, strict=True)):
            for lane in lanes if row.kind in SEARCHED else ():
                here = np.flatnonzero(fits[lane.marks.name])
                places.append((lane.marks.start[here], lane.marks.end[here], np.full(len(here), number)))
        return places

    def partner(self, query: Query) -> list[Json]:
        """Answer `row`, `correlation` with the call that launched this work, or the work that this call launched."""
        row = self.rows[whole_number(query, "row", 0, len(self.rows) - 1)]
        correlation = whole_number(query, "correlation", -MAX_CORRELATION, MAX_CORRELATION)
        kind = {"stream": "call", "call": "stream"}.get(row.kind)
        partners: list[Json] = []
        for number, other in enumerate(self.rows):
            if other.kind != kind or other.process != row.process or correlation == 0:
                continue
            for lane in self.lanes[number]:
                matching = _rows_with_correlation(lane.marks, correlation)[: MAX_PARTNERS - len(partners)]
                partners.extend(self._mark_json(number, lane.marks, at) for at in matching.tolist())
        return partners

    def _mark_json(self, row: int, marks: Marks, at: int) -> Json:
        times = {"start": marks.start[at] - self.zero, "end": marks.end[at] - self.zero}
        rest = {"name": marks.name[at], "look": marks.look[at], "correlation": marks.details["correlation"][at]}
        return {"row": row, **{key: int(value) for key, value in {**times, **rest}.items()}}


def _rows_with_correlation(marks: Marks, correlation: int) -> Times:
    """Return the indices of the marks that have this correlation id."""
    if "correlation" not in marks.details:
        return np.empty(0, np.int64)
    return np.flatnonzero(marks.details["correlation"] == correlation)


def parse_query(text: str) -> Query:
    """Return the parameters of a request by name. Raises RequestError."""
    try:
        parameters = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise RequestError(f"the address has more than {MAX_PARAMETERS} parameters") from None
    query = dict(parameters)
    if len(query) < len(parameters):
        raise RequestError("a parameter is given twice")
    return query


def time_parameter(query: Query, name: str) -> int:
    """Return a time in ns, counted from the page's zero. Raises RequestError."""
    return whole_number(query, name, -MAX_NS, MAX_NS)


def whole_number(query: Query, name: str, minimum: int, maximum: int) -> int:
    """Return an integer between two bounds, inclusive. Raises RequestError."""
    text = _text_of(query, name)
    if not WHOLE_NUMBER.fullmatch(text):
        raise RequestError(f"{name}: must be an integer")
    if not minimum <= int(text) <= maximum:
        raise RequestError(f"{name}: must be between {minimum} and {maximum}")
    return int(text)


def search_text(query: Query, name: str) -> str:
    """Return the text to search for, in lower case. Raises RequestError if it is longer than any name."""
    text = _text_of(query, name)
    if len(text) > MAX_NAME_LENGTH:
        raise RequestError(f"{name}: at most {MAX_NAME_LENGTH} characters")
    return text.strip().lower()


def row_numbers(query: Query, name: str, count: int) -> list[int]:
    """Return distinct row numbers below `count`. Raises RequestError."""
    texts = _text_of(query, name).split(",", MAX_ROWS)
    if len(texts) > MAX_ROWS:
        raise RequestError(f"{name}: at most {MAX_ROWS} rows")
    numbers = [whole_number({name: text}, name, 0, count - 1) for text in texts]
    if len(set(numbers)) < len(numbers):
        raise RequestError(f"{name}: a row is given twice")
    return numbers


def _text_of(query: Query, name: str) -> str:
    """Return a parameter's text. Raises RequestError if it is absent."""
    if name not in query:
        raise RequestError(f"{name}: is missing")
    return query[name]
