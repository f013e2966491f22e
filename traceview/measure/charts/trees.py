"""Trees of the page: kernel time by module and op, and by NVTX range; time by stack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.measure.activity import device_activity
from traceview.measure.host.lines import FIGURES, StackTimes
from traceview.measure.kernels import sums_by_place
from traceview.measure.places import Places
from traceview.model.charts import PlaceNode, RangeNode, StackNode, StackTree
from traceview.model.rows import place_text
from traceview.model.stacks import CallTree, HostEvidence, node_levels
from traceview.model.trace import Trace, Window

MAX_NODES = 400  # the costliest nodes of a tree
MAX_DEPTH = 16


def place_trees(
    trace: Trace, device: int, window: Window, places: Places
) -> tuple[tuple[PlaceNode, ...], tuple[RangeNode, ...]]:
    """Return the kernel time of a device inside `window` by module, op and kernel, and by range.

    Parents stand before children. A node can have more time than its children together: the trees are bounded by
    MAX_NODES and MAX_DEPTH, and a range has time of its own, outside any inner range.
    """
    work = device_activity(replace(trace, window=None), device)
    if work is None:
        return (), ()
    totals = sums_by_place(trace, work.clip(window), places, "ranges")
    return _place_tree(totals), _range_tree(totals)


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


MAX_STACK_NODES = 600  # nodes of the tree, those with the most time
MAX_STACK_DEPTH = 80
MERGED_SHARE = 0.95  # a library call and its only callee are one node if the callee has this share of its time


def stack_tree(evidence: HostEvidence, times: StackTimes) -> StackTree:
    """Return the time of a capture's stacks as a tree of lines of the program and functions of libraries.

    The tree has the nodes with the most time. Runs of library calls without branches are merged.
    """
    if times.frame.is_empty():
        return StackTree()
    tree, frame = _merged_stacks(evidence)
    level = tree.levels()
    figures = np.zeros((len(tree.parent), len(FIGURES)), np.int64)
    np.add.at(figures, tree.leaf[times.frame["stack"].to_numpy()], times.frame.select(FIGURES).to_numpy())
    for depth in range(int(level.max()), 0, -1):
        rows = np.flatnonzero(level == depth)
        np.add.at(figures, tree.parent[rows], figures[rows])
    share = (figures / np.maximum(times.frame.select(FIGURES).sum().to_numpy(), 1)).sum(axis=1)
    order = np.lexsort((level, -share))
    kept = order[(share[order] > 0) & (level[order] < MAX_STACK_DEPTH)][:MAX_STACK_NODES]
    index = np.full(len(tree.parent) + 1, -1)
    index[kept] = np.arange(len(kept))
    nodes = []
    for node in kept.tolist():
        function, file, line, library = evidence.frames.row(int(frame[node]))
        place = place_text(file, 0 if library else line)
        nodes.append(StackNode(function, place, library, int(index[tree.parent[node]]), *figures[node].tolist()))
    return StackTree(_without_runs(nodes), times.exact)


def _merged_stacks(evidence: HostEvidence) -> tuple[CallTree, NDArray[np.int64]]:
    """Return the stacks as a tree without the lines of libraries, and the frame of each node.

    A frame is a row of HostEvidence.frames.
    """
    line = pl.when("library").then(0).otherwise("line")
    kinds = evidence.frames.with_row_index("row").select(pl.col("row").first().over("function", "file", line))
    frame = kinds["row"].cast(pl.Int64).to_numpy()[evidence.stacks["frame"].to_numpy()]
    parent = evidence.stacks["parent"].cast(pl.Int64).to_numpy()
    tree = CallTree.from_calls(parent, frame[:, None], node_levels(parent))
    return tree, tree.frames[tree.frame, 0]


def _without_runs(nodes: list[StackNode]) -> tuple[StackNode, ...]:
    """Return the nodes with each run of library calls as one of them; callers come first."""
    children = np.bincount([node.parent + 1 for node in nodes], minlength=len(nodes) + 1)[1:]
    kept: list[StackNode] = []
    index: list[int] = []  # in `kept` of each node
    for node in nodes:
        outer = nodes[node.parent]
        if node.parent >= 0 and children[node.parent] == 1 and _is_run(outer, node):
            index.append(index[node.parent])
            last = kept[index[-1]]
            kept[index[-1]] = last._replace(inner=f"{node.function} ({node.place})", calls=last.calls + 1)
        else:
            index.append(len(kept))
            kept.append(node._replace(parent=index[node.parent] if node.parent >= 0 else -1))
    return tuple(kept)


def _is_run(outer: StackNode, inner: StackNode) -> bool:
    return (
        outer.library
        and inner.library
        and inner.idle_ns >= MERGED_SHARE * outer.idle_ns
        and inner.thread_ns >= MERGED_SHARE * outer.thread_ns
    )
