"""The compute kernels of a device as arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Rows, Times, adjoining, rows_where
from traceview.measure.kernels.families import KernelKind, shape_kinds
from traceview.model.trace import CLASSES, SOURCES, Trace

Mask = NDArray[np.bool_]
Factors = NDArray[np.float64]
COMPUTE, KERNEL = CLASSES.index("compute"), SOURCES.index("kernel")
# Families that a compiler fuses with their neighbours: each of their kernels reads and writes its tensors once.
FUSIBLE = ("elementwise", "copy", "random", "reduction", "normalization", "softmax", "layout", "indexing", "pooling")
ODD_PRODUCT = "align[12](_|>|$)"  # in names of products with a dimension that is odd or only a multiple of 2


class KernelSequence(NamedTuple):
    """The compute kernels of one device in the order of their starts, with their kinds.

    `places` are their positions in the rows that they were collected from. `shape` indexes `kinds`, `full_names` and
    `blocks`, one entry for each row of Trace.shapes. `blocks` is the number of blocks, NaN if it is unknown. `sms` is 0
    if unknown.
    """

    places: Rows
    ns: Times
    stream: NDArray[np.int16]
    shape: NDArray[np.uint32]
    kinds: tuple[KernelKind, ...]
    full_names: pl.Series
    blocks: Factors
    sms: int
    gpu: str

    @classmethod
    def from_rows(cls, trace: Trace, device: int, rows: Rows | Times) -> KernelSequence:
        """Collect the compute kernels among `rows` of Trace.operations, which all run on one device."""
        chosen, operations = adjoining(rows), trace.operations
        kind, source = (operations[name].to_physical().to_numpy()[chosen] for name in ("class", "source"))
        places = rows_where((kind == COMPUTE) & (source == KERNEL))
        chosen = chosen if len(places) == len(rows) else rows[places]
        start, end, stream, shape = (
            operations[name].to_numpy()[chosen] for name in ("start", "end", "stream", "shape")
        )
        blocks = trace.shapes.select(pl.col("grid_x") * pl.col("grid_y") * pl.col("grid_z"))["grid_x"]
        gpu = trace.devices.row(device, named=True)
        return cls(
            places=places,
            ns=end - start,
            stream=stream,
            shape=shape,
            kinds=tuple(shape_kinds(trace.shapes)),
            full_names=trace.shapes["demangled"].fill_null(""),
            blocks=blocks.cast(pl.Float64).fill_null(np.nan).to_numpy(),
            sms=gpu["sm_count"] or 0,
            gpu=gpu["name"],
        )

    def inside(self, rows: slice) -> KernelSequence:
        """Return some of the kernels, which follow each other."""
        return self._replace(**{name: getattr(self, name)[rows] for name in ("places", "ns", "stream", "shape")})

    def where(self, chosen: Callable[[KernelKind], bool]) -> Mask:
        """Return the kernels whose kind is chosen."""
        return self._select(np.array([chosen(kind) for kind in self.kinds], np.bool_))

    def in_families(self, *families: str) -> Mask:
        """Return the kernels of these families."""
        return self.where(lambda kind: kind.family in families)

    def matches(self, pattern: str) -> Mask:
        """Return the kernels whose full name contains a match of a regular expression."""
        return self._select(self.full_names.str.contains(pattern).to_numpy())

    def _select(self, shapes: Mask) -> Mask:
        """Return the kernels whose shape is chosen; without a look at each kernel where none is."""
        return shapes.take(self.shape) if shapes.any() else np.zeros(len(self.shape), np.bool_)

    def runs(self, members: Mask) -> tuple[Times, Times]:
        """Return the first and one past the last index of each run of members that follow each other on a stream."""
        breaks = np.flatnonzero(np.diff(self.stream)) + 1
        edges = np.diff(np.concatenate([[False], members, [False]]).astype(np.int8))
        first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        inner = breaks[members[breaks] & members[breaks - 1]]
        return np.sort(np.concatenate([first, inner])), np.sort(np.concatenate([last, inner]))


def marked(first: Times, last: Times, count: int) -> Mask:
    """Return a mask of `count` kernels that is true inside the runs [first, last)."""
    depth = np.zeros(count + 1, np.int32)
    np.add.at(depth, first, np.int32(1))  # with a number of another type it takes seven times as long
    np.add.at(depth, last, np.int32(-1))
    mask: Mask = np.cumsum(depth, out=depth)[:-1] > 0
    return mask


def per_run(values: NDArray[np.generic], first: Times, last: Times, combine: np.ufunc) -> NDArray[np.int64]:
    """Return `combine` over the values of each of the disjoint ascending runs [first, last)."""
    if len(first) == 0:
        return np.zeros(0, np.int64)
    padded = np.append(values.astype(np.int64), 0)
    combined: NDArray[np.int64] = combine.reduceat(padded, np.stack([first, last], axis=1).ravel())[::2]
    return combined
