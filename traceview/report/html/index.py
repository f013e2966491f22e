"""Where names stand, for the search of a page that cannot hold every event: some places of each, spread out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceview.intervals import Times
from traceview.report.html.columns import Columns, Packed
from traceview.report.html.marks import Marks, Numbers
from traceview.report.html.rows import Group

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
    def of(cls, groups: Sequence[Group]) -> Index:
        """Choose the places of every name."""
        found = [
            (row.id, marks) for group in groups for row in group.rows if row.kind in SEARCHED for marks in row.lanes
        ]
        ids = sorted({of for of, _ in found})
        name = np.concatenate([np.empty(0, np.int32), *(marks.name for _, marks in found)])
        # A stable sort keeps the order of the lanes and of time.
        order = np.argsort(_narrow(name), kind="stable")
        chosen, count = _spread(name)
        rows = np.sort(order[chosen])
        kept, start, length = _kept([marks for _, marks in found], rows)
        row = np.repeat(np.array([ids.index(of) for of, _ in found], np.int64), kept)
        name = name[rows]
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


def _kept(lanes: Sequence[Marks], rows: Times) -> tuple[list[int], Times, Times]:
    """Return how many of the ascending rows, counted through all lanes, lie in each, and their starts and lengths."""
    ends = np.cumsum([len(marks) for marks in lanes], dtype=np.int64)
    parts = np.split(rows, np.searchsorted(rows, ends[:-1])) if lanes else []
    here = [part - end + len(marks) for part, end, marks in zip(parts, ends, lanes, strict=True)]
    none = np.empty(0, np.int64)
    start = np.concatenate([none, *(marks.start[part] for part, marks in zip(here, lanes, strict=True))])
    end = np.concatenate([none, *(marks.end[part] for part, marks in zip(here, lanes, strict=True))])
    return [len(part) for part in parts], start, end - start


def _spread(name: Numbers) -> tuple[Times, Times]:
    """Choose places in the order of names: all of a rare one, evenly spread ones of a frequent one."""
    count = np.bincount(name) if len(name) else np.zeros(1, np.int64)
    kept = np.minimum(count, PLACES)
    if kept.sum() > MOST:
        kept = np.minimum(kept, max(1, MOST // max(1, int((count > 0).sum()))))
    first = np.cumsum(count) - count
    owner = np.repeat(np.arange(len(count)), kept)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(kept) - kept, kept)
    chosen = first[owner] + rank * count[owner] // np.maximum(kept[owner], 1)
    return chosen[:MOST], count
