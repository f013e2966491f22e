"""String ids to names, as pl.Enum columns: one code a row, one text a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.normalise.codes import different, places
from traceview.read import raw

UNNAMED = "(unnamed)"
# Polars 2 dropped the cast from code to Enum that Polars 1 (the last one for Python 3.10) has.
POLARS_1 = pl.__version__.startswith("1.")


def coded(texts: Sequence[str], codes: NDArray[np.integer[Any]]) -> pl.Series:
    """Return an Enum column from texts (which may repeat) and one index into them a row."""
    if len(texts) == 0:
        return pl.Series([], dtype=pl.Enum([]))
    unique = list(dict.fromkeys(texts))
    place = {text: index for index, text in enumerate(unique)}
    merged = np.array([place[text] for text in texts], narrowest(len(unique)))
    return as_enum(merged[codes], pl.Enum(unique))


def narrowest(texts: int) -> type[np.unsignedinteger[Any]]:
    """Return what the codes of an Enum of so many texts are."""
    return np.uint8 if texts < 256 else np.uint16 if texts < 65536 else np.uint32


def as_enum(codes: NDArray[np.integer[Any]] | pl.Series, kind: pl.Enum) -> pl.Series:
    """Return codes (nulls kept) as an Enum column."""
    series = codes if isinstance(codes, pl.Series) else pl.Series(codes)
    if POLARS_1:
        return series.cast(pl.UInt32).cast(kind)
    return series.cat.to(kind)


def named(ids: pl.Series, tables: dict[str, pl.DataFrame], change: Callable[[str], str] = str) -> pl.Series:
    """Return the names behind string ids, each passed through `change`; `(unnamed)` where there is none."""
    used = different(ids)
    texts = texts_of(used, tables)
    return coded([UNNAMED, *(change(text) for text in texts)], places(ids, used) + 1)


def categories(column: pl.Series) -> list[str]:
    """Return the texts of an Enum column, by code."""
    dtype = column.dtype
    assert isinstance(dtype, pl.Enum)
    return dtype.categories.to_list()


def texts_of(ids: pl.Series, tables: dict[str, pl.DataFrame]) -> list[str]:
    """Return the text of each string id."""
    strings = tables[raw.STRINGS].unique("id", keep="first")
    joined = pl.DataFrame({"id": ids}).join(strings, on="id", how="left", maintain_order="left")
    return joined["value"].fill_null(UNNAMED).to_list()
