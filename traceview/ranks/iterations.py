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
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.measure.activity import COMPUTE, COPY, KERNEL, Activity
from traceview.measure.iterations import IterationRanges
from traceview.measure.iterations.times import Breakdown, IterationTimes
from traceview.model.fleet import Clock, RankResult, RankWork, Steps
from traceview.model.trace import Trace
from traceview.normalise.codes import categories
from traceview.ranks.collectives import BEFORE_ALL, EMPTY

MAX_BINS = 2048
MAX_NAMES = 60  # compute kernels that are named: those with the most time


def rank_work(trace: Trace, device: Activity) -> RankWork:
    """Return the work of one GPU in at most MAX_BINS bins of its window, with the kernel that runs longest in each."""
    window, copies = device.window, device.codes == COPY
    width = max(1, -(-window.length // MAX_BINS))
    start = np.arange(window.start, window.end, width)
    end = np.minimum(start + width, window.end)

    def busy(union: Intervals) -> Times:
        return intervals.covered_length(union, start, end)

    names, rows = _longest_kernels(trace, device)
    kernel, longest = np.full(len(start), -1, np.int64), np.zeros(len(start), np.int64)
    for place, members in enumerate(rows):
        ns = busy(intervals.union(device.start[members], device.end[members]))
        kernel[ns > longest] = place
        longest = np.maximum(longest, ns)
    return RankWork(
        window.start,
        width,
        compute=busy(device.compute),
        copies=busy(intervals.union(device.start[copies], device.end[copies])),
        communication=busy(device.communication),
        kernel=kernel,
        names=names,
    )


def _longest_kernels(trace: Trace, device: Activity) -> tuple[tuple[str, ...], list[NDArray[np.intp]]]:
    """Return the names of the MAX_NAMES compute kernels with the most time, and the places of each in the device."""
    source = device.select(trace.operations["source"].to_physical().to_numpy())
    name = device.select(trace.operations["name"].to_physical().to_numpy())
    rows = np.flatnonzero((source == KERNEL) & (device.codes == COMPUTE))
    total = np.bincount(name[rows], weights=device.end[rows] - device.start[rows])
    texts = categories(trace.operations["name"])
    codes = sorted(np.flatnonzero(total).tolist(), key=lambda code: (-total[code], texts[code]))[:MAX_NAMES]
    return tuple(texts[code] for code in codes), [rows[name[rows] == code] for code in codes]


def merge_bins(work: RankWork, clock: Clock, count: int) -> RankWork:
    """Return the work on the common clock, with `count` neighbouring bins in one, of the first one's kernel."""
    edges = np.arange(0, len(work.kernel), count)

    def sums(values: Times) -> Times:
        return np.add.reduceat(values, edges) if len(edges) else values

    return RankWork(
        start=int(clock.to_common(np.array([work.start], np.int64))[0]),
        width=count * work.width,
        compute=sums(work.compute),
        copies=sums(work.copies),
        communication=sums(work.communication),
        kernel=work.kernel[edges],
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
        figures = {name: mean(getattr(steps, name)) for name in names}
        causes = tuple(map(mean, steps.idle))
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


def build_steps(
    where: IterationRanges, finish: Times | None, breakdown: Callable[[Times, Times], Breakdown], skip: int | None
) -> Steps:
    """Return the first MAX_ITERATIONS iterations of a rank, cut where its GPU finishes them.

    `finish` is that of IterationLaunches, and `breakdown` returns the figures of periods. `skip` counts the warm-up.
    """
    number, named = iteration_numbers(where)
    cut, start, end = "range", where.start, where.end
    if finish is not None and len(finish) > 1:
        cut, start, end, number = "gpu", finish[:-1], finish[1:], number[1:]
    start, end = start[:MAX_ITERATIONS], end[:MAX_ITERATIONS]
    parts, wall = breakdown(start, end), end - start
    return Steps(
        source=where.source,
        time=IterationTimes(where.start, where.end, finish, where.skipped).time_ns,
        named=named,
        cut=cut,
        skipped=_warm_up_count(wall, skip, cut),
        number=number[:MAX_ITERATIONS],
        wall=wall,
        compute=parts.figures["compute_ns"],
        exposed_communication=parts.figures["exposed_communication_ns"],
        kernels=parts.figures["kernel_count"],
        idle=parts.idle,
    )


def _warm_up_count(wall: Times, skip: int | None, cut: str) -> int:
    if skip is not None:
        # Cutting by the GPU has already dropped the first iteration.
        return min(max(skip - (cut == "gpu"), 0), len(wall))
    steady = np.flatnonzero(wall <= WARM_UP_RATIO * np.median(wall)) if len(wall) else wall
    return int(steady[0]) if len(steady) else 0


class AlignedRanks(NamedTuple):
    """Ranks whose iterations are numbered alike.

    If `anchored`, collectives are counted from the start of each iteration, else from the start of the capture.
    """

    ranks: Sequence[RankResult]
    anchored: bool
    notes: tuple[str, ...]


def align_iterations(ranks: Sequence[RankResult], reports: Sequence[int]) -> AlignedRanks:
    """Number the iterations of all ranks alike; `reports` has the index of each rank's report.

    The numbers in the names are used if every rank has them and all ranks share some. Otherwise iterations are
    counted, but across reports only if the names have no numbers: ranks of one report cover the same time, ranks of
    several reports may not.
    """
    stepped = [rank for rank in ranks if rank.steps is not None]
    if not stepped:
        return AlignedRanks(ranks, False, ())
    named = all(rank.steps is not None and rank.steps.named for rank in stepped)
    has_common = _have_common_number(stepped)
    if named and (has_common or len(set(reports)) > 1):
        spans = _number_spans(stepped)
        notes = () if has_common else (f"no iteration is in all captures: {spans}; capture the same steps",)
        return AlignedRanks(ranks, True, notes)
    if named:
        reason = "the numbers in the names of iterations differ between ranks"
    elif any(rank.steps is not None and rank.steps.source == "period" for rank in stepped):
        reason = "some iterations are periods of the launch sequence, which have no numbers"
    else:
        reason = "iteration names have no numbers"
    note = f"{reason}: the n-th iterations of all ranks are treated as the same iteration"
    return AlignedRanks(
        [_with_counted_iterations(rank) for rank in ranks], not named, (note,) if len(stepped) > 1 else ()
    )


def _have_common_number(ranks: Sequence[RankResult]) -> bool:
    numbers = np.concatenate([rank.steps.number for rank in ranks if rank.steps])
    counts = np.unique(numbers, return_counts=True)[1]
    return bool((counts == len(ranks)).any())


def _number_spans(ranks: Sequence[RankResult]) -> str:
    spans = sorted({(int(rank.steps.number[0]), int(rank.steps.number[-1])) for rank in ranks if rank.steps})
    return ", ".join(f"{first} to {last}" for first, last in spans[:3]) + (", ..." if len(spans) > 3 else "")


def _with_counted_iterations(rank: RankResult) -> RankResult:
    """Return a rank with its iterations numbered 0, 1, 2 ..."""
    steps, collectives = rank.steps, rank.collectives
    if steps is None:
        return rank
    # The first iteration has collectives, although its start on the GPU is unknown.
    first = int(steps.cut == "gpu")
    index = np.searchsorted(steps.number, collectives.step) + first
    index[collectives.step < steps.number[0]] = 0
    return replace(
        rank,
        steps=replace(steps, number=np.arange(first, first + len(steps.number), dtype=np.int64), named=False),
        collectives=replace(collectives, step=np.where(collectives.step == BEFORE_ALL, BEFORE_ALL, index)),
    )
