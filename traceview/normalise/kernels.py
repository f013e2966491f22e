"""The distinct launch shapes of kernels: name, grid, block, registers and shared memory."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.model.trace import SHAPES
from traceview.normalise.codes import integers, texts_of
from traceview.normalise.order import Part
from traceview.read.raw import SHAPE_COLUMNS

NULL = -1
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, as in Fibonacci hashing
NO_KERNEL = 0  # the row of operations that are not kernels


def empty_shapes() -> pl.DataFrame:
    """Return model.SHAPES with the row of operations that are not kernels."""
    return pl.DataFrame({name: [None] for name in SHAPES}, schema=dict(SHAPES))


def kernel_shapes(table: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> tuple[pl.DataFrame, Part]:
    """Return model.SHAPES, and the row of each kernel's shape in it.

    Kernels with equal 64-bit hashes of all columns have the same shape: a comparison of all columns would take three
    times as long.
    """
    if table.is_empty():
        return empty_shapes(), NO_KERNEL
    present = [name for name in SHAPE_COLUMNS if name in table.columns]
    key = pl.DataFrame({"key": _hashes([integers(table[name], NULL) for name in present])})
    first = key.with_row_index("row").group_by("key").agg(pl.col("row").first()).sort("row")
    rows = key.join(first.select("key").with_row_index("shape", NO_KERNEL + 1), on="key", how="left")
    used = table.select(present)[first["row"]]
    return pl.concat([empty_shapes(), _shapes_frame(used, tables)]), rows["shape"].to_numpy()


def _hashes(columns: list[NDArray[np.int64]]) -> NDArray[np.uint64]:
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        key += column.view(np.uint64)
        key *= MULTIPLIER
        key ^= key >> np.uint64(29)
    return key


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
