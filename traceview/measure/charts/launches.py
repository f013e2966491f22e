"""The launch shapes of kernels, for the details of a kernel in the timeline."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceview.measure.charts.kernels import IN_STEADY, MAX_SUMS, KernelTotals, merge_kernels
from traceview.measure.kernels.families import shape_kinds
from traceview.model.charts import LaunchShape
from traceview.model.trace import SHAPES

MAX_LAUNCH_SHAPES = 5000  # those with the most kernels
KEYS = list(SHAPES)


def launch_shapes(totals: Sequence[KernelTotals], shapes: pl.DataFrame) -> tuple[LaunchShape, ...]:
    """Return the shapes of all devices' kernels with their number and median length, those with most kernels first.

    LaunchShape.shape is the row of `shapes`, those of the timeline.
    """
    if not totals:
        return ()
    kernels = merge_kernels(totals, len(totals) * MAX_SUMS)
    before, count = pl.col("count").cum_sum(), pl.col("count").sum()
    shorter, longer = (pl.col("ns").get((before > (count - odd) // 2).arg_max()) for odd in (1, 0))
    uses = (
        kernels.sums.filter(pl.col("part") != IN_STEADY)
        .sort("ns")
        .group_by("shape")
        .agg(pl.col("count", "total_ns").sum(), ((shorter + longer) // 2).alias("median_ns"))
    )
    uses = pl.concat([kernels.shapes[uses["shape"].to_numpy()], uses.drop("shape")], how="horizontal")
    uses = uses.join(shapes.with_row_index("shape"), on=KEYS, nulls_equal=True)
    uses = uses.sort("count", *KEYS, descending=[True, *[False] * len(KEYS)]).head(MAX_LAUNCH_SHAPES)
    return tuple(
        LaunchShape(
            **{name: row[name] for name in ("shape", "name", "demangled", "registers", "shared_bytes")},
            **{name: row[name] for name in ("count", "total_ns", "median_ns")},
            family=kind.family,
            grid=_size(row, "grid"),
            block=_size(row, "block"),
        )
        for row, kind in zip(uses.iter_rows(named=True), shape_kinds(uses), strict=True)
    )


def _size(row: dict[str, int | None], part: str) -> tuple[int, ...] | None:
    sizes = [row[f"{part}_{axis}"] for axis in "xyz"]
    return None if sizes[0] is None else tuple(size or 0 for size in sizes)
