"""The price of overlap: how much longer kernels take beside communication or copies (docs/definitions.md).

Kernels are compared with instances of the same work that run alone: those with the same launch shape between the same
neighbours on their stream, else those with the same launch shape.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times, row_hashes
from traceview.measure.activity import COMPUTE, Activity, Copies
from traceview.measure.kernels.families import shape_kinds
from traceview.measure.shared_work import once_per_frame
from traceview.model.rows import Contention
from traceview.model.trace import KINDS, Trace, Window

MIN_INSTANCES = 8  # alone, and beside other work; the median of fewer varies too much
BESIDE = 0.9  # share of its length from which a kernel runs beside other work
ENGINE_KINDS = [KINDS.index(kind) for kind in ("h2d", "d2h", "p2p")]  # the SMs do the copies on a device
# If the quartiles of instances alone differ by a larger factor, the instances do different work: launch shapes do not
# show the K of a product.
MAX_SPREAD = 1.25
DRAWS, SEED = 400, 0  # bootstrap
MAX_ROWS = 50
MOST = 1 << 15  # kernels that are compared; if there are more, the middle ones are
COMMUNICATION, COPIES = "communication", "copies"


class _Kernels(NamedTuple):
    """The kernels of a device, in the order of starts: shape, length and a hash of the shapes around each."""

    start: Times
    end: Times
    shape: NDArray[np.uint32]
    place: NDArray[np.uint64]


def contention(trace: Trace, work: Activity) -> tuple[Contention, ...]:
    """Return a row for each kernel that runs beside communication or copies, and alone, the costliest first.

    The first row of each kind of work is the sum of all kernels.
    """
    known = _known_prices(trace.operations)
    if (work.device, work.window) not in known:
        known[work.device, work.window] = _contention(trace, work)
    return known[work.device, work.window]


@once_per_frame
def _known_prices(_operations: pl.DataFrame) -> dict[tuple[int, Window], tuple[Contention, ...]]:
    return {}


def _contention(trace: Trace, work: Activity) -> tuple[Contention, ...]:
    chosen = np.flatnonzero(work.codes == COMPUTE)
    first = max(len(chosen) - MOST, 0) // 2
    chosen = chosen[first : first + MOST]
    copies = Copies.from_activity(trace, work)
    members = copies.members[np.isin(copies.kind, ENGINE_KINDS)]
    copying = intervals.union(work.start[members], work.end[members], ordered=True)
    others = {COMMUNICATION: work.communication, COPIES: copying}
    if not any(len(times.start) for times in others.values()):
        return ()
    kernels = _kernels(trace, work, chosen)
    busy = intervals.union(*map(np.concatenate, zip(*others.values(), strict=True)))
    is_alone = np.ones(len(kernels.start), np.bool_)
    is_alone[Coverage.from_union(busy).overlapping_rows(kernels.start, kernels.end)] = False
    labels = shape_kinds(trace.shapes)["label"]
    rows: list[Contention] = []
    for name, times in others.items():
        near = intervals.clip(times, int(kernels.start[0]), int(kernels.end[-1])) if len(chosen) else times
        scale = intervals.overlap_length(times, work.compute) / max(intervals.overlap_length(near, work.compute), 1)
        rows += _priced(name, kernels, is_alone, _beside(kernels, times), labels, max(scale, 1.0))
    return tuple(rows)


def _kernels(trace: Trace, work: Activity, chosen: Times) -> _Kernels:
    """Return some of the work; the place of a kernel is what runs twice before and after it on its stream."""
    shape, stream = (trace.operations[name].to_numpy()[work.rows[chosen]] for name in ("shape", "stream"))
    order = np.argsort(stream, kind="stable")
    ordered, lane = shape[order].astype(np.int64), stream[order].astype(np.int64)
    around = [lane, *(np.roll(ordered, step) for step in (-2, -1, 0, 1, 2))]
    place = np.empty(len(chosen), np.uint64)
    place[order] = row_hashes(around)
    return _Kernels(work.start[chosen], work.end[chosen], shape, place)


def _beside(kernels: _Kernels, times: Intervals) -> NDArray[np.bool_]:
    coverage = Coverage.from_union(times)
    rows = coverage.overlapping_rows(kernels.start, kernels.end)
    inside = coverage.length_between(kernels.start[rows], kernels.end[rows])
    beside = np.zeros(len(kernels.start), np.bool_)
    beside[rows] = inside >= BESIDE * (kernels.end - kernels.start)[rows]
    return beside


def _priced(
    name: str,
    kernels: _Kernels,
    is_alone: NDArray[np.bool_],
    is_beside: NDArray[np.bool_],
    labels: pl.Series,
    scale: float,
) -> list[Contention]:
    """Return the rows of one kind of work: the sum, then the costliest kernels. Prices are multiplied by `scale`."""
    counts = (np.bincount(kernels.shape[chosen], minlength=len(labels)) for chosen in (is_alone, is_beside))
    enough = np.minimum(*counts) >= MIN_INSTANCES  # by shape; a place has no more
    some = np.flatnonzero(enough[kernels.shape] & (is_alone | is_beside))
    if not len(some):
        return []
    frame = pl.DataFrame(
        {
            "shape": kernels.shape[some],
            "place": kernels.place[some],
            "ns": (kernels.end - kernels.start)[some],
            "beside": is_beside[some],
        }
    )
    by_place = _groups(frame, ["shape", "place"])
    rest = frame.join(by_place.select("shape", "place"), on=["shape", "place"], how="anti")
    rest = pl.concat([rest.filter("beside"), frame.filter(~pl.col("beside"))])
    by_shape = _groups(rest, ["shape"]).filter(pl.col("upper") <= MAX_SPREAD * pl.col("lower"))
    groups = pl.concat([by_place.drop("place"), by_shape], how="diagonal")
    if groups.is_empty():
        return []
    draws = _draws(groups) * scale
    cost = (groups["sum"] - groups["median"] * groups["count"]).to_numpy() * scale
    exact = np.arange(len(groups)) < len(by_place)
    low, high = np.percentile(draws, (2.5, 97.5), axis=0)
    rows = [
        Contention(
            beside=name,
            kernel=labels[row["shape"]],
            by="place" if is_exact else "shape",
            count=row["count"],
            alone_count=row["alone"],
            mean_ns=round(row["sum"] / row["count"]),
            alone_median_ns=round(row["median"]),
            contention_ns=round(ns),
            low_ns=round(least),
            high_ns=round(most),
        )
        for row, is_exact, ns, least, most in zip(groups.iter_rows(named=True), exact, cost, low, high, strict=True)
    ]
    least, most = np.percentile(draws.sum(axis=1), (2.5, 97.5))
    total = Contention(
        beside=name,
        kernel="(all kernels)",
        by="place" if exact.all() else "shape",
        count=int(groups["count"].sum()),
        alone_count=int(groups["alone"].sum()),
        mean_ns=None,
        alone_median_ns=None,
        contention_ns=round(cost.sum()),
        low_ns=round(least),
        high_ns=round(most),
    )
    return [total, *sorted(rows, key=lambda row: -row.contention_ns)[:MAX_ROWS]]


def _groups(frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the groups with enough instances, alone and beside."""
    ns, beside = pl.col("ns"), pl.col("beside")
    alone = ns.filter(~beside)
    return (
        frame.group_by(keys)
        .agg(
            count=beside.sum().cast(pl.Int64),
            alone=(~beside).sum().cast(pl.Int64),
            sum=ns.filter(beside).sum(),
            spread=ns.filter(beside).std(),
            median=alone.median(),
            lower=alone.quantile(0.25),
            upper=alone.quantile(0.75),
            lengths=alone.sort(),
        )
        .filter(pl.col("count") >= MIN_INSTANCES, pl.col("alone") >= MIN_INSTANCES)
        .sort("sum", "count", "alone", "median")  # draws depend on the order of the groups
    )


def _draws(groups: pl.DataFrame) -> NDArray[np.float64]:
    """Return bootstrap draws of the cost of each group; shape (DRAWS, groups).

    The rank of the median of a resample has a beta distribution; the sum of a resample is normal, because it has at
    least MIN_INSTANCES terms.
    """
    random = np.random.default_rng(SEED)
    count, alone = (groups[name].to_numpy() for name in ("count", "alone"))
    half = (alone + 1) / 2
    rank = np.minimum((random.beta(half, half, (DRAWS, len(groups))) * alone).astype(np.int64), alone - 1)
    lengths = groups["lengths"].explode().to_numpy()
    medians = lengths[rank + np.cumsum(alone) - alone]
    sums = groups["sum"].to_numpy() + random.normal(size=rank.shape) * groups["spread"].to_numpy() * np.sqrt(count)
    draws: NDArray[np.float64] = sums - medians * count
    return draws
