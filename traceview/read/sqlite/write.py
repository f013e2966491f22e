"""Writes the tables of any capture as an SQLite export, for code that queries them in SQL."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import polars as pl

from traceview.errors import ReportError
from traceview.read.raw import CATEGORICAL, RawCapture, as_text
from traceview.read.sqlite.database import open_export

MAX_BATCH_ROWS, MAX_BATCH_BYTES = 100_000, 256 << 20  # rows, and bytes of texts, that are Python objects at once
PLAIN_NAME = re.compile(r"\w{1,64}", re.ASCII)  # tables and columns with other names are not written
META_TABLE = "META_DATA_EXPORT"
PRODUCT = "EXPORT_PRODUCT_NAME"  # "NVIDIA Nsight Systems" in nsys's own exports


def tables_with_metadata(capture: RawCapture) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield a capture's tables, and a table that names the profiler and its versions."""
    yield from capture.tables.items()
    values = {
        PRODUCT: None if capture.profiler == "nsys" else capture.profiler,
        "EXPORT_PRODUCT_VERSION": capture.nsys_version,
        "EXPORT_SCHEMA_VERSION": capture.schema_version,
    }
    rows = [(name, value) for name, value in values.items() if value is not None]
    yield META_TABLE, pl.DataFrame(rows, schema={"name": pl.String, "value": pl.String}, orient="row")


def product_of(export: Path) -> str | None:
    """Return the product that an export names as its maker; None if it names none."""
    with open_export(export) as database:
        product = database.metadata().get(PRODUCT)
    return None if product is None else str(product)


def write_sqlite(name: str, tables: Iterable[tuple[str, pl.DataFrame]], folder: Path) -> Path:
    """Write tables into a new database in `folder` and return its path; errors call the capture `name`.

    Raises ReportError if the folder has no room.
    """
    path = folder / (name if name.strip("./") else "capture.sqlite")  # errors of later readers show this name
    try:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA journal_mode=OFF")
            for table, frame in tables:
                if PLAIN_NAME.fullmatch(table):
                    _write_table(connection, table, frame)
    except (sqlite3.Error, OverflowError):
        raise ReportError(
            f"{name}: its tables cannot be written to the folder for temporary files; set TMPDIR to a folder with room"
        ) from None
    return path


def _write_table(connection: sqlite3.Connection, table: str, frame: pl.DataFrame) -> None:
    columns = [_to_sqlite_type(column) for column in frame if PLAIN_NAME.fullmatch(column.name)]
    if not columns:
        return
    kinds = {pl.String: "TEXT", pl.Float64: "REAL"}
    declared = ", ".join(f'"{column.name}" {kinds.get(type(column.dtype), "INTEGER")}' for column in columns)
    connection.execute(f'CREATE TABLE "{table}" ({declared})')
    placeholders = ", ".join("?" * len(columns))
    row_bytes = sum(_longest_text(column) for column in columns) + 1
    for part in pl.DataFrame(columns).iter_slices(max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // row_bytes))):
        connection.executemany(f'INSERT INTO "{table}" VALUES ({placeholders})', part.rows())


def _longest_text(column: pl.Series) -> int:
    """Return the length in bytes of a column's longest text."""
    longest = column.str.len_bytes().max() if column.dtype == pl.String else 0
    return longest if isinstance(longest, int) else 0


def _to_sqlite_type(column: pl.Series) -> pl.Series:
    """Return a column in a type that SQLite stores; values of types that no export has become empty blobs."""
    if column.dtype == pl.UInt64:
        return column.reinterpret(signed=True)
    if column.dtype.is_integer() or column.dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Int64)
    if column.dtype.is_float():
        return column.cast(pl.Float64)
    if column.dtype in (pl.String, pl.Binary, *CATEGORICAL):
        return as_text(column)
    return column.to_frame().select(pl.when(column.is_not_null()).then(pl.lit(b"")).alias(column.name)).to_series()
