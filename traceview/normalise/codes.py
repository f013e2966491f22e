"""Long columns with few different values: their values, the position of each row's value, and names as pl.Enum.

The functions work in blocks, whose temporary arrays stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import blocks
from traceview.model.catalogue import read_toml
from traceview.model.trace import enum_texts
from traceview.read import raw

NAMES = read_toml(Path(__file__).with_name("names.toml"))  # words of CUPTI, CUDA and nsys
MAX_LOOKUP_SPAN, MAX_COUNT_SPAN = 1 << 25, 1 << 22  # largest minus smallest value for a table indexed by value
UNNAMED = "(unnamed)"
# The short name in a demangled name: `void at::native::<unnamed>::kernel<float>(...)`.
SHORT_NAME = r"^(?:void )?(?:(?:\w+|<unnamed>|\(anonymous namespace\))::)*(\w+)[<(]"

Codes = NDArray[np.signedinteger[Any]]
Value = TypeVar("Value", bound=np.generic)


def integers(column: pl.Series, null: int = 0) -> NDArray[np.int64]:
    """Return an integer column as an array, with `null` in place of nulls."""
    return (column.fill_null(null) if column.null_count() else column).to_numpy()


def constant_of(frame: pl.DataFrame, name: str) -> int | None:
    """Return the value of all rows of an integer column without nulls; None if they differ or there are none.

    A literal that stands for all rows stays one: converting the column to an array would expand it.
    """
    column = pl.col(name)
    low, high, nulls = frame.select(column.min(), high=column.max(), nulls=column.null_count()).row(0)
    return low if low == high and not nulls else None


def distinct_rows(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return the distinct rows of some integer columns, 0 for null, in any order."""
    constants = {name: value for name in columns if (value := constant_of(frame, name)) is not None}
    if constants and len(constants) < len(columns):
        several = distinct_rows(frame, [name for name in columns if name not in constants])
        return several.with_columns(pl.lit(value, pl.Int64).alias(name) for name, value in constants.items()).select(
            columns
        )
    frame = frame[:1] if constants else frame
    arrays = [integers(frame[name]) for name in columns]
    if len(frame) > 1:
        # Most rows equal the row before them: compare only the others with each other.
        changes = np.zeros(len(frame), np.bool_)
        changes[0] = True
        for array in arrays:
            changes[1:] |= array[1:] != array[:-1]
        rows = np.flatnonzero(changes)
        arrays = [array[rows] for array in arrays]
    return pl.DataFrame(dict(zip(columns, arrays, strict=True)), schema=dict.fromkeys(columns, pl.Int64)).unique()


def distinct(column: pl.Series) -> pl.Series:
    """Return the distinct values of an integer column, ascending, without null."""
    without = column.drop_nulls() if column.null_count() else column
    values = without.to_numpy()
    if len(values) == 0:
        return without
    low, high = int(values.min()), int(values.max())
    if low > 0 and high < MAX_COUNT_SPAN:
        low = 0  # avoids the subtraction below: most ids are small
    if high - low >= min(MAX_COUNT_SPAN, 64 * len(values) + 1024):
        return without.unique().sort()
    present = np.flatnonzero(np.bincount(values - low if low else values))
    return pl.Series(column.name, present + low, dtype=pl.Int64)


def positions(values: pl.Series, ordered: pl.Series) -> Codes:
    """Return each value's position in `ordered` (ascending, unique); -1 for null and for other values.

    The result has 16 bits if they are enough, else 32.
    """
    narrow = np.int16 if len(ordered) < 1 << 15 else np.int32
    return lookup(values, ordered, np.arange(len(ordered), dtype=narrow), -1)


