"""What the page asks its server for, from all the marks that the timeline could show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.model import Analysis
from traceview.report.html.columns import Columns
from traceview.report.html.index import SEARCHED
from traceview.report.html.marks import Marks, Names
from traceview.report.html.rows import Group, Row
from traceview.report.html.summary import merged
from traceview.report.html.tally import Work, device_sums
from traceview.report.html.timeline import works

MOST_MARKS = 20_000  # of one lane in one answer; above that they are merged to the width that was asked for
MOST_PLACES = 4096  # of one search, those nearest to where the page looks
Json = dict[str, Any]
Query = Mapping[str, str]


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
    def of(cls, analysis: Analysis, groups: Sequence[Group], names: Names, zero: int) -> Answers:
        """Make ready to answer; nothing is copied."""
        rows = [row for group in groups for row in group.rows]
        lanes = [[Lane(marks) for marks in row.lanes] for row in rows]
        idle = [row.lanes[0] for row in rows if row.kind == "idle"]
        return cls(analysis, rows, lanes, works(groups), idle, names.texts, zero)

    def marks(self, query: Query) -> bytes:
        """Answer `from`, `to`, `shift`, `rows`: the marks of those rows, as a header and packed columns.

        The first four bytes are the length of the header, which is JSON: for each row and lane the bins' width
        in ns (0: every event) and where its columns lie in what follows.
        """
        start, end, shift = (_number(query, name) for name in ("from", "to", "shift"))
        columns = Columns()
        found = {}
        for number in (self._row(text) for text in query.get("rows", "").split(",")):
            found[number] = [self._lane(lane, start, end, shift, columns) for lane in self.lanes[number]]
        header = json.dumps({"from": start, "to": end, "rows": found}).encode()
        return len(header).to_bytes(4, "little") + header + columns.raw()

    def _lane(self, lane: Lane, start: int, end: int, shift: int, columns: Columns) -> Json:
        marks = lane.between(start + self.zero, end + self.zero)
        many = len(marks) > MOST_MARKS
        if many:
            marks = merged(marks, self.zero, min(max(shift, 0), 60))
        return {"bin": 1 << shift if many else 0, "marks": marks.write(columns, self.zero)}

    def measure(self, query: Query) -> Json:
        """Answer `from`, `to`: what each device did between the two moments, to the nanosecond."""
        start, end = _number(query, "from"), _number(query, "to")
        edges = np.array([start, max(start, end)], np.int64) + self.zero
        devices = []
        for device, work, idle in zip(self.analysis.devices, self.work, self.idle, strict=True):
            found = device_sums(self.analysis, device, work, idle, edges)
            sums = {name: int(values[0]) for name, values in found.items()}
            causes = {cause: sums.pop(cause, 0) for cause in device.gaps.causes}
            devices.append({"id": device.id, **sums, "causes": {cause: ns for cause, ns in causes.items() if ns}})
        return {"from": start, "to": end, "exact": True, "devices": devices}

    def find(self, query: Query) -> Json:
        """Answer `text`, `at`: how many events have it in their names, and the places nearest to `at`."""
        wanted = query.get("text", "").strip().lower()
        fits = np.array([bool(wanted) and wanted in text.lower() for text in self.texts], np.bool_)
        start, end, row = (np.concatenate(parts) for parts in zip(*self._fitting(fits), strict=True))
        order = np.lexsort((end, start))
        middle = int(np.searchsorted(start[order], _number(query, "at") + self.zero))
        first = max(0, min(middle - MOST_PLACES // 2, len(order) - MOST_PLACES))
        chosen = order[first : first + MOST_PLACES]
        places = np.stack([row[chosen], start[chosen] - self.zero, end[chosen] - self.zero], axis=1)
        return {"total": len(order), "first": first, "places": places.tolist()}

    def _fitting(self, fits: np.ndarray[Any, np.dtype[np.bool_]]) -> list[tuple[Times, Times, Times]]:
        nothing = np.empty(0, np.int64)
        found = [(nothing, nothing, nothing)]
        for number, (row, lanes) in enumerate(zip(self.rows, self.lanes, strict=True)):
            for lane in lanes if row.kind in SEARCHED else ():
                here = np.flatnonzero(fits[lane.marks.name])
                found.append((lane.marks.start[here], lane.marks.end[here], np.full(len(here), number)))
        return found

    def partner(self, query: Query) -> list[Json]:
        """Answer `row`, `correlation`: the call that launched this work, or the work that this call launched."""
        asked, correlation = self.rows[self._row(query.get("row", ""))], _number(query, "correlation")
        kind = {"stream": "call", "call": "stream"}.get(asked.kind)
        found: list[Json] = []
        for number, row in enumerate(self.rows):
            if row.kind != kind or row.process != asked.process or correlation == 0:
                continue
            for lane in self.lanes[number]:
                found.extend(self._mark(number, lane.marks, int(at)) for at in _same(lane.marks, correlation))
        return found

    def _mark(self, row: int, marks: Marks, at: int) -> Json:
        own = {"start": marks.start[at] - self.zero, "end": marks.end[at] - self.zero}
        rest = {"name": marks.name[at], "look": marks.look[at], "correlation": marks.details["correlation"][at]}
        return {"row": row, **{key: int(value) for key, value in {**own, **rest}.items()}}

    def _row(self, text: str) -> int:
        if not text.isdecimal() or int(text) >= len(self.rows):
            raise RequestError(f"row {text[:20]!r}: the timeline has {len(self.rows)} rows, numbered from 0")
        return int(text)


def _same(marks: Marks, correlation: int) -> Times:
    if "correlation" not in marks.details:
        return np.empty(0, np.int64)
    return np.flatnonzero(marks.details["correlation"] == correlation)


def _number(query: Query, name: str) -> int:
    try:
        value = int(query[name])
    except (KeyError, ValueError):
        raise RequestError(f"{name}: a whole number is needed") from None
    if abs(value) >= 1 << 62:
        raise RequestError(f"{name}: is too large")
    return value
