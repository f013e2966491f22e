"""Whether iterations change during a run, and whether the clock, the kernels or what they launch explain it.

The first third of the counted iterations is compared with the last by medians, and the first half with the second by
a rank test, which no single long iteration decides. Then the same kernels of both thirds are compared, launch shape by
launch shape.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.measure.activity import COMPUTE
from traceview.measure.iterations.times import IterationLaunches
from traceview.model.analysis import Iterations
from traceview.model.drift import MIN_CHANGE, Drift
from traceview.model.trace import Trace, Window

MIN_COUNTED = 10  # iterations; with fewer, chance explains any order of lengths
MIN_RANK = 2.55  # standard deviations of the rank sum: 1 of 100 orders of equal lengths has as many
MIN_SHIFTED = 2 / 3  # share of the time of kernels whose lengths shift as a whole
MIN_INSTANCES, MIN_COMPARED = 4, 10  # kernels in each third, of a launch shape and in all; fewer differ by chance
MAX_KERNELS = 50_000  # kernels of each third that are compared


def iteration_drift(
    trace: Trace, iterations: Iterations, moments: Times, work: IterationLaunches, devices: Collection[int]
) -> Drift | None:
    """Return how iterations, or their kernels, change during the run; None if they do not, or are of several kinds.

    `moments` are the borders of the counted iterations, and `work` is what all launch. `devices` are rows of
    Trace.devices.
    """
    lengths = np.diff(moments)
    if len(lengths) < MIN_COUNTED or iterations.kinds:
        return None
    third, half = -(-len(lengths) // 3), len(lengths) // 2
    before, after = int(np.median(lengths[:third])), int(np.median(lengths[-third:]))
    early, late = (Window(*moments[edges].tolist()) for edges in ([0, third], [-third - 1, -1]))
    kernels = _kernel_ratio(trace, early, late, devices)
    ranks = _rank_deviation(lengths[:half], lengths[-half:])
    steps = abs(after - before) > MIN_CHANGE * before and abs(ranks) >= MIN_RANK
    if not steps and (kernels is None or abs(kernels - 1) <= MIN_CHANGE):
        return None
    counts = work.kernels[iterations.skipped :]
    return Drift(
        first_ns=before,
        last_ns=after,
        of_iterations=steps,
        kernels_ratio=kernels,
        first_kernels=int(np.median(counts[:third])),
        last_kernels=int(np.median(counts[-third:])),
        first_mhz=_clock(trace, early, devices),
        last_mhz=_clock(trace, late, devices),
    )


def _rank_deviation(first: Times, last: Times) -> float:
    """Return how many standard deviations the rank sum of `last` is from that of equal distributions (Mann-Whitney)."""
    below = int((first[:, None] < last).sum()) + 0.5 * int((first[:, None] == last).sum())
    n, m = len(first), len(last)
    return float((below - n * m / 2) / np.sqrt(n * m * (n + m + 1) / 12))


def _kernel_ratio(trace: Trace, early: Window, late: Window, devices: Collection[int]) -> float | None:
    """Return how many times as long the same kernels take late; None if no shape has enough instances in both.

    It is 1 unless most of the kernels, by time, have other lengths late: three quarters of them are beyond the median
    before, and the median is beyond three quarters of those before.
    """
    sums = [_quartiles(trace, window, devices, from_end=window is late) for window in (early, late)]
    both = sums[0].join(sums[1], on="shape", suffix="_late")
    both = both.filter(pl.min_horizontal("count", "count_late") >= MIN_INSTANCES)
    if both["count"].sum() < MIN_COMPARED:
        return None
    weight = both["count"] * both["median"]
    before, after = float(weight.sum()), float((both["count"] * both["median_late"]).sum())
    if not before:
        return None
    longer = (both["median_late"] > both["high"]) & (both["low_late"] > both["median"])
    shorter = (both["median_late"] < both["low"]) & (both["high_late"] < both["median"])
    shifted = float(weight.filter(longer if after > before else shorter).sum())
    return after / before if shifted >= MIN_SHIFTED * before else 1.0


def _quartiles(trace: Trace, window: Window, devices: Collection[int], *, from_end: bool) -> pl.DataFrame:
    """Return the number and the quartiles of the lengths of compute kernels in a window, by launch shape.

    Communication kernels do not count, because they wait for other GPUs.
    """
    start = trace.operations["start"].to_numpy()
    low, high = np.searchsorted(start, (window.start, window.end)).tolist()
    low, high = (max(low, high - MAX_KERNELS), high) if from_end else (low, min(high, low + MAX_KERNELS))
    computes = pl.col("shape") > 0, pl.col("class").to_physical() == COMPUTE, pl.col("device").is_in(list(devices))
    quartiles = {"low": 0.25, "median": 0.5, "high": 0.75}
    length = pl.col("end") - pl.col("start")
    lengths = (length.quantile(share, "nearest").alias(name) for name, share in quartiles.items())
    return trace.operations[low:high].filter(*computes).group_by("shape").agg(*lengths, pl.len().alias("count"))


def _clock(trace: Trace, window: Window, devices: Collection[int]) -> int | None:
    """Return the median clock of the GPUs in a window in MHz; None without samples."""
    inside = pl.col("start").is_between(window.start, window.end), pl.col("device").is_in(list(devices))
    clocks = trace.gpu_metrics.filter(*inside)["gpc_clock_mhz"].drop_nulls().to_numpy()
    return int(np.median(clocks)) if len(clocks) else None
