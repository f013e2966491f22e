"""String ids to names, as pl.Enum columns: one code a row, one text a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.normalise.codes import different, looked_up
from traceview.read import raw

UNNAMED = "(unnamed)"


def as_enum(codes: NDArray[np.unsignedinteger[Any]], kind: pl.Enum) -> pl.Series:
    """Return codes as an Enum column; a code that is one beyond the last is null."""
    texts = kind.categories.cast(kind)
    none = len(texts)
    # Choosing among the texts by code takes half the time of a cast from codes, and less without a null to choose.
    return (texts.extend_constant(None, 1) if (codes == none).any() else texts)[codes]


def narrowest(texts: int) -> type[np.unsignedinteger[Any]]:
    """Return what the codes of an Enum of so many texts are."""
    return np.uint8 if texts < 256 else np.uint16 if texts < 65536 else np.uint32


def named(ids: pl.Series, tables: dict[str, pl.DataFrame], change: Callable[[str], str] = str) -> pl.Series:
    """Return the names behind string ids, each passed through `change`; `(unnamed)` where there is none."""
    used = different(ids)
    texts = [change(text) for text in texts_of(used, tables)]
    unique = list(dict.fromkeys([UNNAMED, *texts]))
    code = {text: index for index, text in enumerate(unique)}
    own = np.array([code[text] for text in texts], narrowest(len(unique)))
    return as_enum(looked_up(ids, used, own, 0), pl.Enum(unique))


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
