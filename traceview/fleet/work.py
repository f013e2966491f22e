"""What a rank's GPU does: in equal bins of time, for the timeline of all ranks, and in a mean iteration."""

from __future__ import annotations

import numpy as np

from traceview import intervals
from traceview.fleet.collectives import EMPTY
from traceview.frozen import frozen
from traceview.intervals import Times
from traceview.measure.activity import COMPUTE, COPY, KERNEL, Activity
from traceview.model.collectives import Clock, PackedColumn
from traceview.model.fleet import RankResult, RankWork
from traceview.model.trace import Trace
from traceview.normalise.codes import categories

MAX_BINS = 2048
MAX_NAMES = 60  # compute kernels that are named: those with the most time


def measure_work(trace: Trace, device: Activity) -> RankWork:
    """Return the work of a device in at most MAX_BINS bins of its window."""
    window = device.window
    width = max(1, -(-window.length // MAX_BINS))
    start = np.arange(window.start, window.end, width, dtype=np.int64)
    end = np.minimum(start + width, window.end)
    copies = device.codes == COPY
    names, kernel = _main_kernels(trace, device, start, end)
    return RankWork(
        start=window.start,
        width=width,
        compute=PackedColumn.pack(intervals.covered_length(device.compute, start, end)),
        copies=PackedColumn.pack(
            intervals.covered_length(intervals.union(device.start[copies], device.end[copies]), start, end)
        ),
        communication=PackedColumn.pack(intervals.covered_length(device.communication, start, end)),
        kernel=PackedColumn.pack(kernel),
        names=names,
    )


def merge_bins(work: RankWork, clock: Clock, count: int) -> RankWork:
    """Return the work on the common clock, with `count` neighbouring bins in one, of the first one's kernel."""
    edges = np.arange(0, len(work.kernel), count)
    start = int(clock.to_common(np.array([work.start], np.int64))[0])

    def merged(column: PackedColumn) -> PackedColumn:
        return PackedColumn.pack(np.add.reduceat(column.values(), edges) if len(edges) else EMPTY)

    return RankWork(
        start=start,
        width=count * work.width,
        compute=merged(work.compute),
        copies=merged(work.copies),
        communication=merged(work.communication),
        kernel=PackedColumn.pack(work.kernel.values()[edges]),
        names=work.names,
    )


def _main_kernels(trace: Trace, device: Activity, start: Times, end: Times) -> tuple[tuple[str, ...], Times]:
    """Return the compute kernels with the most time, and the one that runs longest in each bin; -1 for none of them."""
    source = device.select(trace.operations["source"].to_physical().to_numpy())
    name = device.select(trace.operations["name"].to_physical().to_numpy())
    rows = np.flatnonzero((source == KERNEL) & (device.codes == COMPUTE))
    total = np.bincount(name[rows], weights=device.end[rows] - device.start[rows])
    costliest = np.argsort(-total, kind="stable")[:MAX_NAMES]
    costliest = costliest[total[costliest] > 0]
    kernel, longest = np.full(len(start), -1, np.int64), np.zeros(len(start), np.int64)
    for number, code in enumerate(costliest.tolist()):
        members = rows[name[rows] == code]
        time = intervals.covered_length(intervals.union(device.start[members], device.end[members]), start, end)
        kernel[time > longest] = number
        np.maximum(longest, time, out=longest)
    texts = categories(trace.operations["name"])
    return tuple(texts[code] for code in costliest.tolist()), kernel


@frozen
class TimeParts:
    """The parts of a rank's time, in ns."""

    wall: int
    compute: int
    exposed_communication: int
    idle: int
    causes: tuple[int, ...]
    kernels: int

    @property
    def copies(self) -> int:
        """The rest of the wall time, in which only copies and memsets run."""
        return self.wall - self.compute - self.exposed_communication - self.idle


def time_parts(rank: RankResult, steady: Times) -> TimeParts:
    """Return the means over a rank's steady iterations, or the sums over its window if it has no iterations.

    `steady` are the numbers of the steady iterations. Means add up to the wall time; medians would not.
    """
    steps = rank.steps
    rows = np.isin(EMPTY if steps is None else steps.number, steady)
    if steps is None or not rows.any():
        return TimeParts(
            wall=rank.end - rank.start,
            compute=rank.compute,
            exposed_communication=rank.exposed_communication,
            idle=sum(rank.idle),
            causes=rank.idle,
            kernels=rank.kernels,
        )

    def mean(values: Times) -> int:
        return int(values[rows].sum()) // int(np.count_nonzero(rows))  # rounded down: parts never exceed the wall

    causes = tuple(mean(column.values()) for column in steps.idle)
    return TimeParts(
        wall=mean(steps.figure("wall")),
        compute=mean(steps.figure("compute")),
        exposed_communication=mean(steps.figure("exposed_communication")),
        idle=sum(causes),
        causes=causes,
        kernels=mean(steps.figure("kernels")),
    )
