"""Matrix kernels by precision, with their floating-point operations (docs/definitions.md "Speed of light")."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.measure.base import PartContext, PartInput, PartMeasure
from traceview.measure.kernels import DIGITS, rounded_share
from traceview.measure.kernels.families import MATRIX, shape_kinds
from traceview.model.columns import Table
from traceview.model.peaks import peak_flops
from traceview.model.rows import MatrixPrecision
from traceview.model.trace import Trace

KEYS = ("precision", "tensor_core")
GIGA = 10**9
SUMS = ("count", "total_ns", "flops", "known_ns", "working_ns")


def _precision_totals(given: PartInput) -> pl.DataFrame:
    """Return KEYS and SUMS of the device's matrix kernels."""
    kinds = _matrix_kinds(given.trace)
    if not kinds["matrix"].any():
        return pl.DataFrame()
    by_shape = pl.concat([kinds, _sums_by_shape(given, kinds)], how="horizontal")
    return by_shape.filter(pl.col("matrix"), pl.col("count") > 0).group_by(KEYS).agg(pl.col(SUMS).sum())


def matrix_precisions(part: PartContext, sums: pl.DataFrame) -> tuple[MatrixPrecision, ...]:
    """Return one row for each precision of the device's matrix kernels, the costliest first."""
    if sums.is_empty():
        return ()
    total = int(sums["total_ns"].sum())
    gpu = str(part.trace.devices["name"][part.device])
    ordered = sums.sort(["total_ns", *KEYS], descending=[True, False, False])
    return tuple(_matrix_precision(row, total, gpu) for row in ordered.iter_rows(named=True))


def _matrix_precision(row: dict[str, Any], total: int, gpu: str) -> MatrixPrecision:
    peak = _peak(gpu, row["precision"], row["tensor_core"])
    rate = round(row["flops"] * GIGA / row["working_ns"]) if row["flops"] else None
    return MatrixPrecision(
        precision=row["precision"],
        tensor_core=row["tensor_core"],
        count=row["count"],
        total_ns=row["total_ns"],
        share=rounded_share(row["total_ns"], total),
        flops=round(row["flops"]) if row["flops"] else None,
        known_ns=row["known_ns"],
        peak_flops_per_s=peak,
        flops_per_s=rate,
        of_peak=round(rate / peak, DIGITS) if rate and peak else None,
    )


def _sums_by_shape(given: PartInput, kinds: pl.DataFrame) -> pl.DataFrame:
    """Return SUMS of the device's operations for each of Trace.shapes; `kinds` is the result of _matrix_kinds."""
    work, size = given.activity, len(kinds)
    sums: dict[str, NDArray[Any]] = {name: np.zeros(size) for name in SUMS}
    sums["count"], sums["total_ns"] = given.kernels.counts, given.kernels.total
    if not given.trace.sizes.flops.is_empty():
        shape, ns = work.select(given.trace.operations["shape"].to_numpy()), work.end - work.start
        all_rates, all_known = _flops_per_ns(given.trace, kinds)
        rates: NDArray[np.float64] = work.select(all_rates)
        sums["flops"] = np.bincount(shape, rates * ns, size)
        sums["working_ns"] = np.bincount(shape, np.where(rates > 0, ns, 0), size)
        sums["known_ns"] = np.bincount(shape, np.where(work.select(all_known), ns, 0), size)
    # A float holds the sums of lengths exactly: they are below 2**53 ns, which is 104 days.
    return pl.DataFrame(sums).with_columns(pl.exclude("flops").cast(pl.Int64))


def _peak(gpu: str, precision: str | None, tensor_core: bool | None) -> int | None:
    return None if precision is None else peak_flops(gpu, precision, tensor_core=tensor_core is not False)


def _matrix_kinds(trace: Trace) -> pl.DataFrame:
    """Return for each of Trace.shapes whether it is a matrix kernel, its precision and its use of tensor cores."""
    rows = [(kind.family in MATRIX, kind.precision, kind.tensor_core) for kind in shape_kinds(trace.shapes)]
    schema = {"matrix": pl.Boolean, "precision": pl.String, "tensor_core": pl.Boolean}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _flops_per_ns(trace: Trace, kinds: pl.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the operations per ns of each of Trace.operations, and which matrix kernels belong to a counted call.

    The kernels of a call that use tensor cores share its operations in proportion to their lengths. If none uses them,
    the kernels that are known not to use them share the operations. Other kernels of a call add up or prepare parts.
    """
    sized = trace.sizes.flops
    work = trace.operations.select((pl.col("end") - pl.col("start")).alias("ns"), "shape")[sized["operation"]]
    kind = kinds.select("matrix", pl.col("tensor_core").cast(pl.Int8).fill_null(-1).alias("unit"))[work["shape"]]
    members = pl.concat([sized, work.select("ns"), kind], how="horizontal").filter(pl.col("matrix"), pl.col("ns") > 0)
    shares = members.filter(pl.col("unit") == pl.col("unit").max().over("call"))
    rates, known = np.zeros(len(trace.operations)), np.zeros(len(trace.operations), np.bool_)
    rates[shares["operation"].to_numpy()] = shares.select(pl.col("flops") / pl.col("ns").sum().over("call"))["flops"]
    known[members["operation"].to_numpy()] = True
    return rates, known


MATRIX_PRECISIONS = PartMeasure(
    Table(
        name="matrix_precisions",
        title="Matrix kernels by precision",
        note="Matrix products, convolutions and attention.",
        row_type=MatrixPrecision,
        shown=("precision", "tensor_core", "share", "total_ns", "count", "flops_per_s", "of_peak", "peak_flops_per_s"),
    ),
    matrix_precisions,
    totals=_precision_totals,
    merge={"working_ns": "sum"},
)
