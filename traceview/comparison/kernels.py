"""Kernels by name: how often and how long each ran in every iteration, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.comparison.align import Aligned
from traceview.comparison.change import changed
from traceview.intervals import Times
from traceview.model.analysis import Analysis
from traceview.model.comparison import KernelChange
from traceview.model.trace import SOURCES


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels and whole graphs by name; `counts` and `times` (ns) have the shape (names, iterations)."""

    names: tuple[str, ...]
    counts: NDArray[np.int64]
    times: NDArray[np.int64]

    def rows(self, name: str) -> tuple[Times, Times]:
        """Return counts and times of one name, zeros where it never ran."""
        if name in self.names:
            row = self.names.index(name)
            return self.counts[row], self.times[row]
        none = np.zeros(self.counts.shape[1], np.int64)
        return none, none


def kernels_of(analysis: Analysis, at: Aligned, devices: Sequence[int], process: int | None = None) -> Kernels:
    """Count every kernel in the iteration in which it starts, on all the chosen GPUs; of one process, or of all."""
    wanted = [SOURCES.index(name) for name in ("kernel", "graph")]
    chosen = pl.col("source").to_physical().is_in(wanted) & pl.col("device").is_in(list(devices))
    if process is not None:
        chosen &= pl.col("process") == process
    work = analysis.trace.operations.filter(chosen).select("start", "end", pl.col("name").cast(pl.String))
    start = work["start"].to_numpy()
    place = np.searchsorted(at.start, start, side="right") - 1
    inside = (place >= 0) & (start < at.end[np.maximum(place, 0)])
    found = work.with_columns(pl.Series("place", place)).filter(pl.Series(inside))
    sums = found.group_by("name", "place").agg(
        pl.len().cast(pl.Int64).alias("count"), (pl.col("end") - pl.col("start")).sum().alias("time")
    )
    names = sorted(sums["name"].unique().to_list())
    counts, times = (np.zeros((len(names), len(at.start)), np.int64) for _ in range(2))
    row = np.searchsorted(np.array(names, np.str_), sums["name"].to_numpy().astype(np.str_))
    place = sums["place"].to_numpy()
    counts[row, place] = sums["count"].to_numpy()
    times[row, place] = sums["time"].to_numpy()
    return Kernels(tuple(names), counts, times)


def kernel_changes(before: Kernels, after: Kernels, least: float, level: float) -> tuple[KernelChange, ...]:
    """Compare kernels by name, the largest difference of GPU time first.

    A kernel changed where its time did beyond the noise and by the share `least` of it, or where the median
    of its launches is another.
    """
    found = (_change(name, before, after, least, level) for name in {*before.names, *after.names})
    return tuple(sorted(found, key=lambda one: (-abs(one.time.difference), -abs(one.count.difference), one.name)))


def _change(name: str, before: Kernels, after: Kernels, least: float, level: float) -> KernelChange:
    (old_count, old_time), (new_count, new_time) = before.rows(name), after.rows(name)
    count = changed(name, "count", old_count, new_count, level)
    time = changed(name, "ns", old_time, new_time, level)
    if not old_count.any():
        status = "appeared"
    elif not new_count.any():
        status = "vanished"
    elif count.difference or (time.verdict in ("less", "more") and abs(time.difference) >= least * time.before):
        status = "changed"
    else:
        status = "same"
    return KernelChange(name, status, count, time)
