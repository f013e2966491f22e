"""Any capture as an SQLite export with the tables that the analysis reads, for what asks in SQL."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl

from traceview.errors import ReportError
from traceview.read.raw import RawCapture

BATCH = 100_000


def write_sqlite(capture: RawCapture, folder: Path) -> Path:
    """Write a capture's tables into a new database in `folder` and return it. Raises ReportError."""
    path = folder / "capture.sqlite"
    try:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA journal_mode=OFF")
            for table, frame in capture.tables.items():
                _write(connection, table, frame)
            versions = (
                ("EXPORT_PRODUCT_VERSION", capture.nsys_version),
                ("EXPORT_SCHEMA_VERSION", capture.schema_version),
            )
            connection.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
            connection.executemany(
                "INSERT INTO META_DATA_EXPORT VALUES (?, ?)", [one for one in versions if one[1] is not None]
            )
    except sqlite3.Error:
        raise ReportError(
            f"{capture.file}: the folder for temporary files has no room for its tables; set TMPDIR to one that has"
        ) from None
    return path


def _write(connection: sqlite3.Connection, table: str, frame: pl.DataFrame) -> None:
    if not frame.columns:
        return
    declared = ", ".join(
        f'"{name}" {"TEXT" if kind == pl.String else "INTEGER"}' for name, kind in frame.schema.items()
    )
    connection.execute(f'CREATE TABLE "{table}" ({declared})')
    holes = ", ".join("?" * len(frame.columns))
    for part in frame.iter_slices(BATCH):
        connection.executemany(f'INSERT INTO "{table}" VALUES ({holes})', part.rows())
