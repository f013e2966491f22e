"""The launch shapes of kernels, for the details of a kernel in the timeline."""

from __future__ import annotations

import polars as pl

from traceview.measure.kernels import shape_kinds
from traceview.model.charts import LaunchShape
from traceview.model.trace import Trace

MAX_LAUNCH_SHAPES = 5000  # those with the most kernels


def launch_shapes(trace: Trace) -> tuple[LaunchShape, ...]:
    """Return the shapes of the capture's kernels with their number and median length, those with most kernels first."""
    length = pl.col("end") - pl.col("start")
    figures = [pl.len().alias("count"), length.sum().alias("total"), length.median().cast(pl.Int64).alias("median")]
    uses = trace.operations.lazy().filter(pl.col("shape") > 0).group_by("shape").agg(figures)
    uses = uses.sort(["count", "shape"], descending=[True, False]).head(MAX_LAUNCH_SHAPES)
    kinds, shapes = shape_kinds(trace.shapes), trace.shapes
    size = [[f"{part}_{axis}" for axis in "xyz"] for part in ("grid", "block")]
    made = []
    for row, count, total, median in uses.collect().iter_rows():
        known = shapes.row(row, named=True)
        grid, block = (None if known[axes[0]] is None else tuple(known[axis] for axis in axes) for axes in size)
        made.append(
            LaunchShape(
                shape=row,
                name=known["name"],
                demangled=known["demangled"],
                family=kinds[row].family,
                grid=grid,
                block=block,
                registers=known["registers"],
                shared_bytes=known["shared_bytes"],
                count=count,
                total_ns=total,
                median_ns=median,
            )
        )
    return tuple(made)
