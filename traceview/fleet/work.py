"""What a rank's GPU does: in equal bins of time, for the timeline of all ranks, and in a mean iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.fleet.collectives import EMPTY
from traceview.intervals import Intervals, Times
from traceview.measure.activity import COMPUTE, COPY, KERNEL, Activity
from traceview.model.collectives import Clock, PackedColumn
from traceview.model.fleet import RankResult, RankWork
from traceview.model.trace import Trace, Window
from traceview.normalise.codes import categories

MAX_BINS = 2048
MAX_NAMES = 60  # compute kernels that are named: those with the most time


def compute_times(trace: Trace, device: Activity) -> dict[str, int]:
    """Return the ns of each compute kernel in the device's window."""
    name, rows = _compute_kernels(trace, device)
    total = np.bincount(name[rows], weights=device.end[rows] - device.start[rows])
    texts = categories(trace.operations["name"])
    return {texts[code]: int(total[code]) for code in np.flatnonzero(total).tolist()}


@dataclass(frozen=True, slots=True)
class WorkBins:
    """The work of one GPU in at most MAX_BINS bins of `width` ns from `window.start` on.

    `sums` has the ns of each bin with compute, copies and communication, and with each of the kernels `names`.
    """

    window: Window
    width: int
    names: tuple[str, ...]
    sums: NDArray[np.int64]

    @classmethod
    def empty(cls, window: Window, times: Mapping[str, int]) -> WorkBins:
        """Return bins without work; `times` has the ns of each compute kernel."""
        width = max(1, -(-window.length // MAX_BINS))
        names = tuple(sorted(times, key=lambda name: (-times[name], name))[:MAX_NAMES])
        return cls(window, width, names, np.zeros((3 + len(names), -(-window.length // width)), np.int64))

    def in_part(self, trace: Trace, device: Activity) -> WorkBins:
        """Return the bins of the device's window, with its work."""
        first, last = (device.window.start - self.window.start) // self.width, device.window.end - self.window.start
        number = np.arange(first, max(-(-last // self.width), first))
        start = np.maximum(self.window.start + number * self.width, device.window.start)
        end = np.minimum(self.window.start + (number + 1) * self.width, device.window.end)
        copies = device.codes == COPY
        unions = [
            device.compute,
            intervals.union(device.start[copies], device.end[copies]),
            device.communication,
            *self._kernel_unions(trace, device),
        ]
        sums = np.zeros((len(unions), len(number)), np.int64)
        for row, union in enumerate(unions):
            if len(union.start):
                sums[row] = intervals.covered_length(union, start, end)
        return replace(self, window=device.window, sums=sums)

    def _kernel_unions(self, trace: Trace, device: Activity) -> Iterator[Intervals]:
        name, rows = _compute_kernels(trace, device)
        codes = {text: code for code, text in enumerate(categories(trace.operations["name"]))}
        for text in self.names:
            members = rows[name[rows] == codes.get(text, -1)]
            yield intervals.union(device.start[members], device.end[members])

    def add(self, part: WorkBins) -> None:
        """Add the bins of a part."""
        first = (part.window.start - self.window.start) // self.width
        self.sums[:, first : first + part.sums.shape[1]] += part.sums

    def work(self) -> RankWork:
        """Return the bins, with the kernel that runs longest in each."""
        compute, copies, communication = map(PackedColumn.pack, self.sums[:3])
        kernel = np.full(self.sums.shape[1], -1, np.int64)
        if self.names:
            kernels = self.sums[3:]
            kernel = np.where(kernels.max(axis=0) > 0, kernels.argmax(axis=0), -1)
        return RankWork(
            self.window.start, self.width, compute, copies, communication, PackedColumn.pack(kernel), self.names
        )


def _compute_kernels(trace: Trace, device: Activity) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
    """Return the code of the name of each operation of the device, and the places of compute kernels."""
    source = device.select(trace.operations["source"].to_physical().to_numpy())
    name = device.select(trace.operations["name"].to_physical().to_numpy())
    return name, np.flatnonzero((source == KERNEL) & (device.codes == COMPUTE))


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


@dataclass(frozen=True, slots=True)
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
