"""Tables of any capture as an SQLite export, for what asks in SQL."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import polars as pl

from traceview.errors import ReportError
from traceview.read.parquet.texts import CODED, as_text
from traceview.read.raw import RawCapture
from traceview.read.sqlite.database import columns_of, open_read_only, real_tables, shown

BATCH, BATCH_BYTES = 100_000, 256 << 20  # rows and bytes of texts that are Python's at once
PLAIN = re.compile(r"\w{1,64}", re.ASCII)  # a table or column that is called anything else stays behind
META = "META_DATA_EXPORT"
PRODUCT = "EXPORT_PRODUCT_NAME"  # nsys says NVIDIA Nsight Systems there


def tables_of(capture: RawCapture) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield a capture's tables, and one that says what made it."""
    yield from capture.tables.items()
    said = {
        PRODUCT: None if capture.profiler == "nsys" else capture.profiler,
        "EXPORT_PRODUCT_VERSION": capture.nsys_version,
        "EXPORT_SCHEMA_VERSION": capture.schema_version,
    }
    rows = [(name, value) for name, value in said.items() if value is not None]
    yield META, pl.DataFrame(rows, schema={"name": pl.String, "value": pl.String}, orient="row")


def product_of(export: Path) -> str | None:
    """Return what an export says made it; None where it does not say."""
    with open_read_only(export) as connection:
        if META not in real_tables(connection, shown(export)) or "value" not in columns_of(connection, META):
            return None
        found = connection.execute(f'SELECT "value" FROM {META} WHERE "name" = ?', (PRODUCT,)).fetchone()
    return str(found[0]) if found else None


def write_sqlite(name: str, tables: Iterable[tuple[str, pl.DataFrame]], folder: Path) -> Path:
    """Write tables into a new database in `folder` and return it; `name` is what an error calls the capture.

    Raises ReportError where there is no room.
    """
    path = folder / (name if name.strip("./") else "capture.sqlite")  # what reads it names it in its errors
    try:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA journal_mode=OFF")
            for table, frame in tables:
                if PLAIN.fullmatch(table):
                    _write(connection, table, frame)
    except (sqlite3.Error, OverflowError):
        raise ReportError(
            f"{name}: its tables cannot be written into the folder for temporary files; set TMPDIR to one with room"
        ) from None
    return path


def _write(connection: sqlite3.Connection, table: str, frame: pl.DataFrame) -> None:
    columns = [_stored(one) for one in frame if PLAIN.fullmatch(one.name)]
    if not columns:
        return
    kinds = {pl.String: "TEXT", pl.Float64: "REAL"}
    declared = ", ".join(f'"{one.name}" {kinds.get(type(one.dtype), "INTEGER")}' for one in columns)
    connection.execute(f'CREATE TABLE "{table}" ({declared})')
    holes = ", ".join("?" * len(columns))
    longest = sum(_longest(one) for one in columns)
    for part in pl.DataFrame(columns).iter_slices(max(1, min(BATCH, BATCH_BYTES // (longest + 1)))):
        connection.executemany(f'INSERT INTO "{table}" VALUES ({holes})', part.rows())


def _longest(column: pl.Series) -> int:
    """Return how many bytes the longest text of a column has."""
    longest = column.str.len_bytes().max() if column.dtype == pl.String else 0
    return longest if isinstance(longest, int) else 0


def _stored(column: pl.Series) -> pl.Series:
    """Return a column in a type that SQLite has: of a type that no export holds, empty blobs, which are no values."""
    if column.dtype == pl.UInt64:
        return column.reinterpret(signed=True)
    if column.dtype.is_integer() or column.dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Int64)
    if column.dtype.is_float():
        return column.cast(pl.Float64)
    if column.dtype in (pl.String, pl.Binary, *CODED):
        return as_text(column)
    return column.to_frame().select(pl.when(column.is_not_null()).then(pl.lit(b"")).alias(column.name)).to_series()