def lookup(values: pl.Series, keys: pl.Series, results: NDArray[Value], otherwise: int) -> NDArray[Value]:
    """Return the result for each value's position in `keys` (ascending); `otherwise` for null and for other values."""
    wanted = keys.to_numpy()
    if len(wanted) == 0:
        return np.full(len(values), otherwise, results.dtype)
    low = int(wanted[0])
    span = int(wanted[-1]) - low + 1
    plain = integers(values, low - 1)
    if span > MAX_LOOKUP_SPAN:
        position = np.minimum(np.searchsorted(wanted, plain), len(wanted) - 1)
        return np.where(wanted[position] == plain, results[position], results.dtype.type(otherwise))
    table = np.full(span + 1, otherwise, results.dtype)
    table[wanted - low] = results
    out = np.empty(len(plain), results.dtype)
    for block in blocks(len(plain)):
        offset = plain[block] - low
        if offset.min() < 0 or offset.max() >= span:
            offset = np.where((offset >= 0) & (offset < span), offset, span)
        np.take(table, offset, out=out[block], mode="clip")
    return out


def translate(codes: NDArray[np.unsignedinteger[Any]], table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return `table[codes]`; for codes of one byte with bytes.translate, which takes a third of the time."""
    if codes.dtype != np.uint8:
        return np.take(table, codes)
    padded = table.tobytes().ljust(256, b"\0")
    return np.frombuffer(codes.tobytes().translate(padded), np.uint8)


def enum_column(codes: NDArray[np.unsignedinteger[Any]], kind: pl.Enum) -> pl.Series:
    """Return codes as an Enum column; the code after the last category is null."""
    texts = kind.categories.cast(kind)
    null_code = len(texts)
    # Indexing the categories takes half the time of a cast from codes, and less if no null is appended.
    return (texts.extend_constant(None, 1) if (codes == null_code).any() else texts)[codes]


def text_enum(texts: pl.Series) -> pl.Series:
    """Return texts as an Enum column, whose categories are in the order of their first occurrence."""
    return texts.cast(pl.Enum(texts.unique(maintain_order=True)))


def code_type(categories: int) -> type[np.unsignedinteger[Any]]:
    """Return the type of the codes of an Enum with this many categories."""
    return np.uint8 if categories < 256 else np.uint16 if categories < 65536 else np.uint32


def name_column(ids: pl.Series, tables: dict[str, pl.DataFrame], change: Callable[[str], str] = str) -> pl.Series:
    """Return the names of string ids, each passed through `change`; `(unnamed)` for an unknown id."""
    used = distinct(ids)
    texts = [change(text) for text in texts_of(used, tables)]
    unique = list(dict.fromkeys([UNNAMED, *texts]))
    code = {text: index for index, text in enumerate(unique)}
    own = np.array([code[text] for text in texts], code_type(len(unique)))
    return enum_column(lookup(ids, used, own, 0), pl.Enum(unique))


def categories(column: pl.Series) -> list[str]:
    """Return the texts of an Enum column, by code."""
    return enum_texts(column).to_list()


def text_column(ids: pl.Series, tables: Mapping[str, pl.DataFrame]) -> pl.Series:
    """Return the text of each string id."""
    wanted, strings = ids.cast(pl.Int64).to_frame("id"), tables[raw.STRINGS]
    if len(ids) < len(strings):
        strings = strings.filter(pl.col("id").is_in(wanted["id"].drop_nulls().implode()))
    joined = wanted.join(strings.unique("id", keep="first"), on="id", how="left", maintain_order="left")
    return joined["value"].fill_null(UNNAMED)


def texts_of(ids: pl.Series, tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Return the text of each string id."""
    return text_column(ids, tables).to_list()


def event_texts(events: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> pl.Series:
    """Return the text of each row of NVTX_EVENTS: its own, else that of its string id; null if it has neither."""
    no_text, no_id = pl.lit(None, pl.String), pl.lit(None, pl.Int64)
    texts = events.select(
        pl.col("text") if "text" in events.columns else no_text.alias("text"),
        pl.col("textId") if "textId" in events.columns else no_id.alias("textId"),
    )
    used = texts["textId"].unique().drop_nulls()
    registered = pl.Series("registered", texts_of(used, tables), dtype=pl.String)
    named = pl.DataFrame({"textId": used}).with_columns(registered)
    joined = texts.join(named, on="textId", how="left", maintain_order="left")
    return joined.select(pl.coalesce("text", "registered")).to_series()


def short_names(texts: pl.Series) -> pl.Series:
    """Return the short names of the texts that are demangled names of kernels, each once."""
    return texts.str.extract(SHORT_NAME).drop_nulls().unique()
