"""The iterations of each rank, cut where its GPU finishes them, and what the GPU does in them.

Iterations are numbered across ranks. The work of a GPU is summed in equal bins of time, for the timeline of all ranks,
and in a mean iteration.

An NVTX range around a step ends when the host is done with it. Hosts run ahead of their GPUs by different amounts, so
the ranges of one rank may be short while those of another wait. The same holds for the periods of a launch sequence. An
iteration therefore lasts from the moment when the GPU finishes the previous iteration's work to the moment when it
finishes this one's. The first iteration of a capture has no such start and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMPUTE, COPY, KERNEL, Activity
from traceview.measure.iterations import IterationRanges
from traceview.measure.iterations.times import Breakdown, IterationTimes
from traceview.model.analysis import CAUSES
from traceview.model.fleet import STEP_FIGURES, Clock, PackedColumn, RankResult, RankWork, Steps
from traceview.model.trace import Trace
from traceview.normalise.codes import categories
from traceview.ranks.collectives import BEFORE_ALL, EMPTY
from traceview.ranks.partials import SharedColumns

MAX_BINS = 2048
MAX_NAMES = 60  # compute kernels that are named: those with the most time


def work_in_bins(trace: Trace, device: Activity) -> RankWork:
    """Return the work of a GPU in at most MAX_BINS equal bins of its window, with the kernel that runs longest in each.

    Kernels are the MAX_NAMES with the most time.
    """
    window = device.window
    width = max(1, -(-window.length // MAX_BINS))
    start = window.start + width * np.arange(-(-window.length // width))
    end = np.minimum(start + width, window.end)
    copies = device.codes == COPY
    unions = (
        device.compute,
        intervals.union(device.start[copies], device.end[copies]),
        device.communication,
    )
    compute, copying, communication = (
        PackedColumn.pack(intervals.covered_length(union, start, end)) for union in unions
    )
    name, rows = _compute_kernels(trace, device)
    texts = categories(trace.operations["name"])
    total = np.bincount(name[rows], weights=device.end[rows] - device.start[rows], minlength=1).astype(np.int64)
    codes = sorted(np.flatnonzero(total).tolist(), key=lambda code: (-total[code], texts[code]))[:MAX_NAMES]
    kernels = np.zeros((len(codes) or 1, len(start)), np.int64)
    for row, code in enumerate(codes):
        members = rows[name[rows] == code]
        union = intervals.union(device.start[members], device.end[members])
        kernels[row] = intervals.covered_length(union, start, end)
    kernel = np.where(kernels.max(axis=0) > 0, kernels.argmax(axis=0), -1)
    names = tuple(texts[code] for code in codes)
    return RankWork(window.start, width, compute, copying, communication, PackedColumn.pack(kernel), names)


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


def time_parts(rank: RankResult, steady: Times) -> dict[str, Any]:
    """Return the fields of Rank that add up to its wall time, in ns, and its kernels.

    Each is a mean over the steady iterations, whose numbers are `steady`, or a sum over the window of a rank without
    iterations. Means add up to the wall time; medians do not.
    """
    steps = rank.steps
    rows = np.isin(EMPTY if steps is None else steps.number, steady)
    if steps is None or not rows.any():
        figures = {"wall": rank.end - rank.start}
        figures |= {name: getattr(rank, name) for name in ("compute", "exposed_communication", "kernels")}
        causes = rank.idle
    else:

        def mean(values: Times) -> int:
            return int(values[rows].sum()) // int(np.count_nonzero(rows))  # rounded down: parts never exceed the wall

        names = ("wall", "compute", "exposed_communication", "kernels")
        figures = {name: mean(steps.figure(name)) for name in names}
        causes = tuple(mean(column.values()) for column in steps.idle)
    own, idle = figures["wall"] - figures["exposed_communication"], sum(causes)
    copies = own - figures["compute"] - idle  # the rest, in which only copies and memsets run
    return figures | {"own": own, "idle": idle, "copies": copies, "causes": causes}


NUMBER = re.compile(r"(?:(?<![\w.])-)?\d+")
MAX_DIGITS = 15
MAX_ITERATIONS = 2000  # per rank
WARM_UP_RATIO = 1.5  # leading iterations that take longer than this times the median are warm-up


def iteration_numbers(iterations: IterationRanges) -> tuple[Times, bool]:
    """Return the last number in each range's name and True, or 0, 1, 2 ... and False if they do not ascend."""
    texts = [NUMBER.findall(name) for name in iterations.names]
    if iterations.source == "range" and all(texts) and all(len(digits[-1]) <= MAX_DIGITS for digits in texts):
        numbers = np.array([int(digits[-1]) for digits in texts], np.int64)
        if (np.diff(numbers) > 0).all():
            return numbers, True
    return np.arange(len(texts), dtype=np.int64), False


