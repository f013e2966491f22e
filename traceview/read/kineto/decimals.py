"""Microseconds as text to whole nanoseconds, exactly: seventeen digits do not fit into a float."""

from __future__ import annotations

import polars as pl

from traceview.read.raw import NOT_A_TIME

PLAIN = r"^(-?)([0-9]{1,16})(?:\.([0-9]{1,30}))?$"
MOST = 9_000_000_000_000_000  # us; as ns it still fits into 64 bits
EXACT = float(1 << 40)  # us; below it a float holds ns


def nanoseconds(text: pl.Expr) -> pl.Expr:
    """Return ns (Int64) of decimal text in us; NOT_A_TIME for what is no number or too large, null for null.

    From the fourth decimal on it is rounded. Numbers with an exponent, which torch does not write, are taken
    through a float where that is exact.
    """
    parts = text.str.extract_groups(PLAIN)
    whole = parts.struct.field("2").cast(pl.Int64)
    digits = parts.struct.field("3").fill_null("").str.slice(0, 4).str.pad_end(4, "0").cast(pl.Int64)
    plain = whole * 1000 + (digits + 5) // 10
    signed = pl.when(parts.struct.field("1") == "-").then(-plain).otherwise(plain)
    scientific = text.cast(pl.Float64, strict=False)
    return (
        pl.when(text.is_null())
        .then(None)
        .when(whole.is_not_null() & (whole <= MOST))
        .then(signed)
        .when(whole.is_null() & (scientific.abs() < EXACT))
        .then((scientific.fill_nan(None) * 1000).round().cast(pl.Int64, strict=False))
        .otherwise(pl.lit(NOT_A_TIME, pl.Int64))
    )
