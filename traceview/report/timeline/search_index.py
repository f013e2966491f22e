"""Where names stand, for the search of a page that cannot hold every event: some places of each, spread out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traceview.intervals import Times, index_ranges
from traceview.report.timeline.columns import Columns, Packed
from traceview.report.timeline.marks import Marks, Numbers, counted
from traceview.report.timeline.rows import Group

SEARCHED = ("ruler", "stream", "call", "range")
PLACES = 128  # of each name
MOST = 120_000  # places in all


@dataclass(frozen=True, slots=True)
class Index:
    """Places of names, a line for each, in order of (name, start). `rows` are the ids of rows, `row` indexes them."""

    rows: list[str]
    name: Times
    count: Times  # events of that name in all
    row: Times
    start: Times
    length: Times

    @classmethod
    def from_groups(cls, groups: Sequence[Group]) -> Index:
        """Choose the places of every name."""
        lanes = [
            (row.id, marks) for group in groups for row in group.rows if row.kind in SEARCHED for marks in row.lanes
        ]
        ids = sorted({row for row, _ in lanes})
        known = 1 + max((int(marks.name.max(initial=-1)) for _, marks in lanes), default=0)
        counts = [counted(marks.name, known) for _, marks in lanes]
        count = sum(counts, np.zeros(known, np.int64))
        name, rank = _spread(count)
        before, parts = np.zeros(known, np.int64), [_Places.none()]
        # Lane by lane, so that what is sorted stays small.
        for (row_id, marks), mine in zip(lanes, counts, strict=True):
            place = rank - before[name]
            here = np.flatnonzero((place >= 0) & (place < mine[name]))
            parts.append(_Places.nth(marks, mine, name[here], place[here], ids.index(row_id)))
            before += mine
        name, row, start, length = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((start, name))
        name = name[order]
        return cls(ids, name, count[name], row[order], start[order], length[order])

    def write(self, zero: int, columns: Columns) -> dict[str, object]:
        """Put the places into `columns`, times in ns from `zero`; return where they lie."""
        places: dict[str, Packed] = {
            "name": columns.add_ascending(self.name),
            "count": columns.add(self.count),
            "row": columns.add(self.row),
            "start": columns.add_steps(self.start - zero),
            "length": columns.add(self.length),
        }
        return {"n": len(self.name), "rows": self.rows, "columns": places}


def _narrow(numbers: Numbers) -> Numbers:
    """Return numbers from 0 in as few bytes as they need: those of one or two are sorted far faster."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))), copy=False)


class _Places(NamedTuple):
    """Some events of one lane."""

    name: Times
    row: Times
    start: Times
    length: Times

    @classmethod
    def none(cls) -> _Places:
        """Return no event."""
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    @classmethod
    def nth(cls, marks: Marks, count: Times, name: Times, place: Times, row: int) -> _Places:
        """Return the `place`-th event of each name; `count` is the number of events by name."""
        if len(name) == 0:
            return cls.none()
        # A stable sort keeps the order of time.
        order = np.argsort(_narrow(marks.name), kind="stable")
        rows = order[(np.cumsum(count) - count)[name] + place]
        start = marks.start[rows]
        return cls(name, np.full(len(rows), row, np.int64), start, marks.end[rows] - start)


def _spread(count: Times) -> tuple[Times, Times]:
    """Choose events, by name and place among those of the name: all of a rare one, some of a frequent one."""
    kept = np.minimum(count, PLACES)
    if kept.sum() > MOST:
        kept = np.minimum(kept, max(1, MOST // max(1, int((count > 0).sum()))))
    owner = np.repeat(np.arange(len(count)), kept)
    rank = index_ranges(np.zeros_like(kept), kept)
    return owner[:MOST], (rank * count[owner] // np.maximum(kept[owner], 1))[:MOST]
