"""Time and number of events by name, in bins: what an area of the timeline holds where the page lacks events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from traceview.intervals import Times, blocks
from traceview.report.timeline.columns import Columns
from traceview.report.timeline.marks import Marks, used
from traceview.report.timeline.rows import LOOKS, Group

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


def row_sums(groups: Sequence[Group], edges: Times) -> Iterator[NameSums]:
    """Yield the sums of every row between the ascending borders `edges` (ns)."""
    for group in groups:
        for row in group.rows:
            for table, marks in _by_table(row.kind, row.lanes):
                yield NameSums(row.id, table, *name_sums(marks, edges))


def _by_table(kind: str, lanes: Sequence[Marks]) -> Iterator[tuple[str, Marks]]:
    if kind in TABLES:
        yield from ((TABLES[kind], marks) for marks in lanes)
    for marks in lanes if kind == "stream" else ():
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


def packed_sums(
    groups: Sequence[Group], zero: int, length: int, budget: int, names: int, columns: Columns
) -> tuple[dict[str, Any], Times]:
    """Write the sums of all rows to `columns`; return their places and the numbers of their names.

    Bins are 2^shift ns wide and begin at `zero`. `names` is the number of names: cell = bin * names + name.
    """
    most_names = max(
        (len(used(marks.name)) for group in groups for row in group.rows for marks in row.lanes), default=1
    )
    bins = min(MAX_BINS, max(1, MAX_CELLS // max(1, most_names)))
    shift = max(0, (length // bins).bit_length())
    while True:
        edges = zero + (np.arange((length >> shift) + 2) << shift)
        sums = [part for part in row_sums(groups, edges) if len(part.bin)]
        if len(edges) <= 3 or sum(len(part.bin) for part in sums) * ENTRY_BYTES <= budget * BUDGET_SHARE:
            break
        shift += 1
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
    content = {"shift": shift, "count": len(edges) - 1, "names": names, "rows": rows}
    numbers = [np.empty(0, np.int64), *(np.unique(part.name) for part in sums)]
    return content, np.unique(np.concatenate(numbers))
