"""The compute kernels of a device as arrays, and what a change leaves of the time of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.frozen import frozen
from traceview.intervals import Rows, Times, adjoining, rows_where
from traceview.measure.kernels.families import KernelKind, kernel_kind
from traceview.model.trace import CLASSES, SOURCES, Trace
from traceview.units import share

Mask = NDArray[np.bool_]
Factors = NDArray[np.float64]
SumOfAll = Callable[[str, Any], Any]
Range = tuple[float, float, float]  # a fraction of a time: at best, expected and at worst
COMPUTE, KERNEL = CLASSES.index("compute"), SOURCES.index("kernel")
MATRIX = ("gemm", "convolution", "attention")
# Families that a compiler fuses with their neighbours: each of their kernels reads and writes its tensors once.
FUSIBLE = ("elementwise", "copy", "random", "reduction", "normalization", "softmax", "layout", "indexing", "pooling")
ODD_PRODUCT = "align[12](_|>|$)"  # in names of products with a dimension that is odd or only a multiple of 2
SHORTEST = (1_500, 2_500, 4_000)  # ns of a matrix kernel of a few blocks on an H200


@frozen
class KernelSequence:
    """The compute kernels of one device in the order of their starts, with their kinds.

    `places` are their positions in the rows that they were collected from. `shape` indexes `kinds`, `full_names` and
    `blocks`, one entry for each row of Trace.shapes. `blocks` is the number of blocks, NaN if it is unknown. `sms` is 0
    if unknown. `own` are the kernels that count: in a slice of a capture, others show what runs before and after them.
    `total` returns a sum over the whole capture from its name and from the sum over `own`; `shown` does so for texts.
    """

    places: Rows
    ns: Times
    stream: NDArray[np.int16]
    shape: NDArray[np.uint32]
    kinds: tuple[KernelKind, ...]
    full_names: tuple[str, ...]
    blocks: Factors
    sms: int
    gpu: str
    own: slice | None = None  # all
    total: SumOfAll = lambda _name, value: value
    shown: SumOfAll = lambda _name, value: value

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
        names = tuple(trace.shapes.select(pl.col("name", "demangled").fill_null("")).iter_rows())
        blocks = trace.shapes.select(pl.col("grid_x") * pl.col("grid_y") * pl.col("grid_z"))["grid_x"]
        gpu = trace.devices.row(device, named=True)
        return cls(
            places=places,
            ns=end - start,
            stream=stream,
            shape=shape,
            kinds=tuple(starmap(kernel_kind, names)),
            full_names=tuple(full for _, full in names),
            blocks=blocks.cast(pl.Float64).fill_null(np.nan).to_numpy(),
            sms=gpu["sm_count"] or 0,
            gpu=gpu["name"],
        )

    def among(self, before: int, count: int, total: SumOfAll, shown: SumOfAll) -> KernelSequence:
        """Return the sequence with those kernels as `own` that are in `count` rows after the first `before` rows."""
        first, last = np.searchsorted(self.places, (before, before + count)).tolist()
        return replace(self, places=self.places - before, own=slice(first, last), total=total, shown=shown)

    @property
    def alone(self) -> KernelSequence:
        """The kernels that count."""
        if self.own is None:
            return self
        columns = {name: getattr(self, name)[self.own] for name in ("places", "ns", "stream", "shape")}
        return replace(self, **columns, own=None)

    def total_ns(self, name: str = "all", chosen: Mask | None = None) -> int:
        """Return the ns of all chosen kernels of the capture; `name` is unique among the sums of a device."""
        ns = self.ns if chosen is None else np.where(chosen, self.ns, 0)
        whole: int = self.total(f"{name} ns", int((ns if self.own is None else ns[self.own]).sum()))
        return whole

    def total_count(self, name: str, chosen: Mask) -> int:
        """Return the number of all chosen kernels of the capture; `name` is unique among the sums of a device."""
        count = int(np.count_nonzero(chosen if self.own is None else chosen[self.own]))
        whole: int = self.total(f"{name} count", count)
        return whole

    def total_blocks(self, name: str, chosen: Mask) -> dict[float, int]:
        """Return the numbers of all chosen kernels of the capture by their numbers of blocks, in ascending order."""
        shapes = self.shape[chosen] if self.own is None else self.shape[self.own][chosen[self.own]]
        blocks, counts = np.unique(self.blocks[shapes], return_counts=True)
        every = self.total(f"{name} blocks", dict(zip(map(str, blocks.tolist()), counts.tolist(), strict=True)))
        return dict(sorted((float(number), count) for number, count in every.items()))

    def shown_part(self, name: str, chosen: Mask | Times) -> tuple[int, str]:
        """Return the number of chosen kernels of the capture and their part of its kernel time, as "25.1%", for a text.

        `chosen` is a mask or ascending indices, and `name` is unique among the texts of a device.
        """
        ns, own = self.ns, self.own
        if own is not None and chosen.dtype == np.bool_:
            ns, chosen = ns[own], chosen[own]
        elif own is not None:
            chosen = chosen[slice(*np.searchsorted(chosen, (own.start, own.stop)).tolist())]
        count = np.count_nonzero(chosen) if chosen.dtype == np.bool_ else len(chosen)
        figures = self.shown(f"{name} of kernels", {"count": int(count), "ns": int(ns[chosen].sum())})
        return figures["count"], share(figures["ns"], max(self.total_ns(), 1))

    def where(self, chosen: Callable[[KernelKind], bool]) -> Mask:
        """Return the kernels whose kind is chosen."""
        return self._select([chosen(kind) for kind in self.kinds])

    def in_families(self, *families: str) -> Mask:
        """Return the kernels of these families."""
        return self.where(lambda kind: kind.family in families)

    def matches(self, pattern: str) -> Mask:
        """Return the kernels whose full name contains a match of a regular expression."""
        expression = re.compile(pattern)
        return self._select([bool(expression.search(name)) for name in self.full_names])

    def _select(self, shapes: list[bool]) -> Mask:
        """Return the kernels whose shape is chosen; without a look at each kernel where none is."""
        return np.array(shapes, np.bool_).take(self.shape) if any(shapes) else np.zeros(len(self.shape), np.bool_)

    def runs(self, members: Mask) -> tuple[Times, Times]:
        """Return the first and one past the last index of each run of members that follow each other on a stream."""
        breaks = np.flatnonzero(np.diff(self.stream)) + 1
        edges = np.diff(np.concatenate([[False], members, [False]]).astype(np.int8))
        first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        inner = breaks[members[breaks] & members[breaks - 1]]
        return np.sort(np.concatenate([first, inner])), np.sort(np.concatenate([last, inner]))


@frozen
class Estimate:
    """What a change leaves of the time of the kernels `rows`, as fractions: at best, expected and at worst.

    `rows` are ascending indices; the other kernels keep their time. `gone` marks those of `rows` that are not launched
    any more. `detail` states the evidence.
    """

    rows: Times
    low: Factors
    middle: Factors
    high: Factors
    gone: Mask
    detail: str

    def inside(self, rows: slice | None) -> Estimate:
        """Return the part of the estimate on some of the kernels."""
        if rows is None:
            return self
        first, last = np.searchsorted(self.rows, (rows.start, rows.stop)).tolist()
        part = {name: getattr(self, name)[first:last] for name in ("rows", "low", "middle", "high", "gone")}
        return replace(self, **part)

    @property
    def factors(self) -> tuple[Factors, Factors, Factors]:
        """The fractions from the best to the worst case."""
        return self.low, self.middle, self.high


@frozen
class Speedup:
    """A change to the compute. `estimate` returns what it leaves, or the reason why it does not apply."""

    name: str
    title: str
    rests_on: str
    estimate: Callable[[KernelSequence], Estimate | str]


def grouped(
    kernels: KernelSequence, groups: Sequence[tuple[Mask, Range]], detail: str, gone: Mask | None = None
) -> Estimate:
    """Return an estimate that scales groups of kernels, and leaves the others. A kernel takes the last of its groups.

    A kernel that stays is launched, so it keeps at least a few µs (SHORTEST).
    """
    rows = np.flatnonzero(np.logical_or.reduce([chosen for chosen, _ in groups]))
    left = np.ones((3, len(rows)))
    for chosen, factors in groups:
        left[:, chosen[rows]] = np.array(factors)[:, None]
    not_launched = np.zeros(len(rows), np.bool_) if gone is None else gone[rows]
    least = np.minimum(np.array(SHORTEST)[:, None] / np.maximum(kernels.ns[rows], 1), 1.0)
    low, middle, high = np.where((left < 1) & ~not_launched, np.maximum(left, least), left)
    return Estimate(rows, low, middle, high, not_launched, detail)


def marked(first: Times, last: Times, count: int) -> Mask:
    """Return a mask of `count` kernels that is true inside the runs [first, last)."""
    depth = np.zeros(count + 1, np.int32)
    np.add.at(depth, first, 1)
    np.add.at(depth, last, -1)
    mask: Mask = np.cumsum(depth, out=depth)[:-1] > 0
    return mask


def per_run(values: NDArray[np.generic], first: Times, last: Times, combine: np.ufunc) -> NDArray[np.int64]:
    """Return `combine` over the values of each of the disjoint ascending runs [first, last)."""
    if len(first) == 0:
        return np.zeros(0, np.int64)
    padded = np.append(values.astype(np.int64), 0)
    combined: NDArray[np.int64] = combine.reduceat(padded, np.stack([first, last], axis=1).ravel())[::2]
    return combined
