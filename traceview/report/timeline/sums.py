"""Sums per bin, exact at the bins' borders: what a measure between two moments needs where the page is summarised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times
from traceview.model.analysis import Analysis, DeviceUse
from traceview.model.trace import CLASSES
from traceview.report.timeline.columns import Columns, Packed
from traceview.report.timeline.lane import Lane
from traceview.report.timeline.marks import Marks

MOST_BINS = 1 << 16
BIN_BYTES = 60  # of one device's bin, unpacked; only to bound the bins
NOT_COPIES = ("compute", "communication", "memset")


Work = Mapping[str, Intervals]  # what a device did by class, each a union


def tally(
    analysis: Analysis,
    work: Sequence[Work],
    idle: Sequence[Lane],
    zero: int,
    length: int,
    budget: int,
    columns: Columns,
) -> dict[str, object]:
    """Put each device's sums per bin into `columns`; return where they lie. More `budget` makes finer bins.

    `idle` are the devices' gaps as marks, merged into levels.
    """
    bins = min(MOST_BINS, max(1, budget // (BIN_BYTES * max(1, len(work)))))
    shift = max(0, (length // bins).bit_length())
    edges = zero + (np.arange((length >> shift) + 2) << shift)
    devices = [
        {"id": device.id, "columns": _written(device_sums(analysis, device, mine, lane.at_most(shift), edges), columns)}
        for device, mine, lane in zip(analysis.devices, work, idle, strict=True)
    ]
    return {"shift": shift, "count": len(edges) - 1, "devices": devices}


def device_sums(analysis: Analysis, device: DeviceUse, work: Work, idle: Marks, edges: Times) -> dict[str, Times]:
    """Return ns and counts of a device between each two of the ascending `edges`.

    compute, communication, copies and idle are unions; `hidden` is the part of the copies under compute.
    kernels and copy_count are those that begin there, and so are the gaps whose causes are summed: those of
    `idle`, merged or not, of which none spans gaps that begin on both sides of an edge.
    """
    copies = _union([union for name, union in work.items() if name not in NOT_COPIES])
    gaps = device.gaps.frame
    times = {
        "compute": work["compute"],
        "communication": work["communication"],
        "copies": copies,
        "hidden": intervals.intersect(work["compute"], copies),
        "idle": Intervals(gaps["start"].to_numpy(), gaps["end"].to_numpy()),
    }
    sums = {name: np.diff(Coverage.from_union(union).length_before(edges)) for name, union in times.items()}
    sums |= _counts(analysis, device, edges)
    first = np.searchsorted(idle.start, edges)
    for cause, column in idle.sums.items():
        total = np.zeros(len(column) + 1, np.int64)
        np.cumsum(column, out=total[1:])
        sums[cause] = np.diff(total[first])
    return sums


def _union(parts: list[Intervals]) -> Intervals:
    parts = [one for one in parts if len(one.start)]
    if len(parts) < 2:
        return parts[0] if parts else intervals.EMPTY
    return intervals.union(np.concatenate([one.start for one in parts]), np.concatenate([one.end for one in parts]))


def _counts(analysis: Analysis, device: DeviceUse, edges: Times) -> dict[str, Times]:
    operations = analysis.trace.operations
    start, work = operations["start"].to_numpy(), operations["class"].to_physical().to_numpy()
    mine = operations["device"].to_numpy() == device.device
    if not mine.all():
        start, work = start[mine], work[mine]
    first = np.searchsorted(start, edges)
    copy, others = work == CLASSES.index("copy"), work == CLASSES.index("memset")
    # Kernels and whole graphs are most of it by far: the others are counted.
    copies, no_kernels = (np.searchsorted(np.flatnonzero(rows), first) for rows in (copy, copy | others))
    return {"kernels": np.diff(first - no_kernels), "copy_count": np.diff(copies)}


def _written(sums: dict[str, Times], columns: Columns) -> dict[str, Packed]:
    return {name: columns.add(values) for name, values in sums.items() if values.any()}