@dataclass(frozen=True, slots=True)
class CutIterations:
    """The first MAX_ITERATIONS iterations of a rank, as they are measured; `where` has their times.

    `time`, `named`, `cut` and `number` are those of Steps.
    """

    where: IterationRanges
    time: int
    named: bool
    cut: str
    number: Times

    @classmethod
    def build(cls, where: IterationRanges, finish: Times | None, number: Times, named: bool) -> CutIterations:
        """Cut iterations where the GPU finishes them.

        `finish` is that of IterationWork, `number` and `named` those of iteration_numbers.
        """
        begin, end = where.start, where.end
        time_ns = IterationTimes(begin, end, finish, where.skipped).time_ns
        cut = "range" if finish is None or len(finish) < 2 else "gpu"
        if cut == "gpu" and finish is not None:
            begin, end, number = finish[:-1], finish[1:], number[1:]
        where = where._replace(start=begin[:MAX_ITERATIONS], end=end[:MAX_ITERATIONS])
        return cls(where, time_ns, named, cut, number[:MAX_ITERATIONS])

    def steps(self, parts: Breakdown, skip: int | None) -> Steps:
        """Return the iterations with their figures; `skip` counts the warm-up."""
        wall = self.where.end - self.where.start
        figures = {
            "wall": wall,
            "compute": parts.figures["compute_ns"],
            "communication": parts.figures["communication_ns"],
            "exposed_communication": parts.figures["exposed_communication_ns"],
            "idle": parts.idle.sum(axis=0),
            "blocked": parts.figures["blocked_ns"],
            "kernels": parts.figures["kernel_count"],
        }
        return Steps(
            name=self.where.range,
            source=self.where.source,
            time=self.time,
            named=self.named,
            cut=self.cut,
            number=self.number,
            skipped=_warm_up_count(wall, skip, self.cut),
            figures=tuple(PackedColumn.pack(figures[name]) for name in STEP_FIGURES),
            idle=tuple(PackedColumn.pack(parts.idle[code]) for code in range(len(CAUSES))),
        )


def _warm_up_count(wall: Times, skip: int | None, cut: str) -> int:
    if skip is not None:
        # Cutting by the GPU has already dropped the first iteration.
        return min(max(skip - (cut == "gpu"), 0), len(wall))
    steady = np.flatnonzero(wall <= WARM_UP_RATIO * np.median(wall)) if len(wall) else wall
    return int(steady[0]) if len(steady) else 0


@dataclass(frozen=True, slots=True)
class AlignedRanks:
    """Ranks whose iterations are numbered alike.

    If `anchored`, collectives are counted from the start of each iteration, else from the start of the capture. If
    `counted`, the ranks are those of with_counted_iterations().
    """

    ranks: tuple[RankResult, ...]
    anchored: bool
    counted: bool
    notes: tuple[str, ...]


def align_iterations(ranks: Sequence[RankResult], reports: Sequence[int]) -> AlignedRanks:
    """Number the iterations of all ranks alike; `reports` has the index of each rank's report.

    The numbers in the names are used if every rank has them and all ranks share some. Otherwise iterations are
    counted, but across reports only if the names have no numbers: ranks of one report cover the same time, ranks of
    several reports may not.
    """
    stepped = [rank for rank in ranks if rank.steps is not None]
    if not stepped:
        return AlignedRanks(tuple(ranks), False, False, ())
    named = all(rank.steps is not None and rank.steps.named for rank in stepped)
    has_common = _have_common_number(stepped)
    if named and (has_common or len(set(reports)) > 1):
        spans = _number_spans(stepped)
        notes = () if has_common else (f"no iteration is in all captures: {spans}; capture the same steps",)
        return AlignedRanks(tuple(ranks), True, False, notes)
    shared = SharedColumns()
    counted = tuple(shared.rank(with_counted_iterations(rank)) for rank in ranks)
    if named:
        reason = "the numbers in the names of iterations differ between ranks"
    elif any(rank.steps is not None and rank.steps.source == "period" for rank in stepped):
        reason = "some iterations are periods of the launch sequence, which have no numbers"
    else:
        reason = "iteration names have no numbers"
    note = f"{reason}: the n-th iterations of all ranks are treated as the same iteration"
    return AlignedRanks(counted, not named, True, (note,) if len(stepped) > 1 else ())


def _have_common_number(ranks: Sequence[RankResult]) -> bool:
    numbers = np.concatenate([rank.steps.number for rank in ranks if rank.steps])
    counts = np.unique(numbers, return_counts=True)[1]
    return bool((counts == len(ranks)).any())


def _number_spans(ranks: Sequence[RankResult]) -> str:
    spans = sorted({(int(rank.steps.number[0]), int(rank.steps.number[-1])) for rank in ranks if rank.steps})
    return ", ".join(f"{first} to {last}" for first, last in spans[:3]) + (", ..." if len(spans) > 3 else "")


def with_counted_iterations(rank: RankResult) -> RankResult:
    """Return a rank with its iterations numbered 0, 1, 2 ..."""
    steps = rank.steps
    if steps is None:
        return rank
    collective_step = rank.collectives.column("step")
    # The first iteration has collectives, although its start on the GPU is unknown.
    first = int(steps.cut == "gpu")
    index = np.searchsorted(steps.number, collective_step) + first
    index[collective_step < steps.number[0]] = 0
    return replace(
        rank,
        steps=replace(steps, number=np.arange(first, first + len(steps.number), dtype=np.int64), named=False),
        collectives=rank.collectives.with_step(np.where(collective_step == BEFORE_ALL, BEFORE_ALL, index)),
    )
