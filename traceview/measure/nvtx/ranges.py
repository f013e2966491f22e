"""NVTX ranges projected on the GPU (METRICS.md "NVTX projected on the GPU")."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.measure.activity import within
from traceview.measure.base import CaptureMeasure
from traceview.measure.nvtx.projection import Projection, project
from traceview.measure.nvtx.range_work import work_of_groups
from traceview.model.analysis import NotMeasured, RangeUse
from traceview.model.columns import Table
from traceview.model.profilers import capture_advice
from traceview.model.trace import Trace, Window


def measure_ranges(trace: Trace, projection: Projection | None = None) -> tuple[RangeUse, ...] | NotMeasured:
    """Return one RangeUse for each (name, domain), the busiest on the GPU first.

    In a narrowed trace, a name counts when one of its ranges overlaps the window; ranges and operations
    are clipped to it, each by itself (an operation may run in the window and be launched before it).
    `projection` is the trace's own, where it is known already.
    """
    if trace.ranges.is_empty():
        return NotMeasured(capture_advice(trace.info.profiler).no_ranges)
    names = trace.ranges.select("name", "domain").unique(maintain_order=True).with_row_index("group")
    ranges = trace.ranges.join(names, on=["name", "domain"], how="left", maintain_order="left")
    host = _on_host(ranges, trace.window)
    if host.is_empty():
        return NotMeasured("no NVTX range overlaps the chosen window")
    projection = projection or project(trace)
    group = ranges["group"].to_numpy().astype(np.int64)
    work = work_of_groups(trace, projection, group, len(names))
    uses = (
        names.with_columns(
            pl.col("name", "domain").cast(pl.String),
            *(pl.Series(name, values) for name, values in zip(work._fields, work, strict=True)),
        )
        .join(host, on="group")
        .sort(["busy", "host", "name", "domain"], descending=[True, True, False, False])
    )
    columns = ("name", "domain", "count", "host", "busy", "span", "span_each", "kernels", "operations", "via")
    return tuple(RangeUse(*row) for row in uses.select(columns).iter_rows())


def _on_host(ranges: pl.DataFrame, window: Window | None) -> pl.DataFrame:
    """Return, for each group with ranges in the window: count and host, clipped to it."""
    if window is not None:
        inside = within(ranges["start"].to_numpy(), ranges["end"].to_numpy(), window)
        clipped = pl.col("start", "end").clip(window.start, window.end)
        ranges = ranges.filter(pl.Series(inside)).with_columns(clipped)
    return ranges.group_by("group").agg(
        pl.len().cast(pl.Int64).alias("count"), (pl.col("end") - pl.col("start")).sum().alias("host")
    )


RANGES = CaptureMeasure(
    Table(
        name="nvtx",
        title="NVTX ranges (GPU projection)",
        note="Work belongs to the range that is open where it is launched, backward passes included.",
        row_type=RangeUse,
        shown=("label", "count", "host_ns", "gpu_busy_ns", "gpu_span_ns", "kernel_count", "via_process_count"),
    ),
    lambda given: measure_ranges(given.trace, given.projection),
)
