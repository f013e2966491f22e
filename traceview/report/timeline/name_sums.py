"""Time and number of events by name, in bins: what an area of the timeline holds where the page lacks events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from traceview.intervals import Times, blocks
from traceview.report.timeline.columns import Columns
from traceview.report.timeline.marks import Marks, used
from traceview.report.timeline.rows import LOOKS, Group, TimelineRow

MAX_BINS = 512
MAX_CELLS = 1 << 20  # bins times names of a lane
ENTRY_BYTES = 8  # estimated bytes of the page for one bin and name
BUDGET_SHARE = 0.05
# The tables of an area, by the kind of the row.
TABLES = {"projected": "projected", "range": "range", "call": "call", "sample": "sample"}
KERNELS = tuple(LOOKS.index(look) for look in ("compute", "communication"))


class NameSums(NamedTuple):
    """Sums of one row, ascending by bin and name: ns inside the bin, and events that start in it."""

    row: str
    table: str  # kernel, copy, or a value of TABLES
    bin: Times
    name: Times
    time: Times
    started: Times

    def wider(self, doublings: int = 1) -> NameSums:
        """Return the sums of bins of 2^doublings times the width."""
        return self._replace(bin=self.bin >> doublings).combined() if doublings else self

    def combined(self) -> NameSums:
        """Return the sums with one entry for each bin and name."""
        order = np.lexsort((self.name, self.bin))
        bin, name = self.bin[order], self.name[order]
        first = np.flatnonzero(np.append(True, (np.diff(bin) != 0) | (np.diff(name) != 0)))[: len(bin)]
        time, started = (np.add.reduceat(column[order], first) for column in (self.time, self.started))
        return self._replace(bin=bin[first], name=name[first], time=time, started=started)


def row_sums(groups: Sequence[Group], edges: Times) -> Iterator[NameSums]:
    """Yield the sums of every row between the ascending borders `edges` (ns)."""
    for group in groups:
        for row in group.rows:
            yield from sums_of_row(row, edges)


def sums_of_row(row: TimelineRow, edges: Times) -> Iterator[NameSums]:
    """Yield the sums of a row between the ascending borders `edges` (ns)."""
    for lane in row.lanes if row.kind in TABLES or row.kind == "stream" else ():
        parts: dict[str, list[NameSums]] = {}
        for piece in lane.pieces_between(int(edges[0]), int(edges[-1])):
            for table, marks in _by_table(row.kind, piece):
                parts.setdefault(table, []).append(NameSums(row.id, table, *name_sums(marks, edges)))
        yield from map(added, parts.values())


def added(parts: Sequence[NameSums]) -> NameSums:
    """Add the sums of pieces of a lane in equal bins."""
    if len(parts) == 1:
        return parts[0]
    columns = (np.concatenate(column) for column in zip(*(part[2:] for part in parts), strict=True))
    return NameSums(*parts[0][:2], *columns).combined()


def _by_table(kind: str, marks: Marks) -> Iterator[tuple[str, Marks]]:
    if kind in TABLES:
        yield TABLES[kind], marks
    else:
        kernels = np.isin(marks.look, KERNELS)
        for table, rows in (("kernel", kernels), ("copy", ~kernels)):
            chosen = slice(None) if rows.all() else np.flatnonzero(rows)
            if rows.any():
                yield table, Marks(marks.start[chosen], marks.end[chosen], marks.name[chosen], marks.look[chosen])


def name_sums(marks: Marks, edges: Times) -> tuple[Times, Times, Times, Times]:
    """Return bin, name, time and started of each bin and name that has any; see NameSums."""
    names = used(marks.name)
    if not len(names):
        return names, names, names, names
    lookup = np.zeros(int(names.max(initial=0)) + 1, np.int32)
    lookup[names] = np.arange(len(names))
    width, size = len(names), (len(edges) - 1) * len(names)
    before = np.searchsorted(marks.start, edges)
    # The bin of each start; -1 for marks that start before the first border.
    first = np.repeat(np.arange(-1, len(edges) - 1, dtype=np.int32), np.diff(before, prepend=0))
    started, time, open_marks = np.zeros(size, np.int64), np.zeros(size), np.zeros(size, np.int64)
    for rows in blocks(int(before[-1])):
        start, end = marks.start[rows], np.minimum(marks.end[rows], edges[-1])
        next_edge = edges[first[rows] + 1]
        cell = first[rows] * width + lookup[marks.name[rows]]
        length = np.minimum(end, next_edge) - start
        early = max(0, int(before[0]) - rows.start)
        started += np.bincount(cell[early:], minlength=size)
        time += np.bincount(cell[early:], length[early:], minlength=size)
        over = np.flatnonzero(end > next_edge)
        if len(over):
            # The part in the last bin; whole bins come from a count of the open marks.
            last = np.searchsorted(edges, end[over], "left") - 1
            stops = cell[over] + (last - first[rows][over]) * width
            open_marks += np.bincount(cell[over] + width, minlength=size) - np.bincount(stops, minlength=size)
            time += np.bincount(stops, end[over] - edges[last], minlength=size)
    time += (np.cumsum(open_marks.reshape(-1, width), axis=0) * np.diff(edges)[:, None]).reshape(-1)
    cells = np.flatnonzero((time > 0) | (started > 0))
    return cells // width, names[cells % width], time[cells].astype(np.int64), started[cells]


def name_bins(groups: Sequence[Group]) -> int:
    """Return the number of bins of a page: MAX_BINS, or fewer for many names."""
    lanes = (marks for group in groups for row in group.rows for marks in row.lanes)
    return min(MAX_BINS, max(1, MAX_CELLS // max(1, max((marks.name_count for marks in lanes), default=1))))


def packed_sums(
    sums: Sequence[NameSums], shift: int, length: int, budget: int, names: int, columns: Columns
) -> tuple[dict[str, Any], Times]:
    """Write the sums of all rows to `columns`; return their places and the numbers of their names.

    Bins are 2^shift ns wide; they are made wider to fit the budget. `names` is the number of names:
    cell = bin * names + name.
    """
    sums = [part for part in sums if len(part.bin)]
    while (length >> shift) > 1 and sum(len(part.bin) for part in sums) * ENTRY_BYTES > budget * BUDGET_SHARE:
        shift += 1
        sums = [part.wider() for part in sums]
    rows = [
        {
            "row": part.row,
            "table": part.table,
            "n": len(part.bin),
            "columns": {
                "cell": columns.add_ascending(part.bin * names + part.name),
                "time": columns.add(part.time),
                "started": columns.add(part.started),
            },
        }
        for part in sums
    ]
    content = {"shift": shift, "count": (length >> shift) + 1, "names": names, "rows": rows}
    numbers = [np.empty(0, np.int64), *(np.unique(part.name) for part in sums)]
    return content, np.unique(np.concatenate(numbers))
