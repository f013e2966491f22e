"""How fast a GPU computes matrix products, convolutions and attention of each shape.

The shapes are those of PyTorch's ops, which torch.profiler records with record_shapes=True (docs/definitions.md
"Efficiency by shape").
"""

from __future__ import annotations

from typing import Any

import polars as pl

from traceview.measure.base import DeviceInput, Measure
from traceview.measure.kernels import DIGITS, costliest, rounded_share
from traceview.measure.rates import GIGA, matrix_kinds
from traceview.model.columns import Table, partial_row
from traceview.model.peaks import memory_rate, peak_flops
from traceview.model.rows import MatrixShape

KEYS = ("op", "shape", "precision", "tensor_core")
MAX_SHAPES = 100
# Types of inputs that have one peak. The products of fp32 inputs may be TF32, and only the kernel's name says so.
CLEAR_TYPES = ("bf16", "fp16", "fp8", "fp64")
ABOVE_PEAK = "above the peak: the shape is not what this GPU computes, such as that of a tensor distributed over GPUs"
ABOVE_MEMORY = "above the rate of the memory: what is read comes from a cache"


def _sums(given: DeviceInput) -> pl.DataFrame:
    """Return KEYS with the calls, the ns of all their kernels, their FLOPs and bytes.

    A call counts where its first kernel is. A kernel that the window cuts has a share of its call's FLOPs and bytes.
    """
    sized, work = given.trace.sizes.flops, given.activity
    whole = given.trace.operations.select((pl.col("end") - pl.col("start")).alias("ns"), "shape")[sized["operation"]]
    kernels = pl.concat([sized, whole.select("ns"), matrix_kinds(given.trace.shapes)[whole["shape"]]], how="horizontal")
    longest = pl.col("ns").filter("matrix").arg_max()
    calls = kernels.group_by("call").agg(
        pl.col("operation").min().alias("first"),
        pl.col("ns").sum().alias("call_ns"),
        pl.col("precision", "tensor_core").filter("matrix").get(longest, null_on_oob=True),
    )
    inside = pl.DataFrame({"operation": work.rows, "part_ns": work.end - work.start})
    own = inside.with_columns(pl.col("operation").cast(pl.Int32)).join(sized, on="operation").join(calls, on="call")
    fraction = pl.col("part_ns") / pl.col("call_ns")
    return (
        own.filter(pl.col("call_ns") > 0)
        .group_by(KEYS)
        .agg(
            (pl.col("operation") == pl.col("first")).sum().cast(pl.Int64).alias("count"),
            pl.col("part_ns").sum().alias("total_ns"),
            (pl.col("flops") * fraction).sum(),
            (pl.col("bytes") * fraction).sum(),
        )
    )


def matrix_shapes(given: DeviceInput) -> tuple[MatrixShape, ...]:
    """Return one row for each op, shape and precision, the costliest first; the last stands for those beyond 100."""
    if given.trace.sizes.flops.is_empty():
        return ()
    sums, gpu = _sums(given), str(given.trace.devices["name"][given.activity.device])
    total = int(sums["total_ns"].sum())
    first, rest = costliest(sums, KEYS, MAX_SHAPES)
    rows = [_matrix_shape(row, total, gpu) for row in first.iter_rows(named=True)]
    if len(rest):
        count, ns = rest.select(pl.col("count", "total_ns").sum()).row(0)
        share = rounded_share(ns, total)
        rows.append(partial_row(MatrixShape, op=f"({len(rest)} others)", count=count, total_ns=ns, share=share))
    return tuple(rows)


def _matrix_shape(row: dict[str, Any], total: int, gpu: str) -> MatrixShape:
    stated = row["shape"].rpartition(" ")[2]
    precision = row["precision"] or (stated if stated in CLEAR_TYPES else None)
    peak = precision and peak_flops(gpu, precision, tensor_core=row["tensor_core"] is not False)
    flops, size, ns = round(row["flops"]), round(row["bytes"]) or None, row["total_ns"]
    rate, memory = round(flops * GIGA / ns) if ns else None, memory_rate(gpu)
    of_peak = round(rate / peak, DIGITS) if rate and peak else None
    of_memory = round(size / ns / memory, DIGITS) if size and ns and memory else None
    notes = (ABOVE_PEAK, (of_peak or 0) > 1), (ABOVE_MEMORY, (of_memory or 0) > 1)
    return MatrixShape(
        op=row["op"],
        shape=row["shape"],
        precision=precision,
        count=row["count"],
        total_ns=ns,
        share=rounded_share(ns, total),
        flops=flops,
        bytes=size,
        flops_per_s=rate,
        of_peak=of_peak,
        of_memory_rate=of_memory,
        note="; ".join(text for text, applies in notes if applies),
    )


MATRIX_SHAPES = Measure(
    Table(
        name="matrix_shapes",
        title="Efficiency by shape",
        note="Matrix products, convolutions and attention, from the shapes of ops.",
        row_type=MatrixShape,
        shown=(
            *("op", "shape", "precision", "share", "count", "total_ns", "flops_per_s", "of_peak"),
            *("intensity", "bandwidth", "of_memory_rate", "note"),
        ),
    ),
    matrix_shapes,
)
