"""Call stacks as a tree, built level by level: no loop over stacks or frames."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import distinct_rows

Numbers = NDArray[np.int64]


class CallTree(NamedTuple):
    """Stacks that share their outer frames.

    `parent` (row of the caller, -1 at the outermost frame) and `frame` (row of `frames`) describe the nodes, `leaf` has
    the node of each stack's innermost frame, and `frames` has the distinct frames, one row of numbers each.
    """

    parent: Numbers
    frame: Numbers
    leaf: Numbers
    frames: Numbers

    @classmethod
    def from_chains(cls, frames: Numbers, depth: Numbers) -> CallTree:
        """Return the tree of stacks: `depth` rows of `frames` each (at least one), the innermost first."""
        first = np.cumsum(depth) - depth
        parent = np.arange(1, len(frames) + 1)
        parent[first + depth - 1] = -1
        level = np.repeat(first + depth - 1, depth) - np.arange(len(frames))
        return _unify_nodes(parent, frames, level, first)

    @classmethod
    def from_calls(cls, parent: Numbers, frames: Numbers, level: Numbers) -> CallTree:
        """Return the tree of calls; `parent` is the caller's row (-1 for none), `level` the number of callers."""
        return _unify_nodes(parent, frames, level, np.arange(len(parent)))

    def levels(self) -> Numbers:
        """Return the number of callers of each node. A caller comes before what it calls."""
        return node_levels(self.parent)


def node_levels(parent: Numbers) -> Numbers:
    """Return the number of callers of each node of a tree."""
    level = np.zeros(len(parent), np.int64)
    above = parent
    while (inside := above >= 0).any():
        level += inside
        above = np.where(inside, parent[above], -1)
    return level


def _unify_nodes(parent: Numbers, frames: Numbers, level: Numbers, leaf: Numbers) -> CallTree:
    """Merge nodes with equal parents and frames, one level after the other."""
    every, (frame,) = distinct_rows([pl.DataFrame(frames)])
    distinct = every.to_numpy()
    by_level = np.argsort(level, kind="stable")
    ends = np.cumsum(np.bincount(level))
    node = np.full(len(parent) + 1, -1, np.int64)  # the last one stands for no parent
    parents, own_frames, count = [], [], 0
    for begin, end in zip((0, *ends.tolist()), ends.tolist(), strict=False):
        rows = by_level[begin:end]
        keys = node[parent[rows]] * len(distinct) + frame[rows]
        unique, where = np.unique(keys, return_inverse=True)
        node[rows] = where + count
        parents.append(unique // len(distinct))
        own_frames.append(unique % len(distinct))
        count += len(unique)
    return CallTree(np.concatenate(parents), np.concatenate(own_frames), node[leaf], distinct)
