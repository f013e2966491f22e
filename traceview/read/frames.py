"""Decoded columns as frames."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from traceview.read.records import Column


def frame_of(columns: Mapping[str, Column]) -> pl.DataFrame:
    """Return columns as a frame of Int64, nulls kept; numbers are not copied."""
    return pl.DataFrame([_series(name, column) for name, column in columns.items()])


def _series(name: str, column: Column) -> pl.Series:
    series = pl.Series(name, column.values)
    return series if column.null is None or not column.null.any() else series.set(pl.Series(column.null), None)
