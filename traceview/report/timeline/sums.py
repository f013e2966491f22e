"""Sums of an area of the timeline: of each device, and of each name in a row, in bins of time.

A page that cannot hold every event has them; with every event, the page's script computes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times, blocks
from traceview.model.trace import Window
from traceview.report.columns import Columns
from traceview.report.timeline.inputs import PageInputs
from traceview.report.timeline.marks import Marks, counted, used
from traceview.report.timeline.rows import Group
from traceview.report.timeline.work import LOOKS, Bands

MAX_DEVICE_BINS = 1 << 16
BIN_BYTES = 60  # per device and bin, unpacked; an estimate that limits the bins
NOT_COPIES = ("compute", "communication", "memset")
KERNELS = tuple(LOOKS.index(look) for look in ("compute", "communication"))  # the first looks
MAX_NAME_BINS = 512
MAX_CELLS = 1 << 20  # bins times names of a lane
ENTRY_BYTES = 8  # estimated bytes of the page for one bin and name
BUDGET_SHARE = 0.05
# The tables of an area, by the kind of the row. The table `stack` of a sample row has numbers of stacks as names.
TABLES = {"projected": "projected", "range": "range", "call": "call", "sample": "sample"}
STACK = "stack"


def bin_shift(length: int, bins: int) -> int:
    """Return the exponent of the width of at most about `bins` bins, powers of two in ns."""
    return max(0, (length // bins).bit_length())


def bin_edges(span: Window, shift: int) -> Times:
    """Return the borders of the bins of a timeline, 2^shift ns wide; the last one ends with the timeline."""
    edges: Times = np.minimum(span.start + (np.arange((span.length >> shift) + 2) << shift), span.end + 1)
    return edges


def packed_tally(inputs: PageInputs, groups: Sequence[Group], budget: int, columns: Columns) -> dict[str, object]:
    """Write the sums of each device to `columns`; return their places. A larger `budget` gives finer bins."""
    span, devices = inputs.span, inputs.analysis.devices
    shift = bin_shift(span.length, min(MAX_DEVICE_BINS, max(1, budget // (BIN_BYTES * max(1, len(devices))))))
    lanes, packed = {row.id: row.lanes for group in groups for row in group.rows}, []
    for device in devices:
        (idle,), streams = lanes[f"d:{device.id}"], [lanes[f"s:{use.stream}"][0] for use in device.streams]
        sums = device_sums(inputs.work[device.device], idle, streams, bin_edges(span, shift))
        packed.append({"id": device.id, "columns": {name: columns.add(values) for name, values in sums.items()}})
    return {"shift": shift, "count": (span.length >> shift) + 1, "devices": packed}


def device_sums(work: Bands, idle: Marks, streams: Sequence[Marks], edges: Times) -> dict[str, Times]:
    """Return times in ns and counts of a device in each bin; `edges` are the ascending borders of the bins.

    compute, communication, copies and idle are unions; `hidden` is the time of the copies during compute. kernels,
    copy_count and the sums by cause count the events that start in the bin. Sums that are 0 in every bin are left out.
    """
    classes = {band.name: band.all for band in work}
    unions = [union for name, union in classes.items() if name not in NOT_COPIES]
    copies = intervals.union(*(np.concatenate(edges) for edges in zip(*unions, strict=True)))
    times = {
        "compute": classes["compute"],
        "communication": classes["communication"],
        "copies": copies,
        "hidden": intervals.intersect(classes["compute"], copies),
        "idle": Intervals(idle.start, idle.end),
    }
    sums = {name: np.diff(Coverage.from_union(union).length_before(edges)) for name, union in times.items()}
    sums |= _counts(streams, edges)
    first = np.searchsorted(idle.start, edges)
    for cause, column in idle.sums.items():
        sums[cause] = np.diff(np.append(0, np.cumsum(column))[first])
    return {name: column for name, column in sums.items() if column.any()}


def _counts(streams: Sequence[Marks], edges: Times) -> dict[str, Times]:
    """Return the number of kernels and of copies that start in each bin."""
    kernels, copies = np.zeros((2, len(edges) - 1), np.int64)
    for marks in streams:
        first = np.searchsorted(marks.start, edges)
        others = np.flatnonzero(marks.look > max(KERNELS))
        memsets = others[marks.look[others] == LOOKS.index("memset")]
        # Most operations are kernels and whole graphs, so count the others and subtract.
        no_kernels, no_copies = np.searchsorted(others, first), np.searchsorted(memsets, first)
        kernels += np.diff(first - no_kernels)
        copies += np.diff(no_kernels - no_copies)
    return {"kernels": kernels, "copy_count": copies}


class NameSums(NamedTuple):
    """Sums of one lane, ascending by bin and name: ns inside the bin, and events that start in it."""

    row: str
    table: str  # kernel, copy, stack, or a value of TABLES
    bin: Times
    name: Times
    time: Times
    started: Times

    def wider(self) -> NameSums:
        """Return the sums of bins of twice the width."""
        wide = self.bin >> 1
        order = np.lexsort((self.name, wide))
        bin, name = wide[order], self.name[order]
        first = np.flatnonzero(np.append(True, (np.diff(bin) != 0) | (np.diff(name) != 0)))[: len(bin)]
        time, started = (np.add.reduceat(column[order], first) for column in (self.time, self.started))
        return self._replace(bin=bin[first], name=name[first], time=time, started=started)


def sums_of_names(groups: Sequence[Group], span: Window) -> tuple[int, list[NameSums]]:
    """Return the sums of all names in bins of 2^shift ns, and the shift. Many names get wider bins."""
    lanes = [(row, lane) for group in groups for row in group.rows for lane in row.lanes]
    counts = [lane.name_counts for _, lane in lanes]
    counts += [counted(lane.details[STACK]) for _, lane in lanes if STACK in lane.details]
    most = max((int(np.count_nonzero(count)) for count in counts), default=1)
    shift = bin_shift(span.length, min(MAX_NAME_BINS, max(1, MAX_CELLS // max(1, most))))
    edges = bin_edges(span, shift)
    tables = ((row.id, table, marks) for row, lane in lanes for table, marks in _tables(row.kind, lane))
    return shift, [NameSums(row, table, *name_sums(marks, edges)) for row, table, marks in tables]


def _tables(kind: str, lane: Marks) -> Iterator[tuple[str, Marks]]:
    if kind in TABLES:
        yield TABLES[kind], lane
        if STACK in lane.details:
            yield STACK, replace(lane, name=lane.details[STACK])
    elif kind == "stream":
        kernels = np.isin(lane.look, KERNELS)
        for table, rows in (("kernel", kernels), ("copy", ~kernels)):
            chosen = slice(None) if rows.all() else np.flatnonzero(rows)
            if rows.any():
                yield table, Marks(lane.start[chosen], lane.end[chosen], lane.name[chosen], lane.look[chosen])


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
            # The time in the last bin; whole bins come from a count of the open marks.
            last = np.searchsorted(edges, end[over], "left") - 1
            stops = cell[over] + (last - first[rows][over]) * width
            open_marks += np.bincount(cell[over] + width, minlength=size) - np.bincount(stops, minlength=size)
            time += np.bincount(stops, end[over] - edges[last], minlength=size)
    time += (np.cumsum(open_marks.reshape(-1, width), axis=0) * np.diff(edges)[:, None]).reshape(-1)
    cells = np.flatnonzero((time > 0) | (started > 0))
    return cells // width, names[cells % width], time[cells].astype(np.int64), started[cells]


def packed_sums(
    sums: Sequence[NameSums], shift: int, length: int, budget: int, names: int, columns: Columns
) -> tuple[dict[str, Any], Times]:
    """Write the sums of all rows to `columns`; return their places and the numbers of their names.

    Bins are 2^shift ns wide; they are made wider to fit the budget. `names` is the number of names, or more where
    numbers of stacks are higher: cell = bin * names + name.
    """
    sums = [each for each in sums if len(each.bin)]
    while (length >> shift) > 1 and sum(len(each.bin) for each in sums) * ENTRY_BYTES > budget * BUDGET_SHARE:
        shift += 1
        sums = [each.wider() for each in sums]
    names = max([names, *(int(each.name.max()) + 1 for each in sums)])
    rows = [
        {
            "row": each.row,
            "table": each.table,
            "n": len(each.bin),
            "columns": {
                "cell": columns.add_ascending(each.bin * names + each.name),
                "time": columns.add(each.time),
                "started": columns.add(each.started),
            },
        }
        for each in sums
    ]
    content = {"shift": shift, "count": (length >> shift) + 1, "names": names, "rows": rows}
    numbers = [np.empty(0, np.int64), *(np.unique(each.name) for each in sums if each.table != STACK)]
    return content, np.unique(np.concatenate(numbers))
