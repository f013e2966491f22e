"""Matrix kernels by precision, with their floating-point operations (docs/definitions.md "Speed of light")."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.measure.base import PartInput, PartMeasure
from traceview.measure.kernels import DIGITS, PartKernels
from traceview.measure.kernels.families import kernel_kind
from traceview.model.columns import Table
from traceview.model.peaks import peak_flops
from traceview.model.rates import MatrixPrecision
from traceview.model.trace import Trace

MATRIX = ("gemm", "convolution", "attention")
KEYS = ("precision", "tensor_core")


def matrix_precisions(given: PartInput) -> tuple[MatrixPrecision, ...]:
    """Return one row for each precision of the device's matrix kernels, the costliest first."""
    trace, kernels = given.trace, PartKernels.from_part(given)
    kinds = _matrix_kinds(trace)
    if not kinds["matrix"].any():
        return ()
    chosen = np.flatnonzero(kinds["matrix"].to_numpy()[kernels.shape])
    shape, ns = kernels.shape[chosen], (kernels.end - kernels.start)[chosen]
    rows = given.activity.rows[kernels.rows[chosen]]
    flops = _flops_of_kernels(trace, kinds["matrix"].to_numpy(), rows, ns)
    frame = pl.DataFrame({"shape": shape, "ns": ns, "flops": flops})
    known = pl.col("flops") > 0
    by_shape = frame.group_by("shape").agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("ns").sum().alias("total_ns"),
        pl.col("flops").sum(),
        pl.col("ns").filter(known).sum().alias("known_ns"),
    )
    total = int(ns.sum())
    sums = (
        by_shape.join(kinds.with_row_index("shape"), on="shape")
        .group_by(KEYS)
        .agg(pl.col("count", "total_ns", "flops", "known_ns").sum())
    )
    gpu = str(trace.devices["name"][given.activity.device])
    return tuple(
        MatrixPrecision(
            precision=row["precision"],
            tensor_core=row["tensor_core"],
            count=row["count"],
            total_ns=row["total_ns"],
            share=round(row["total_ns"] / total, DIGITS) if total else 0.0,
            flops=round(row["flops"]) if row["flops"] else None,
            known_ns=row["known_ns"],
            peak_flops_per_s=_peak(gpu, row["precision"], row["tensor_core"]),
        )
        for row in sums.sort(["total_ns", *KEYS], descending=[True, False, False]).iter_rows(named=True)
    )


def _peak(gpu: str, precision: str | None, tensor_core: bool | None) -> int | None:
    return None if precision is None else peak_flops(gpu, precision, tensor_core=tensor_core is not False)


def _matrix_kinds(trace: Trace) -> pl.DataFrame:
    """Return for each of Trace.shapes whether it is a matrix kernel, its precision and its use of tensor cores."""
    names = trace.shapes.select(pl.col("name", "demangled").fill_null("")).iter_rows()
    kinds = [
        (kind.family in MATRIX, kind.precision, kind.tensor_core) for kind in (kernel_kind(*pair) for pair in names)
    ]
    schema = {"matrix": pl.Boolean, "precision": pl.String, "tensor_core": pl.Boolean}
    return pl.DataFrame(kinds, schema=schema, orient="row")


def _flops_of_kernels(
    trace: Trace, is_matrix: NDArray[np.bool_], rows: NDArray[np.int64], ns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the operations of kernels, which are `rows` of Trace.operations of which a part of `ns` counts.

    The longest matrix kernel of a call does its operations: others prepare its inputs or add its parts up.
    """
    flops = np.zeros(len(rows), np.float64)
    sized = trace.sizes.flops
    if sized.is_empty():
        return flops
    work = trace.operations.select(pl.col("end") - pl.col("start"), "shape")[sized["operation"]]
    lengths = sized.with_columns(work["end"].alias("ns"), pl.Series("matrix", is_matrix[work["shape"].to_numpy()]))
    longest = (
        lengths.filter(pl.col("matrix"), pl.col("ns") > 0).sort("ns", descending=True).unique("call", keep="first")
    )
    whole = np.zeros(len(trace.operations), np.float64)
    whole[longest["operation"].to_numpy()] = (longest["flops"] / longest["ns"]).to_numpy()
    flops[:] = whole[rows] * ns
    return flops


MATRIX_PRECISIONS = PartMeasure(
    Table(
        name="matrix_precisions",
        title="Matrix kernels by precision",
        note="Matrix products, convolutions and attention.",
        row_type=MatrixPrecision,
        shown=("precision", "tensor_core", "share", "total_ns", "count", "flops_per_s", "of_peak", "peak_flops_per_s"),
    ),
    matrix_precisions,
)
