"""What a page that cannot hold every event has to measure with: sums of each device in bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from traceview import intervals
from traceview.frozen import frozen
from traceview.intervals import Coverage, Intervals, Times
from traceview.report.timeline.columns import Columns, Packed
from traceview.report.timeline.marks import Marks
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


def tally_bins(devices: int, budget: int) -> int:
    """Return the number of bins of the sums of a page: a larger `budget` gives finer bins."""
    return min(MAX_BINS, max(1, budget // (BIN_BYTES * max(1, devices))))


def tally(sums: Mapping[str, dict[str, Times]], shift: int, length: int, columns: Columns) -> dict[str, object]:
    """Write the sums of each device (by id) in bins of 2^shift ns to `columns`; return their places."""
    packed = [{"id": device, "columns": _packed_sums(own, columns)} for device, own in sums.items()]
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


def _packed_sums(sums: dict[str, Times], columns: Columns) -> dict[str, Packed]:
    return {name: columns.add(values) for name, values in sums.items() if values.any()}
