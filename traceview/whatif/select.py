"""Which iterations are modelled, and the time per iteration that they are held against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.model.analysis import Analysis, Iterations
from traceview.model.trace import CLASSES, Trace
from traceview.whatif.graph import Codes

LARGEST = 12_000  # operations in a model, so that replaying it takes about a tenth of a second
LATE = 1.5  # times the median: an iteration at the beginning that is set aside
FEWEST = 3  # iterations to know what is usual
MOST = 20  # iterations: two of the usual ten steps between synchronizations


@dataclass(frozen=True, slots=True)
class Selection:
    """Iterations [first, last) are counted and [begin, last) modelled; `edges` are their starts on the host.

    `iteration` says of each row of Trace.operations when its launch fell: -1 before the first, or not this
    process's. `measured_ns` is the steady GPU time per iteration of all `steady` iterations of the capture.
    """

    process: int
    range: str
    thread: int
    edges: Times
    iteration: Codes
    begin: int
    first: int
    last: int
    steady: int
    measured_ns: int


def select(analysis: Analysis) -> Selection | str:
    """Choose the iterations whose time is closest to the capture's mean; or say why there are none."""
    found = analysis.iterations
    if not isinstance(found, Iterations):
        return found.reason
    trace = analysis.trace
    edges = np.array([*(one.start_ns for one in found.per_iteration), found.per_iteration[-1].end_ns], np.int64)
    iteration = _iteration(trace, found.process_id, edges)
    finish, start, counts = _finishes(trace, iteration, found.count)
    steady = np.flatnonzero(counts > 0)
    steady = steady[steady >= found.skipped]
    if not len(steady):
        return "no GPU work was launched inside the iterations"
    first, last = _settled(finish, start, int(steady[0]), int(steady[-1]) + 1), int(steady[-1]) + 1
    begun = finish[first - 1] if first and counts[first - 1] else start[first]
    measured = int(finish[last - 1] - begun) // (last - first)
    chosen = _closest(finish, counts, first, last, measured)
    begin = max(chosen[0] - 1, 0)
    return Selection(
        found.process_id,
        found.range,
        found.thread,
        edges,
        iteration,
        begin,
        *chosen,
        last - first,
        max(measured, 1),
    )


def _iteration(trace: Trace, process: int, edges: Times) -> Codes:
    launch = trace.operations["launch"].fill_null(-1).to_numpy()
    began = np.where(launch >= 0, trace.api["start"].to_numpy()[launch], edges[0] - 1) if len(trace.api) else launch
    at = np.searchsorted(edges[:-1], began, side="right") - 1
    mine = trace.operations["process"].to_numpy() == process
    found: Codes = np.where(mine & (began < edges[-1]), at, -1)
    return found


def _finishes(trace: Trace, iteration: Codes, count: int) -> tuple[Times, Times, Times]:
    """Return each iteration's last end and first start on the GPU, and its number of operations."""
    frame = trace.operations.select(
        "start", "end", pl.col("class").to_physical().alias("code"), pl.Series("iteration", iteration)
    ).filter(pl.col("iteration") >= 0)
    compute = frame["code"].is_in([CLASSES.index("compute"), CLASSES.index("communication")])
    ends = frame.filter(compute) if compute.any() else frame
    finish, start, counts = (np.zeros(count, np.int64) for _ in range(3))
    by = ends.group_by("iteration").agg(pl.col("end").max())
    finish[by["iteration"].to_numpy()] = by["end"].to_numpy()
    by = frame.group_by("iteration").agg(pl.col("start").min(), pl.len())
    start[by["iteration"].to_numpy()] = by["start"].to_numpy()
    counts[by["iteration"].to_numpy()] = by["len"].to_numpy()
    return finish, start, np.where(finish > 0, counts, 0)


def _settled(finish: Times, start: Times, first: int, last: int) -> int:
    """Return the first iteration behind those that take the GPU long to come to, as ranks do that wait for each other.

    The host's ranges do not show it. The limit is that of the warm-up (METRICS.md "Iterations").
    """
    begun = np.concatenate([start[first : first + 1], finish[first : last - 1]])
    took = finish[first:last] - begun
    late = took > LATE * np.median(took)
    if len(took) < FEWEST or not late[0] or late[: len(took) - FEWEST].all():
        return first
    # One more, because the iteration before the counted ones is modelled too.
    return first + int(np.argmin(late)) + 1


def _closest(finish: Times, counts: Times, first: int, last: int, measured: int) -> tuple[int, int]:
    per = max(1, int(counts[first:last].mean()))
    length = int(np.clip(LARGEST // per, 1, MOST))
    if length >= last - first:
        return first, last
    lows = np.arange(first + 1, last - length + 1)
    means = (finish[lows + length - 1] - finish[lows - 1]) / length
    low = int(lows[np.argmin(np.abs(means - measured))])
    return low, low + length
