"""GPU time by module and op as a tree, for the page's flame chart."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from traceview.measure.activity import device_activity
from traceview.measure.base import PartInput
from traceview.measure.places.locate import Places
from traceview.measure.places.table import place_totals
from traceview.model.charts import PlaceNode
from traceview.model.trace import Trace, Window

MAX_NODES = 400  # the costliest nodes of a tree
MAX_DEPTH = 16


def place_tree(trace: Trace, device: int, window: Window, places: Places) -> tuple[PlaceNode, ...]:
    """Return the kernel time of a part of a device's window by module, op and kernel, parents before children.

    Where a kernel has no module, its ranges take the module's place. The tree is empty if it would be a list of
    kernels. A node can have more time than its children together: those are bounded by MAX_NODES and MAX_DEPTH.
    """
    work = device_activity(trace, device)
    if work is None:
        return ()
    totals = place_totals(PartInput(trace, work.clip(window), places), "ranges")
    around = pl.when(pl.col("module").is_null()).then("ranges").otherwise(pl.col("module").str.split("."))
    path = around.list.concat([pl.concat_list("op").list.drop_nulls(), pl.concat_list("kernel")])
    paths = totals.select(path.list.head(MAX_DEPTH).alias("path"), "count", "total_ns")
    if paths.is_empty() or paths["path"].list.len().max() == 1:
        return ()
    levels = pl.concat(list(_levels(paths))).sort("total_ns", "depth", "path", descending=[True, False, False])
    nodes = levels.head(MAX_NODES).with_row_index("node")
    outer = nodes.select(pl.col("path").alias("outer"), pl.col("node").cast(pl.Int64).alias("parent"))
    joined = nodes.with_columns(outer=pl.col("path").list.head(pl.col("depth"))).join(outer, on="outer", how="left")
    return tuple(
        PlaceNode(*row)
        for row in joined.sort("node")
        .select(pl.col("path").list.last(), pl.col("parent").fill_null(-1), "count", "total_ns")
        .iter_rows()
    )


def _levels(paths: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the sums of all beginnings of the paths, the shortest first."""
    for depth in range(MAX_DEPTH):
        longer = paths.filter(pl.col("path").list.len() > depth)
        if longer.is_empty():
            return
        sums = longer.group_by(pl.col("path").list.head(depth + 1)).agg(pl.col("count", "total_ns").sum())
        yield sums.with_columns(pl.lit(depth).alias("depth"))
