"""The two steps of a speedup: find the kernels that a change may affect, then decide what the change leaves of them.

The first step puts kernels into groups. The second step sees sums over each group, and returns the fractions of time
that the change leaves of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Positions, Rows, Times, adjoining, blocks, rows_where, runs
from traceview.measure.kernels.families import shape_kinds
from traceview.measure.shared_work import codes_of, once_per_frame
from traceview.model.catalogue import read_toml
from traceview.model.frozen import dataclass
from traceview.model.trace import CLASSES, SOURCES, Trace
from traceview.model.units import share

TEXTS = Path(__file__).with_name("texts.toml")
Mask = NDArray[np.bool_]
Factors = NDArray[np.float64]
COMPUTE, KERNEL = CLASSES.index("compute"), SOURCES.index("kernel")
# Families that a compiler fuses with their neighbours: each of their kernels reads and writes its tensors once.
FUSIBLE = ("elementwise", "copy", "random", "reduction", "normalization", "softmax", "layout", "indexing", "pooling")
ODD_PRODUCT = "align[12](_|>|$)"  # in names of products with a dimension that is odd or only a multiple of 2


class LaunchShapes:
    """The rows of Trace.shapes as changes look at them: `kinds` has the fields of KernelKind and `demangled`.

    `blocks` is the number of blocks, NaN if it is unknown, and `is_flat` holds for a grid without a third dimension.
    """

    def __init__(self, kinds: pl.DataFrame, blocks: Factors, is_flat: Mask) -> None:
        self.kinds, self.blocks, self.is_flat = kinds, blocks, is_flat
        self._masks: dict[int, tuple[pl.Expr, Mask]] = {}

    def where(self, chosen: pl.Expr) -> Mask:
        """Return which rows are chosen. The answer is kept, because each GPU asks for the same constant expression."""
        if id(chosen) not in self._masks:
            mask = self.kinds.select(chosen.fill_null(value=False)).to_series().to_numpy()
            self._masks[id(chosen)] = chosen, mask
        return self._masks[id(chosen)][1]


@once_per_frame
def launch_shapes(shapes: pl.DataFrame) -> LaunchShapes:
    """Return what changes ask about Trace.shapes."""
    blocks = shapes.select(pl.col("grid_x") * pl.col("grid_y") * pl.col("grid_z"))["grid_x"]
    return LaunchShapes(
        shape_kinds(shapes).with_columns(shapes["demangled"].fill_null("")),
        blocks.cast(pl.Float64).fill_null(np.nan).to_numpy(),
        (shapes["grid_z"] == 1).fill_null(value=False).to_numpy(),
    )


@cache
def _of_families(*families: str) -> pl.Expr:
    return pl.col("family").is_in(families)


@cache
def _named(pattern: str) -> pl.Expr:
    return pl.col("demangled").str.contains(pattern)


class KernelSequence(NamedTuple):
    """The compute kernels of one device in the order of their starts, with their kinds.

    `places` are their positions in the rows that they were collected from. `shape` indexes `shapes`. `sms` is 0 if
    unknown.
    """

    places: Rows
    ns: Times
    stream: NDArray[np.int16]
    shape: Positions
    shapes: LaunchShapes
    sms: int
    gpu: str

    @classmethod
    def from_rows(cls, trace: Trace, device: int, rows: Rows | Times) -> KernelSequence:
        """Collect the compute kernels among `rows` of Trace.operations, which all run on one device."""
        chosen, operations = adjoining(rows), trace.operations
        kind, source = (codes_of(operations, name)[chosen] for name in ("class", "source"))
        places = rows_where((kind == COMPUTE) & (source == KERNEL))
        chosen = chosen if len(places) == len(rows) else rows[places]
        start, end, stream, shape = (
            operations[name].to_numpy()[chosen] for name in ("start", "end", "stream", "shape")
        )
        gpu = trace.devices.row(device, named=True)
        return cls(
            places=places,
            ns=end - start,
            stream=stream,
            shape=shape.astype(np.intp),  # another type is converted at each use
            shapes=launch_shapes(trace.shapes),
            sms=gpu["sm_count"] or 0,
            gpu=gpu["name"],
        )

    def one_of_each_shape(self) -> KernelSequence:
        """Return a sequence with one kernel of each row of Trace.shapes."""
        return self._replace(shape=np.arange(len(self.shapes.blocks)))

    def where(self, chosen: pl.Expr) -> Mask:
        """Return the kernels whose launch shape is chosen; without a look at each kernel where none is."""
        shapes = self.shapes.where(chosen)
        return shapes.take(self.shape) if shapes.any() else np.zeros(len(self.shape), np.bool_)

    def in_families(self, *families: str) -> Mask:
        """Return the kernels of these families."""
        return self.where(_of_families(*families))

    def matches(self, pattern: str) -> Mask:
        """Return the kernels whose full name contains a match of a regular expression."""
        return self.where(_named(pattern))

    def runs(self, members: Mask) -> tuple[Times, Times]:
        """Return the first and one past the last index of each run of members that follow each other on a stream."""
        breaks = np.flatnonzero(self.stream[1:] != self.stream[:-1]) + 1
        first, last = runs(members)
        inner = breaks[members[breaks] & members[breaks - 1]]
        if len(inner) == 0:
            return first, last
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
    edges = np.stack([first, last], axis=1).ravel()
    within = edges[: len(edges) - int(last[-1] == len(values))]
    combined: NDArray[np.int64] = combine.reduceat(values, within, dtype=np.int64)[::2]
    return combined


Range = tuple[float, float, float]  # a fraction of a time: at best, expected and at worst
SHORTEST = (1_500, 2_500, 4_000)  # ns of a matrix kernel of a few blocks on an H200


class Members(NamedTuple):
    """The kernels of a sequence that a change may affect, as masks by group; a kernel can be in several groups.

    `left` has the fractions that the change leaves of each member (columns) from the best to the worst case (rows), if
    the kernels nearby determine them. Without it, Speedup.decide returns fractions by group.
    """

    groups: Mapping[str, Mask]
    left: Factors | None = None


class Savings(NamedTuple):
    """The ns that a change saves, negative if kernels become slower; `gross` is expected of those that become faster.

    The saving of each kernel is rounded.
    """

    least: int
    expected: int
    most: int
    gross: int


class Totals(NamedTuple):
    """Sums over the kernels that a change may affect, for Speedup.decide.

    `numbers` and `ns` are by label, which has a bit for each group. `kernel_ns` is the time of all kernels of the
    device.
    """

    candidates: Candidates
    groups: Sequence[str]
    numbers: Mapping[int, int]
    lengths: Mapping[int, int]

    @property
    def kernel_ns(self) -> int:
        """The time of all kernels of the device, in ns."""
        return int(self.candidates.kernels.ns.sum())

    @property
    def gpu(self) -> str:
        """The name of the device."""
        return self.candidates.kernels.gpu

    def count(self, *groups: str) -> int:
        """Return the number of kernels in at least one of these groups; by default in any group."""
        return self._sum(self.numbers, groups)

    def ns(self, *groups: str) -> int:
        """Return the ns of the kernels in at least one of these groups."""
        return self._sum(self.lengths, groups)

    def share(self, *groups: str) -> str:
        """Return the share of these groups in the kernel time, as "25.1%"."""
        return share(self.ns(*groups), max(self.kernel_ns, 1))

    def detail(self, what: str, *groups: str) -> str:
        """Return how many kernels of these groups take which share of the kernel time, as a sentence."""
        return f"{self.count(*groups):,} {what} take {self.share(*groups)} of the kernel time"

    def blocks(self, group: str) -> Mapping[int, int]:
        """Return the numbers of kernels of a group by their numbers of blocks, ascending."""
        kernels, rows, labels, _ = self.candidates
        members = rows[(labels & (1 << self.groups.index(group))) > 0]
        each = kernels.shapes.blocks[kernels.shape[members]]
        values, counts = np.unique(each[~np.isnan(each)].astype(np.int64), return_counts=True)
        return dict(zip(values.tolist(), counts.tolist(), strict=True))

    def _sum(self, by_label: Mapping[int, int], groups: Sequence[str]) -> int:
        bits = sum(1 << self.groups.index(group) for group in groups or self.groups)
        return sum(value for label, value in by_label.items() if label & bits)


@dataclass(frozen=True, slots=True)
class SpeedupDecision:
    """What a change leaves of the kernels of each group; a kernel takes the last of its groups in Speedup.groups.

    Kernels outside these groups keep their time. A change with Members.left needs no groups. `detail` states the
    evidence.
    """

    detail: str
    left: Mapping[str, Range] = field(default_factory=dict)


class Candidates(NamedTuple):
    """The kernels that a change may affect: `rows` are ascending indices into a KernelSequence.

    `labels` has a bit for each group that a kernel is in. `left` are their own fractions, or None (see Members).
    """

    kernels: KernelSequence
    rows: Rows
    labels: NDArray[np.uint16]
    left: Factors | None

    @property
    def ns(self) -> Times:
        """The length of each kernel."""
        return self.kernels.ns[self.rows]


class Estimate(NamedTuple):
    """What a change leaves of the time of the kernels `rows`, as fractions: at best, expected and at worst.

    `rows` are ascending indices; the other kernels keep their time. `gone` marks those of `rows` that are not launched
    any more. `detail` states the evidence. `groups` are those with a kernel that the change may affect.
    """

    rows: Rows
    low: Factors
    middle: Factors
    high: Factors
    gone: Mask
    detail: str
    groups: frozenset[str] = frozenset()

    @property
    def factors(self) -> tuple[Factors, Factors, Factors]:
        """The fractions from the best to the worst case."""
        return self.low, self.middle, self.high

    def savings(self, kernels: KernelSequence) -> Savings:
        """Return what the change saves of the kernels that it was estimated for."""
        ns, sums = kernels.ns[self.rows], np.zeros(4, np.int64)
        for block in blocks(len(ns)):
            saved = np.rint(ns[block] * (1 - np.stack([each[block] for each in self.factors]))).astype(np.int64)
            sums += (*saved.sum(axis=1), np.maximum(saved[1], 0).sum())
        most, expected, least, gross = sums.tolist()
        return Savings(least, expected, most, gross)


class Speedup(NamedTuple):
    """A change to the compute.

    `collect` puts kernels into `groups`. `decide` returns what the change leaves of them, or the reason why it does not
    apply. Kernels of the groups `gone` are not launched any more. Where a kernel's groups depend on its shape alone,
    `of_shapes`, `collect` sees one kernel of each. texts.toml has the texts of the change, and the kinds of programs
    that it fits.
    """

    name: str
    groups: tuple[str, ...]
    collect: Callable[[KernelSequence], Members]
    decide: Callable[[Totals], SpeedupDecision | str]
    gone: tuple[str, ...] = ()
    of_shapes: bool = False

    @property
    def title(self) -> str:
        """What the change is."""
        return str(read_toml(TEXTS)[self.name]["title"])

    @property
    def rests_on(self) -> str:
        """The conditions of its gain."""
        return str(read_toml(TEXTS)[self.name]["rests_on"])

    @property
    def programs(self) -> tuple[str, ...]:
        """The kinds of programs that it fits; none for all."""
        return tuple(read_toml(TEXTS)[self.name].get("programs", ()))

    @property
    def effort(self) -> str:
        """What it takes to make: one of EFFORTS of replay/changes/base.py."""
        return str(read_toml(TEXTS)[self.name]["effort"])

    def candidates(self, kernels: KernelSequence) -> Candidates:
        """Return the kernels that the change may affect."""
        members = self.collect(kernels.one_of_each_shape() if self.of_shapes else kernels)
        masks = {group: mask for group, mask in members.groups.items() if mask.any()}
        if not masks:
            return Candidates(kernels, rows_where(np.zeros(0, np.bool_)), np.zeros(0, np.uint16), members.left)
        labels = np.zeros(len(next(iter(masks.values()))), np.uint16)
        for group, mask in masks.items():
            labels |= np.multiply(mask, self.bit(group), dtype=np.uint16)
        labels = labels.take(kernels.shape) if self.of_shapes else labels
        rows = rows_where(labels > 0)
        return Candidates(kernels, rows, labels[rows], members.left)

    def _ranges(self, decision: SpeedupDecision, labels: Collection[int]) -> dict[int, Range]:
        """Return what the change leaves of the kernels with each label, if it affects them."""
        ranges = {}
        for label in labels:
            groups = (group for group in reversed(self.groups) if label & self.bit(group) and group in decision.left)
            if group := next(groups, None):
                ranges[label] = decision.left[group]
        return ranges

    def fractions(self, left: Range, ns: Times, label: int) -> Factors:
        """Return what is left of kernels of one label by case: one that is still launched keeps at least a few µs."""
        fractions = np.repeat(np.array(left)[:, None], len(ns), axis=1)
        if not label & self.gone_bits:
            for case, share, shortest in zip(fractions, left, SHORTEST, strict=True):
                if share < 1:
                    np.maximum(case, np.minimum(shortest / np.maximum(ns, 1), 1.0), out=case)
        return fractions

    def estimate(self, kernels: KernelSequence) -> Estimate | str:
        """Return what the change leaves of a sequence, or the reason why it does not apply."""
        candidates = self.candidates(kernels)
        rows, labels, left = candidates.rows, candidates.labels, candidates.left
        ns, numbers, lengths = candidates.ns, *np.zeros((2, 1 << len(self.groups)), np.int64)
        np.add.at(numbers, labels, 1)
        np.add.at(lengths, labels, ns)
        used = np.flatnonzero(numbers).tolist()
        counts, sums = ({label: int(each[label]) for label in used} for each in (numbers, lengths))
        decision = self.decide(Totals(candidates, self.groups, counts, sums))
        if isinstance(decision, str):
            return decision
        if left is None:
            ranges, left = self._ranges(decision, used), np.ones((3, len(rows)))
            for label, each in ranges.items():
                chosen = labels == label if len(used) > 1 else slice(None)
                left[:, chosen] = self.fractions(each, ns[chosen], label)
            if len(ranges) < len(used):
                affected = np.isin(labels, list(ranges))
                rows, labels, left = rows[affected], labels[affected], left[:, affected]
        groups = frozenset(group for group in self.groups if any(label & self.bit(group) for label in used))
        low, middle, high = left
        return Estimate(rows, low, middle, high, (labels & self.gone_bits) > 0, decision.detail, groups)

    def bit(self, group: str) -> int:
        """Return the bit of a group in labels."""
        return 1 << self.groups.index(group)

    @property
    def gone_bits(self) -> int:
        """The bits in labels of kernels that are not launched any more."""
        return sum(map(self.bit, self.gone))
