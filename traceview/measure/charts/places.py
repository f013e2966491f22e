"""Kernel time by module and op, and by NVTX range, as trees for the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from traceview.measure.activity import device_activity
from traceview.measure.base import PartInput
from traceview.measure.places.locate import Places
from traceview.measure.places.table import place_totals
from traceview.model.charts import PlaceNode, RangeNode
from traceview.model.trace import Trace, Window

MAX_NODES = 400  # the costliest nodes of a tree
MAX_DEPTH = 16


def tree_totals(trace: Trace, device: int, window: Window, places: Places) -> pl.DataFrame:
    """Return place_totals of a part of a device's window with the ranges of each place; empty without work."""
    work = device_activity(replace(trace, window=None), device)
    return pl.DataFrame() if work is None else place_totals(PartInput(trace, work.clip(window), places), "ranges")


def place_trees(totals: pl.DataFrame) -> tuple[tuple[PlaceNode, ...], tuple[RangeNode, ...]]:
    """Return the kernel time of a part of a device's window by module, op and kernel, and by range.

    `totals` add up to those of tree_totals. Parents stand before children. A node can have more time than its children
    together: the trees are bounded by MAX_NODES and MAX_DEPTH, and a range has time of its own, outside any inner
    range.
    """
    return ((), ()) if totals.is_empty() else (_place_tree(totals), _range_tree(totals))


def _range_tree(totals: pl.DataFrame) -> tuple[RangeNode, ...]:
    """Return the tree of ranges; empty without ranges. Kernels outside any range have no node."""
    paths = totals.select(pl.col("ranges").list.head(MAX_DEPTH).alias("path"), "count", "total_ns")
    paths = paths.filter(pl.col("path").list.len() > 0)
    return () if paths.is_empty() else tuple(RangeNode(*row) for row in _tree(paths).iter_rows())


def _place_tree(totals: pl.DataFrame) -> tuple[PlaceNode, ...]:
    """Return the tree of modules, ops and kernels; empty if it would be a list of kernels.

    A kernel outside any module is placed by its ranges.
    """
    around = pl.when(pl.col("module").is_null()).then("ranges").otherwise(pl.col("module").str.split("."))
    path = around.list.concat([pl.concat_list("op").list.drop_nulls(), pl.concat_list("kernel")])
    paths = totals.select(path.list.head(MAX_DEPTH).alias("path"), "count", "total_ns")
    if paths.is_empty() or paths["path"].list.len().max() == 1:
        return ()
    return tuple(PlaceNode(*row) for row in _tree(paths).drop("own_ns").iter_rows())


def _tree(paths: pl.DataFrame) -> pl.DataFrame:
    """Return the costliest beginnings of the paths: name, parent (row, -1 for none), count, total_ns and own_ns.

    `own_ns` is the time of the paths that end here.
    """
    levels = pl.concat(list(_levels(paths))).sort("total_ns", "depth", "path", descending=[True, False, False])
    nodes = levels.head(MAX_NODES).with_row_index("node")
    outer = nodes.select(pl.col("path").alias("outer"), pl.col("node").cast(pl.Int64).alias("parent"))
    own = paths.group_by("path").agg(pl.col("total_ns").sum().alias("own_ns"))
    joined = nodes.with_columns(outer=pl.col("path").list.head(pl.col("depth"))).join(outer, on="outer", how="left")
    return (
        joined.join(own, on="path", how="left")
        .sort("node")
        .select(
            pl.col("path").list.last().alias("name"),
            pl.col("parent").fill_null(-1),
            "count",
            "total_ns",
            pl.col("own_ns").fill_null(0),
        )
    )


def _levels(paths: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the sums of all beginnings of the paths, the shortest first."""
    for depth in range(MAX_DEPTH):
        longer = paths.filter(pl.col("path").list.len() > depth)
        if longer.is_empty():
            return
        sums = longer.group_by(pl.col("path").list.head(depth + 1)).agg(pl.col("count", "total_ns").sum())
        yield sums.with_columns(pl.lit(depth).alias("depth"))
