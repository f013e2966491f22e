"""Time by stack as a tree, for the page's icicle charts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.measure.host.stack_times import FIGURES, StackTimes
from traceview.model.charts import StackNode, StackTree
from traceview.model.rows import place_text
from traceview.model.stacks import CallTree, HostEvidence, node_levels

MAX_NODES = 600  # nodes of the tree, those with the most time
MAX_DEPTH = 80
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
    kept = order[(share[order] > 0) & (level[order] < MAX_DEPTH)][:MAX_NODES]
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
            kept[index[-1]] = replace(last, inner=f"{node.function} ({node.place})", calls=last.calls + 1)
        else:
            index.append(len(kept))
            kept.append(replace(node, parent=index[node.parent] if node.parent >= 0 else -1))
    return tuple(kept)


def _is_run(outer: StackNode, inner: StackNode) -> bool:
    return (
        outer.library
        and inner.library
        and inner.idle_ns >= MERGED_SHARE * outer.idle_ns
        and inner.thread_ns >= MERGED_SHARE * outer.thread_ns
    )
