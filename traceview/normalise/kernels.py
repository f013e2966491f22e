"""The distinct launch shapes of kernels: name, grid, block, registers and shared memory."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.intervals import first_equal_rows, number_distinct, row_hashes
from traceview.model.trace import SHAPES
from traceview.normalise.codes import integers, texts_of
from traceview.normalise.order import Part
from traceview.read.raw import SHAPE, SHAPE_COLUMNS

NULL = -1
NO_KERNEL = 0  # the row of operations that are not kernels


def empty_shapes() -> pl.DataFrame:
    """Return model.SHAPES with the row of operations that are not kernels."""
    return pl.DataFrame({name: [None] for name in SHAPES}, schema=dict(SHAPES))


def kernel_shapes(
    table: pl.DataFrame, apart: pl.DataFrame | None, tables: dict[str, pl.DataFrame]
) -> tuple[pl.DataFrame, Part]:
    """Return model.SHAPES, and the row of each kernel's shape in it; `apart` is RawCapture.shapes.

    Kernels with equal 64-bit hashes of all columns have the same shape: a comparison of all columns would take three
    times as long.
    """
    if table.is_empty():
        return empty_shapes(), NO_KERNEL
    every = table if apart is None else apart
    present = every.select(name for name in SHAPE_COLUMNS if name in every.columns)
    first, shape = number_distinct(first_equal_rows(row_hashes([integers(column, NULL) for column in present])))
    rows = shape.astype(np.uint32) + np.uint32(NO_KERNEL + 1)
    shapes = pl.concat([empty_shapes(), _shapes_frame(present[first], tables)])
    return shapes, rows if apart is None else rows[table[SHAPE].to_numpy()]


def _shapes_frame(used: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    def numbers(name: str) -> pl.Series:
        return used[name] if name in used.columns else pl.Series(name, [None] * len(used), dtype=pl.Int64)

    name = texts_of(used["shortName"].fill_null(NULL), tables)
    has_full_name = "demangledName" in used.columns
    columns = {
        "name": name,
        "demangled": texts_of(used["demangledName"].fill_null(NULL), tables) if has_full_name else name,
        **{f"{kind}_{axis.lower()}": numbers(f"{kind}{axis}") for kind in ("grid", "block") for axis in "XYZ"},
        "registers": numbers("registersPerThread"),
        "shared_bytes": numbers("staticSharedMemory") + numbers("dynamicSharedMemory"),
    }
    return pl.DataFrame(columns, schema=dict(SHAPES))
