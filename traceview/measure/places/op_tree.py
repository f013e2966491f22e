"""Ops as trees: the ops around an op, and the forward op that created a backward op."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.measure.nvtx.nesting import Nesting
from traceview.model.trace import enum_texts

# Events around ops that are not ops: autograd's engine, and compiled functions.
WRAPPER = r"^autograd::engine::evaluate_function|^Torch-Compiled Region|^CompiledFunction|^## Call CompiledFxGraph"
# A C++ function that autograd does not record in the forward pass: the last op with its number is not the creator.
UNRECORDED = "torch::autograd::CppNode<"


@dataclass(frozen=True, slots=True)
class OpTree:
    """Ops in the order of `nesting`; -1 stands for no op.

    `backward` is the innermost op of autograd's backward that encloses an op or is the op included. `forward` is the op
    that created a backward op, or the last one before it where `is_unrecorded`; -1 if it is unknown. `has_gradients`
    marks ops that autograd records or runs.
    """

    nesting: Nesting
    parent: Times
    name: Times
    thread: Times
    backward: Times
    forward: Times
    has_gradients: NDArray[np.bool_]
    is_wrapper: NDArray[np.bool_]
    is_unrecorded: NDArray[np.bool_]

    @classmethod
    def build(cls, ops: pl.DataFrame) -> OpTree:
        """Build the trees of ops; `ops` are rows of model.SCOPES."""
        nesting = Nesting.build(*(ops[name].to_numpy().astype(np.int64) for name in ("start", "end", "thread")))
        ops = ops[nesting.rows]
        places = np.arange(len(ops))
        parent = nesting.enclosing(places, nesting.start)
        flagged = ops["backward"].to_numpy()
        name, texts = ops["name"].to_physical().to_numpy().astype(np.int64), enum_texts(ops["name"])
        is_wrapper = texts.str.contains(WRAPPER).to_numpy()[name]
        is_unrecorded = texts.str.starts_with(UNRECORDED).to_numpy()[name]
        forward = _forward_ops(ops)
        # In NVTX ranges the engine's op has no number: it has the forward of the backward function that it calls.
        called = np.flatnonzero((forward >= 0) & (parent >= 0) & ~is_unrecorded)
        called = called[(is_wrapper & flagged)[parent[called]] & (forward[parent[called]] < 0)]
        forward[parent[called]] = forward[called]
        return cls(
            nesting=nesting,
            parent=parent,
            name=name,
            thread=ops["thread"].to_numpy().astype(np.int64),
            backward=_last_of_chain(np.where(flagged, places, parent)),
            forward=forward,
            has_gradients=ops["sequence"].is_not_null().to_numpy(),
            is_wrapper=is_wrapper,
            is_unrecorded=is_unrecorded,
        )

    def outermost(self, module: Times) -> Times:
        """Return the outermost op around each op in the same module; `module` is the module of each op.

        Wrappers do not count.
        """
        places = np.arange(len(self.parent))
        ends = (self.parent < 0) | self.is_wrapper[self.parent] | (module[self.parent] != module)
        return _last_of_chain(np.where(ends, places, self.parent))


def _last_of_chain(following: Times) -> Times:
    """Follow each place to the end of its chain: a place that follows itself, or -1."""
    while True:
        further = np.where(following >= 0, following[following], -1)
        if np.array_equal(further, following):
            return following
        following = further


def _forward_ops(ops: pl.DataFrame) -> Times:
    """Return the place of the forward op of each backward op, -1 for others and where it is not certain.

    Forward ops share a sequence number with the next one that autograd records, so the last of them created the
    backward op. Each thread counts alone: PyTorch's number of the forward's thread, where it is known, stands for the
    thread that has most of its sequence numbers; otherwise the number must occur on one thread.
    """
    forward = np.full(len(ops), -1, np.int64)
    keys = ["process", "sequence"]
    numbered = ops.select("thread", *keys, "backward", "forward_thread", "start").with_row_index("place")
    numbered = numbered.filter(pl.col("sequence").is_not_null())
    created = numbered.filter(pl.col("backward"))
    if created.is_empty():
        return forward
    last = (
        numbered.filter(~pl.col("backward"))
        .sort("start", "place")
        .unique([*keys, "thread"], keep="last")
        .select(*keys, "thread", pl.col("place").alias("forward"))
    )
    pairs = created.drop("thread").join(last, on=keys)
    group = ["process", "forward_thread"]
    usual = (
        pairs.filter(pl.col("forward_thread").is_not_null())
        .group_by(*group, "thread")
        .len()
        .sort("len", "thread", descending=[True, False])
        .unique(group, keep="first", maintain_order=True)
        .select(*group, pl.col("thread").alias("usual"))
    )
    chosen = pairs.join(usual, on=group, how="left").filter(
        (pl.col("thread") == pl.col("usual")) | (pl.col("usual").is_null() & (pl.len().over("place") == 1))
    )
    forward[chosen["place"].to_numpy()] = chosen["forward"].to_numpy()
    return forward
