"""Long columns that hold few different values: which those are, and where each row's stands among them.

All is done in blocks, whose temporary arrays stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import blocks

WIDEST_LOOKUP, WIDEST_COUNT = 1 << 25, 1 << 22

Codes = NDArray[np.signedinteger[Any]]
Some = TypeVar("Some", bound=np.generic)


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
    low, high = int(values.min()), int(values.max())
    if low > 0 and high < WIDEST_COUNT:
        low = 0  # small ids, as most are, are counted as they are
    if high - low >= min(WIDEST_COUNT, 64 * len(values) + 1024):
        return without.unique().sort()
    found = np.flatnonzero(np.bincount(values - low if low else values))
    return pl.Series(column.name, found + low, dtype=pl.Int64)


def places(values: pl.Series, ordered: pl.Series) -> Codes:
    """Return where each value stands in `ordered` (ascending, unique); -1 for null and for strangers.

    In 16 bits where that is enough.
    """
    narrow = np.int16 if len(ordered) < 1 << 15 else np.int32
    return looked_up(values, ordered, np.arange(len(ordered), dtype=narrow), -1)


def looked_up(values: pl.Series, ordered: pl.Series, found: NDArray[Some], otherwise: int) -> NDArray[Some]:
    """Return what is found at each value's place in `ordered`; `otherwise` for null and for strangers."""
    wanted = ordered.to_numpy()
    if len(wanted) == 0:
        return np.full(len(values), otherwise, found.dtype)
    low = int(wanted[0])
    span = int(wanted[-1]) - low + 1
    plain = numbers(values, low - 1)
    if span > WIDEST_LOOKUP:
        place = np.minimum(np.searchsorted(wanted, plain), len(wanted) - 1)
        return np.where(wanted[place] == plain, found[place], found.dtype.type(otherwise))
    table = np.full(span + 1, otherwise, found.dtype)
    table[wanted - low] = found
    whole = np.empty(len(plain), found.dtype)
    for block in blocks(len(plain)):
        offset = plain[block] - low
        if offset.min() < 0 or offset.max() >= span:
            offset = np.where((offset >= 0) & (offset < span), offset, span)
        np.take(table, offset, out=whole[block], mode="clip")
    return whole


def translated(codes: NDArray[np.unsignedinteger[Any]], table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return `table[codes]`: of bytes a translation, which takes a third of the time."""
    if codes.dtype != np.uint8:
        return np.take(table, codes)
    every = table.tobytes().ljust(256, b"\0")
    return np.frombuffer(codes.tobytes().translate(every), np.uint8)
