"""Sums of the timeline in bins: the times of each device, and time and number of events by name.

A page that cannot hold every event measures with them. Parts of a capture make them on the grid of the capture; a
capture in memory makes them from its lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times, blocks
from traceview.model.timeline.marks import Columns, Marks, used
from traceview.model.timeline.rows import LOOKS, Group, NamePlaces, TimelineRow, unions
from traceview.model.timeline.stored import AllMarks
from traceview.model.trace import Window

MAX_DEVICE_BINS = 1 << 16
BIN_BYTES = 60  # per device and bin, unpacked; an estimate that limits the bins
NOT_COPIES = ("compute", "communication", "memset")
KERNEL_LOOKS = LOOKS.index("communication")  # the last look of a kernel
MAX_SUMMED_MARKS = 4_000_000  # marks of a device in memory at once
MAX_NAME_BINS = 512
MAX_CELLS = 1 << 20  # bins times names of a lane
ENTRY_BYTES = 8  # estimated bytes of the page for one bin and name
BUDGET_SHARE = 0.05
# The tables of an area, by the kind of the row. The table `stack` of a sample row has numbers of stacks as names.
TABLES = {"projected": "projected", "range": "range", "call": "call", "sample": "sample"}
STACK = "stack"
KERNELS = tuple(LOOKS.index(look) for look in ("compute", "communication"))

DeviceSums = dict[str, Times]


def bin_shift(length: int, bins: int) -> int:
    """Return the exponent of the width of at most about `bins` bins, powers of two in ns."""
    return max(0, (length // bins).bit_length())


def bin_edges(span: Window, shift: int, first: int = 0, last: int | None = None) -> Times:
    """Return the borders of the bins from `first` to `last` of a timeline; bins are 2^shift ns wide.

    The last bin of the timeline ends with it.
    """
    stop = (span.length >> shift) + 1 if last is None else last + 1
    edges: Times = np.minimum(span.start + (np.arange(first, stop + 1) << shift), span.end + 1)
    return edges


class StoredSums(NamedTuple):
    """The sums of lanes in files, in bins of the whole timeline, and places of their names.

    `devices` are by device id, in bins of 2^device_shift ns; `names` have bins of 2^name_shift ns. `rows` are the ids
    of the rows of `places`.
    """

    device_shift: int
    devices: Mapping[str, DeviceSums]
    name_shift: int
    names: Sequence[NameSums]
    rows: Sequence[str]
    places: NamePlaces


def sums_of_devices(
    devices: Sequence[DeviceLanes], span: Window, shift: int, stored: StoredSums | None
) -> tuple[int, dict[str, DeviceSums]]:
    """Return the sums of each device (by id) in bins of 2^shift ns, or wider ones, and their shift."""
    if stored is None:
        edges = bin_edges(span, shift)
        return shift, {device.id: device_sums(device, edges) for device in devices}
    shift = max(shift, stored.device_shift)
    first = np.arange(0, (span.length >> stored.device_shift) + 1, 1 << (shift - stored.device_shift))
    return shift, {
        device.id: {name: np.add.reduceat(sums, first) for name, sums in stored.devices[device.id].items()}
        for device in devices
    }


def sums_of_names(
    groups: Sequence[Group], span: Window, shift: int, stored: StoredSums | None
) -> tuple[int, list[NameSums]]:
    """Return the sums of all names in bins of 2^shift ns, or wider ones, and their shift."""
    known: dict[str, list[NameSums]] = {}
    if stored is not None:
        shift = max(shift, stored.name_shift)
        for part in stored.names:
            known.setdefault(part.row, []).append(part.wider(shift - stored.name_shift))
    return shift, list(row_sums(groups, bin_edges(span, shift), known))


class DeviceLanes(NamedTuple):
    """The lanes of a device that its sums come from: work by class, gaps, streams."""

    id: str
    overlap: TimelineRow
    idle: AllMarks
    streams: Sequence[AllMarks]

    def count_near(self, start: int, end: int) -> int:
        """Return the number of marks between two times that the sums read."""
        return sum(lane.count_near(start, end) for lane in (*self.overlap.lanes, self.idle, *self.streams))


def device_lanes(groups: Sequence[Group]) -> list[DeviceLanes]:
    """Return the lanes of each device, in the order of Analysis.devices."""
    return [
        DeviceLanes(
            group.label,
            overlap,
            next(row.lanes[0] for row in group.rows if row.kind == "idle"),
            [lane for row in group.rows if row.kind == "stream" for lane in row.lanes],
        )
        for group in groups
        for overlap in group.rows
        if overlap.kind == "overlap"
    ]


def tally_bins(devices: int, budget: int) -> int:
    """Return the number of bins of the sums of a page: a larger `budget` gives finer bins."""
    return min(MAX_DEVICE_BINS, max(1, budget // (BIN_BYTES * max(1, devices))))


def tally(sums: Mapping[str, dict[str, Times]], shift: int, length: int, columns: Columns) -> dict[str, object]:
    """Write the sums of each device (by id) in bins of 2^shift ns to `columns`; return their places."""
    packed = [
        {"id": device, "columns": {name: columns.add(values) for name, values in own.items() if values.any()}}
        for device, own in sums.items()
    ]
    return {"shift": shift, "count": (length >> shift) + 1, "devices": packed}


def device_sums(device: DeviceLanes, edges: Times) -> dict[str, Times]:
    """Return times in ns and counts of a device in each bin; `edges` are the ascending borders of the bins.

    compute, communication, copies and idle are unions; `hidden` is the part of the copies during compute. kernels,
    copy_count and the sums by cause count the events that start in the bin.
    """
    start, end = int(edges[0]), int(edges[-1])
    if end - start <= 1 or device.count_near(start, end) <= MAX_SUMMED_MARKS:
        return _sums_between(device, edges)
    if len(edges) == 2:
        middle = np.array([(start + end) // 2])
        halves = device_sums(device, np.concatenate([edges[:1], middle, edges[1:]]))
        return {name: values.sum(keepdims=True) for name, values in halves.items()}
    half = len(edges) // 2
    before, after = device_sums(device, edges[: half + 1]), device_sums(device, edges[half:])
    return {name: np.concatenate([values, after[name]]) for name, values in before.items()}


def _sums_between(device: DeviceLanes, edges: Times) -> dict[str, Times]:
    start, end = int(edges[0]), int(edges[-1])
    work = unions([lane.between(start, end) for lane in device.overlap.lanes])
    copies = _union([union for name, union in work.items() if name not in NOT_COPIES])
    idle = device.idle.between(start, end)
    times = {
        "compute": work["compute"],
        "communication": work["communication"],
        "copies": copies,
        "hidden": intervals.intersect(work["compute"], copies),
        "idle": Intervals(idle.start, idle.end),
    }
    sums = {name: np.diff(Coverage.from_union(union).length_before(edges)) for name, union in times.items()}
    sums |= _counts([lane.between(start, end) for lane in device.streams], edges)
    first = np.searchsorted(idle.start, edges)
    for cause, column in idle.sums.items():
        total = np.zeros(len(column) + 1, np.int64)
        np.cumsum(column, out=total[1:])
        sums[cause] = np.diff(total[first])
    return sums


def _union(parts: list[Intervals]) -> Intervals:
    parts = [part for part in parts if len(part.start)]
    if len(parts) < 2:
        return parts[0] if parts else intervals.EMPTY
    return intervals.union(np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts]))


def _counts(streams: Sequence[Marks], edges: Times) -> dict[str, Times]:
    """Return the number of kernels and of copies that start in each bin."""
    kernels, copies = np.zeros((2, len(edges) - 1), np.int64)
    for marks in streams:
        first = np.searchsorted(marks.start, edges)
        others = np.flatnonzero(marks.look > KERNEL_LOOKS)
        memsets = others[marks.look[others] == LOOKS.index("memset")]
        # Most operations are kernels and whole graphs, so count the others and subtract.
        no_kernels, no_copies = np.searchsorted(others, first), np.searchsorted(memsets, first)
        kernels += np.diff(first - no_kernels)
        copies += np.diff(no_kernels - no_copies)
    return {"kernels": kernels, "copy_count": copies}


class NameSums(NamedTuple):
    """Sums of one row, ascending by bin and name: ns inside the bin, and events that start in it."""

    row: str
    table: str  # kernel, copy, stack, or a value of TABLES
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


def row_sums(
    groups: Sequence[Group], edges: Times, known: Mapping[str, Sequence[NameSums]] = MappingProxyType({})
) -> Iterator[NameSums]:
    """Yield the sums of every row between the ascending borders `edges` (ns), those of some rows from `known`."""
    for group in groups:
        for row in group.rows:
            yield from known[row.id] if row.id in known else sums_of_row(row, edges)


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
        if STACK in marks.details:
            yield STACK, replace(marks, name=marks.details[STACK])
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
    """Return the number of bins of a page: MAX_NAME_BINS, or fewer for many names."""
    lanes = [marks for group in groups for row in group.rows for marks in row.lanes]
    names = [marks.name_count for marks in lanes]
    names += [len(used(marks.details[STACK])) for marks in lanes if isinstance(marks, Marks) and STACK in marks.details]
    return min(MAX_NAME_BINS, max(1, MAX_CELLS // max([1, *names])))


def packed_sums(
    sums: Sequence[NameSums], shift: int, length: int, budget: int, names: int, columns: Columns
) -> tuple[dict[str, Any], Times]:
    """Write the sums of all rows to `columns`; return their places and the numbers of their names.

    Bins are 2^shift ns wide; they are made wider to fit the budget. `names` is the number of names, or more where
    numbers of stacks are higher: cell = bin * names + name.
    """
    sums = [part for part in sums if len(part.bin)]
    while (length >> shift) > 1 and sum(len(part.bin) for part in sums) * ENTRY_BYTES > budget * BUDGET_SHARE:
        shift += 1
        sums = [part.wider() for part in sums]
    names = max([names, *(int(part.name.max()) + 1 for part in sums)])
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
    numbers = [np.empty(0, np.int64), *(np.unique(part.name) for part in sums if part.table != STACK)]
    return content, np.unique(np.concatenate(numbers))
