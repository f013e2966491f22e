"""The parts of a page that cannot hold every event: sums per bin for measuring, places of names for searching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from traceview import intervals
from traceview.frozen import frozen
from traceview.intervals import Coverage, Intervals, Times, index_ranges
from traceview.report.timeline.columns import Columns, Packed
from traceview.report.timeline.marks import Marks, Numbers, counted
from traceview.report.timeline.rows import LOOKS, Group, TimelineRow, unions
from traceview.report.timeline.stored import AllMarks

MAX_BINS = 1 << 16
BIN_BYTES = 60  # per device and bin, unpacked; an estimate that limits the bins
NOT_COPIES = ("compute", "communication", "memset")
KERNEL_LOOKS = LOOKS.index("communication")  # the last look of a kernel
MAX_SUMMED_MARKS = 4_000_000  # marks of a device in memory at once


@frozen
class DeviceLanes:
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


def tally(devices: Sequence[DeviceLanes], zero: int, length: int, budget: int, columns: Columns) -> dict[str, object]:
    """Write each device's sums per bin to `columns`; return their places. A larger `budget` gives finer bins."""
    bins = min(MAX_BINS, max(1, budget // (BIN_BYTES * max(1, len(devices)))))
    shift = max(0, (length // bins).bit_length())
    edges = zero + (np.arange((length >> shift) + 2) << shift)
    packed = [{"id": device.id, "columns": _packed_sums(device_sums(device, edges), columns)} for device in devices]
    return {"shift": shift, "count": len(edges) - 1, "devices": packed}


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


def _packed_sums(sums: dict[str, Times], columns: Columns) -> dict[str, Packed]:
    return {name: columns.add(values) for name, values in sums.items() if values.any()}


SEARCHED = ("ruler", "stream", "call", "range", "sample")
MAX_PLACES_OF_NAME = 128
MAX_PLACES = 120_000  # limit for the places of all names


@frozen
class Index:
    """Places of names as columns, in order of (name, start). `rows` are ids of rows; `row` indexes them."""

    rows: list[str]
    name: Times
    count: Times  # all events of that name
    row: Times
    start: Times
    length: Times

    @classmethod
    def from_groups(cls, groups: Sequence[Group], names: int) -> Index:
        """Choose the places of every name; `names` is the number of names."""
        searched = [row for group in groups for row in group.rows if row.kind in SEARCHED and row.lanes]
        ids = sorted({row.id for row in searched})
        # Lanes in a file come in several pieces.
        counts = [counted(piece.name, names) for row in searched for lane in row.lanes for piece in lane.pieces()]
        count = sum(counts, np.zeros(names, np.int64))
        name, rank = _spread(count)
        before, parts = np.zeros(names, np.int64), [_LanePlaces.none()]
        # Sort piece by piece to limit memory.
        pieces = ((row.id, piece) for row in searched for lane in row.lanes for piece in lane.pieces())
        for (row_id, marks), mine in zip(pieces, counts, strict=True):
            place = rank - before[name]
            here = np.flatnonzero((place >= 0) & (place < mine[name]))
            parts.append(_LanePlaces.nth(marks, mine, name[here], place[here], ids.index(row_id)))
            before += mine
        name, row, start, length = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((start, name))
        name = name[order]
        return cls(ids, name, count[name], row[order], start[order], length[order])

    def write(self, zero: int, columns: Columns) -> dict[str, object]:
        """Write the index to `columns`, times in ns from `zero`; return the places of its columns."""
        places: dict[str, Packed] = {
            "name": columns.add_ascending(self.name),
            "count": columns.add(self.count),
            "row": columns.add(self.row),
            "start": columns.add_steps(self.start - zero),
            "length": columns.add(self.length),
        }
        return {"n": len(self.name), "rows": self.rows, "columns": places}


def _smallest_type(numbers: Numbers) -> Numbers:
    """Return numbers from 0 in the smallest type that fits: 1 or 2 bytes sort much faster."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))), copy=False)


class _LanePlaces(NamedTuple):
    """Some events of one lane."""

    name: Times
    row: Times
    start: Times
    length: Times

    @classmethod
    def none(cls) -> _LanePlaces:
        """Return no event."""
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    @classmethod
    def nth(cls, marks: Marks, count: Times, name: Times, place: Times, row: int) -> _LanePlaces:
        """Return the `place`-th event of each name; `count` is the number of events by name."""
        if len(name) == 0:
            return cls.none()
        # A stable sort keeps the order of time.
        order = np.argsort(_smallest_type(marks.name), kind="stable")
        rows = order[(np.cumsum(count) - count)[name] + place]
        start = marks.start[rows]
        return cls(name, np.full(len(rows), row, np.int64), start, marks.end[rows] - start)


def _spread(count: Times) -> tuple[Times, Times]:
    """Return the name and the rank of each kept event: all events of a rare name, some of a frequent name."""
    kept = np.minimum(count, MAX_PLACES_OF_NAME)
    if kept.sum() > MAX_PLACES:
        kept = np.minimum(kept, max(1, MAX_PLACES // max(1, int((count > 0).sum()))))
    owner = np.repeat(np.arange(len(count)), kept)
    rank = index_ranges(np.zeros_like(kept), kept)
    return owner[:MAX_PLACES], (rank * count[owner] // np.maximum(kept[owner], 1))[:MAX_PLACES]
