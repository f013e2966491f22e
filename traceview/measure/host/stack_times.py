"""The time of each stack: idle time of GPUs, and the time of the threads themselves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import Coverage, Intervals
from traceview.measure.host.lines import IdleStacks
from traceview.measure.host.stack_cells import StackIndex, sampled_cells

FIGURES = ("idle_ns", "idle_samples", "thread_ns", "thread_samples")


class StackTimes(NamedTuple):
    """The time of each stack that occurs.

    `frame` has the row of the stack in HostEvidence.stacks (`stack`, ascending) and FIGURES: the idle time of GPUs with
    the launching thread, or the thread that waits for it, in this stack, and the time of all Python threads. If `exact`
    is false, the times come from samples.
    """

    frame: pl.DataFrame
    exact: bool


def stack_times(index: StackIndex, idle_time: IdleStacks, windows: Intervals) -> StackTimes:
    """Return the time of each stack, that of threads inside `windows`.

    Native stacks have idle time only: those outside it are not read (normalise/stacks.py).
    """
    seen = idle_time.frame.filter(pl.col("until") < 0)
    named = seen.select("stack", "idle_ns", pl.col("samples").alias("idle_samples"))
    both = named.join(_thread_times(index, windows), on="stack", how="full", coalesce=True)
    return StackTimes(both.fill_null(0).select("stack", *FIGURES).sort("stack"), idle_time.exact)


def _thread_times(index: StackIndex, windows: Intervals) -> pl.DataFrame:
    covered = Coverage.from_union(windows)
    samples = index.evidence.samples.filter(pl.col("python_thread").is_not_null())
    rows = []
    for _, own in samples.group_by("python_thread", maintain_order=True):
        cells = sampled_cells(own)
        inside = covered.length_between(cells.start, cells.end)
        chosen = np.flatnonzero((inside > 0) & (cells.stack >= 0))
        rows.append(pl.DataFrame({"stack": cells.stack[chosen], "thread_ns": inside[chosen]}))
    schema = {"stack": pl.Int32, "thread_ns": pl.Int64}
    frame = pl.concat(rows) if rows else pl.DataFrame(schema=schema)
    return frame.group_by("stack").agg(pl.col("thread_ns").sum(), pl.len().cast(pl.Int64).alias("thread_samples"))
