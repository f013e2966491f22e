"""Compare kernels by name: launches and GPU time in every iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.comparison.align import AlignedIterations
from traceview.comparison.change import change_between
from traceview.intervals import Times
from traceview.model.analysis import Analysis
from traceview.model.comparison import KernelChange
from traceview.model.trace import SOURCES


@dataclass(frozen=True, slots=True)
class KernelSamples:
    """Kernels and whole graphs by name; `counts` and `times` (ns) have the shape (names, iterations)."""

    names: tuple[str, ...]
    counts: NDArray[np.int64]
    times: NDArray[np.int64]

    def samples(self, name: str) -> tuple[Times, Times]:
        """Return the counts and times of a name; zeros if it does not occur."""
        if name in self.names:
            row = self.names.index(name)
            return self.counts[row], self.times[row]
        zeros = np.zeros(self.counts.shape[1], np.int64)
        return zeros, zeros


def sample_kernels(
    analysis: Analysis, at: AlignedIterations, devices: Sequence[int], process: int | None = None
) -> KernelSamples:
    """Count every kernel in the iteration in which it starts, over all chosen GPUs and one or all processes."""
    sources = [SOURCES.index(name) for name in ("kernel", "graph")]
    chosen = pl.col("source").to_physical().is_in(sources) & pl.col("device").is_in(list(devices))
    if process is not None:
        chosen &= pl.col("process") == process
    work = analysis.trace.operations.filter(chosen).select("start", "end", pl.col("name").cast(pl.String))
    start = work["start"].to_numpy()
    place = np.searchsorted(at.start, start, side="right") - 1
    inside = (place >= 0) & (start < at.end[np.maximum(place, 0)])
    kernels = work.with_columns(pl.Series("place", place)).filter(pl.Series(inside))
    sums = kernels.group_by("name", "place").agg(
        pl.len().cast(pl.Int64).alias("count"), (pl.col("end") - pl.col("start")).sum().alias("time")
    )
    names = sorted(sums["name"].unique().to_list())
    counts, times = (np.zeros((len(names), len(at.start)), np.int64) for _ in range(2))
    row = np.searchsorted(np.array(names, np.str_), sums["name"].to_numpy().astype(np.str_))
    place = sums["place"].to_numpy()
    counts[row, place] = sums["count"].to_numpy()
    times[row, place] = sums["time"].to_numpy()
    return KernelSamples(tuple(names), counts, times)


def kernel_changes(
    before: KernelSamples, after: KernelSamples, min_change: float, level: float
) -> tuple[KernelChange, ...]:
    """Compare kernels by name, largest difference of GPU time first.

    A kernel changed if the median number of its launches differs, or if its time changed beyond the noise and by
    at least the share `min_change`.
    """
    changes = [_kernel_change(name, before, after, min_change, level) for name in {*before.names, *after.names}]
    changes.sort(key=lambda kernel: (-abs(kernel.time.difference), -abs(kernel.count.difference), kernel.name))
    return tuple(changes)


def _kernel_change(
    name: str, before: KernelSamples, after: KernelSamples, min_change: float, level: float
) -> KernelChange:
    (old_count, old_time), (new_count, new_time) = before.samples(name), after.samples(name)
    count = change_between(name, "count", old_count, new_count, level)
    time = change_between(name, "ns", old_time, new_time, level)
    if not old_count.any():
        status = "appeared"
    elif not new_count.any():
        status = "vanished"
    elif count.difference or (
        time.verdict in ("less", "more") and abs(time.difference) >= min_change * time.before
    ):
        status = "changed"
    else:
        status = "same"
    return KernelChange(name, status, count, time)
