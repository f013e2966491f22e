"""Texts of decoded columns: equal values of a dictionary share their bytes, so that a repeated text costs 16 bytes."""

from __future__ import annotations

import polars as pl

from traceview.read.limits import DecodedSize

CODED = (pl.Categorical, pl.Enum)


def as_text(column: pl.Series) -> pl.Series:
    """Return texts, categories or bytes as String; bytes that are not UTF-8 become replacement characters."""
    if column.dtype == pl.String:
        return column
    unique = column.unique().drop_nulls()
    if column.dtype == pl.Binary:
        texts = pl.Series([one.decode("utf-8", "replace") for one in unique.to_list()], dtype=pl.String)
        keys, key = unique, column
    else:
        texts, keys, key = unique.cast(pl.String), unique.to_physical(), column.to_physical()
    table = pl.DataFrame({"key": keys, "text": texts})
    rows = key.to_frame("key").join(table, on="key", how="left", maintain_order="left")
    return rows["text"].alias(column.name)


def with_shared_texts(frame: pl.DataFrame, size: DecodedSize, expected: int) -> pl.DataFrame:
    """Return a frame whose categories are texts, and count its bytes: `expected` of them or more.

    Raises ReportError above the limits, before anything copies a text once a row.
    """
    frame = frame.with_columns(as_text(column) for column in frame if column.dtype in CODED)
    texts = 0
    for column in frame:
        if column.dtype in (pl.String, pl.Binary):
            lengths = column.str.len_bytes() if column.dtype == pl.String else column.bin.size()
            longest = lengths.max()
            size.check_text(longest if isinstance(longest, int) else 0)
            texts += int(lengths.sum())
    size.add(max(expected, texts))
    return frame
