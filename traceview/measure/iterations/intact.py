"""Iterations whose GPU work the profiler lost (docs/definitions.md "Lost GPU work").

An iteration is intact if the share of its launches with their work in the capture is at least 90% of that of others.
The longest stretch of intact iterations, one after another, counts. The time of the others is a hole: it shows neither
busy nor idle time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.measure.iterations.launches import GRAPH, KERNEL
from traceview.measure.iterations.times import end_of_launches
from traceview.model.trace import Trace, Window

MIN_INTACT = 0.9  # part of the usual share of launches with work (_usual) that an intact iteration has at least
MIN_COMPLETE = 0.95  # share of launches with work from which an iteration is nearly complete
MIN_HOLE = 10  # consecutive launches without work

Mask = NDArray[np.bool_]


class LostIterations(NamedTuple):
    """How many iterations lack GPU work, how many intact ones are apart from those that count, and the holes."""

    lost: int
    apart: int
    holes: tuple[Window, ...]


NONE_LOST = LostIterations(0, 0, ())


def intact_stretch(trace: Trace, process: int, start: Times, end: Times) -> tuple[slice, LostIterations]:
    """Return the iterations of a process that count, and what is lost of the others.

    A range without launches is as it should be, unless it is before or after all calls of its process.
    """
    calls = _call_times(trace, process)
    if not len(trace.lost) and calls.start < end[0] and start[-1] < calls.end:
        return slice(0, len(start)), NONE_LOST
    edges = np.append(start, end_of_launches(start, end))
    with_work, without = _launches_between(trace, process, edges)
    share = np.where(with_work + without > 0, with_work / np.maximum(with_work + without, 1), 0.0)
    if not share.any():
        return slice(0, len(start)), NONE_LOST
    nothing = (with_work + without == 0) & (start >= calls.start) & (start < calls.end)
    intact = nothing | (share >= MIN_INTACT * _usual(share[share > 0]))
    if intact.all():
        return slice(0, len(start)), NONE_LOST
    borders = np.flatnonzero(np.diff(intact, prepend=False, append=False)).reshape(-1, 2)
    lengths = borders[:, 1] - borders[:, 0]
    # If several stretches are longest, the last counts, because it is the steadiest.
    first, last = borders[len(lengths) - 1 - np.argmax(lengths[::-1])].tolist()
    lost = np.flatnonzero(np.diff(~intact, prepend=False, append=False)).reshape(-1, 2).tolist()
    holes = tuple(Window(int(edges[begin]), int(edges[stop])) for begin, stop in lost)
    count = int(intact.sum())
    return slice(first, last), LostIterations(len(start) - count, count - (last - first), holes)


def _usual(share: NDArray[np.float64]) -> float:
    """Return the share that intact iterations have: the largest, or the median where none is nearly complete."""
    return float(share.max() if share.max() >= MIN_COMPLETE else np.median(share))


def _call_times(trace: Trace, process: int) -> Window:
    starts = trace.api["start"].to_numpy()[(trace.api["process"] == process).to_numpy()]
    return Window(int(starts[0]), int(starts[-1])) if len(starts) else Window(0, 0)


def _launches_between(trace: Trace, process: int, edges: Times) -> tuple[Times, Times]:
    """Return how many launches with work, and without, a process makes from each edge to the next."""
    is_own = (trace.api["process"] == process).to_numpy()
    works = np.zeros(len(trace.api), np.bool_)
    kernels = trace.operations["source"].to_physical() <= max(KERNEL, GRAPH)
    works[trace.operations["launch"].filter(kernels).drop_nulls().to_numpy()] = True
    lost = np.zeros(len(trace.api), np.bool_)
    lost[trace.lost["launch"].to_numpy()] = True
    places = np.searchsorted(trace.api["start"].to_numpy(), edges)
    counts = (np.append(0, np.cumsum(kind & is_own)) for kind in (works, lost))
    with_work, without = (np.diff(running[places]) for running in counts)
    return with_work, without


def launch_holes(trace: Trace) -> Iterable[Window]:
    """Yield the time of each stretch of launches without work: from the first of them to the next call with work.

    Where no launch has work, it is the time of the capture, whatever copies there are. A process of which no launch has
    work, and that shares no GPU with another, leaves the figures of the recorded GPUs as they are.
    """
    if trace.info.trust.lost_everything:
        yield trace.span
        return
    if len(trace.lost) < MIN_HOLE:
        return
    works = trace.operations["launch"].drop_nulls().unique().sort().to_numpy()
    lost = trace.lost.filter(~pl.col("queued"))["launch"].to_numpy()
    start, end, process = (trace.api[name].to_numpy() for name in ("start", "end", "process"))
    for number in np.unique(process[lost]).tolist():
        own, gone = works[process[works] == number], lost[process[lost] == number]
        if _computes_elsewhere(trace, number):
            continue
        # Lost launches before the same launch that has work are one stretch.
        following = np.searchsorted(own, gone)
        borders = np.flatnonzero(np.diff(following, prepend=-1, append=-1))
        for first, last in pairwise(borders.tolist()):
            if last - first >= MIN_HOLE:
                after = int(following[first])
                stop = start[own[after]] if after < len(own) else end[gone[last - 1]]
                yield Window(int(start[gone[first]]), int(stop))


def _computes_elsewhere(trace: Trace, process: int) -> bool:
    """Return whether the kernels of a process were not recorded, on a GPU that no other process uses."""
    is_own = pl.col("process") == process
    own, others = trace.operations.filter(is_own), trace.operations.filter(~is_own)
    is_recorded = (own["source"].to_physical() <= max(KERNEL, GRAPH)).any()
    return not is_recorded and set(own["device"].unique()).isdisjoint(others["device"].unique())


def joined_holes(holes: Iterable[Window]) -> tuple[Window, ...]:
    """Return disjoint ascending holes."""
    every = sorted((hole.start, hole.end) for hole in holes)
    starts, ends = (np.array(edges, np.int64) for edges in (zip(*every, strict=True) if every else ((), ())))
    union: Intervals = intervals.union(starts, ends)
    return tuple(Window(*edges) for edges in zip(union.start.tolist(), union.end.tolist(), strict=True))
