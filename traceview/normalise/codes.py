"""Long columns that hold few different values: which those are, and where each row's stands among them.

All is done in blocks, whose temporary arrays stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import blocks

WIDEST_LOOKUP = 1 << 25

Codes = NDArray[np.int32]


def numbers(column: pl.Series, otherwise: int = 0) -> NDArray[np.int64]:
    """Return a column of whole numbers as an array, `otherwise` for null."""
    return (column.fill_null(otherwise) if column.null_count() else column).to_numpy()


def different_rows(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return the different rows of some columns of whole numbers, 0 for null, in any order."""
    arrays = [numbers(frame[name]) for name in columns]
    if len(frame) > 1:
        # Most rows are like the one before them, and only the others are compared with all.
        changes = np.zeros(len(frame), np.bool_)
        changes[0] = True
        for array in arrays:
            changes[1:] |= array[1:] != array[:-1]
        rows = np.flatnonzero(changes)
        arrays = [array[rows] for array in arrays]
    return pl.DataFrame(dict(zip(columns, arrays, strict=True)), schema=dict.fromkeys(columns, pl.Int64)).unique()


def different(column: pl.Series) -> pl.Series:
    """Return the different values of a column of whole numbers, ascending, without null."""
    without = column.drop_nulls() if column.null_count() else column
    values = without.to_numpy()
    if len(values) == 0:
        return without
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span > min(WIDEST_LOOKUP, 64 * len(values) + 1024):
        return without.unique().sort()
    seen = np.zeros(span, np.bool_)
    for block in blocks(len(values)):
        seen[values[block] - low] = True
    return pl.Series(column.name, np.flatnonzero(seen) + low, dtype=pl.Int64)


def places(values: pl.Series, ordered: pl.Series) -> Codes:
    """Return where each value stands in `ordered` (ascending, unique); -1 for null and for strangers."""
    wanted = ordered.to_numpy()
    found = np.full(len(values), -1, np.int32)
    if len(wanted) == 0:
        return found
    low = int(wanted[0])
    span = int(wanted[-1]) - low + 1
    plain = numbers(values, low - 1)
    if span > WIDEST_LOOKUP:
        place = np.minimum(np.searchsorted(wanted, plain), len(wanted) - 1)
        return np.where(wanted[place] == plain, place, -1).astype(np.int32)
    table = np.full(span + 1, -1, np.int32)
    table[wanted - low] = np.arange(len(wanted), dtype=np.int32)
    for block in blocks(len(plain)):
        offset = plain[block] - low
        if offset.min() < 0 or offset.max() >= span:
            offset = np.where((offset >= 0) & (offset < span), offset, span)
        np.take(table, offset, out=found[block], mode="clip")
    return found
