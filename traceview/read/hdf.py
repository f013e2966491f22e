"""A file of `nsys export --type hdf`: one data set a table, columns as in SQLite.

It has no null: a missing number is 0 and a missing text is empty. Where that makes a difference (a range that the
capture cut off, a name that is a string id) 0 and the empty text are read as null.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from traceview.errors import DamagedExportError, NotAnExportError, ReportError
from traceview.read import raw
from traceview.read.parquet import ROWS_A_BYTE, SMALL, typed
from traceview.read.raw import STRINGS, TABLES, RawCapture, Table, wanted_columns
from traceview.read.sqlite import shown, version_text

MAGIC = b"\x89HDF\r\n\x1a\n"
AGAIN = "export it again: nsys export --type hdf REPORT.nsys-rep"
NULL_IF_ZERO = {raw.NVTX: ("end", "textId")}
FILTERS = {1, 2, 3}  # deflate, shuffle, checksum; another one would load a library that the file names


def is_hdf(head: bytes) -> bool:
    """Is a file that begins so in the format HDF5?"""
    return head.startswith(MAGIC)


def read_hdf(path: Path) -> RawCapture:
    """Read the tables that the analysis needs. Raises DamagedExportError, NotAnExportError or ReportError."""
    name = shown(path)
    problems: list[str] = []
    with _opened(path) as (h5py, file):
        present = {one: _data_set(h5py, file, one, path) for one in (*TABLES, "META_DATA_EXPORT") if one in file}
        tables = {
            table: _table(present[table], name, table, wanted, problems)
            for table, wanted in TABLES.items()
            if table in present
        }
        version, schema = _versions(present.get("META_DATA_EXPORT"))
    return RawCapture(path.name, version, schema, tables, tuple(problems))


def every_table(path: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield all tables with all their columns. Raises as read_hdf does."""
    with _opened(path) as (h5py, file):
        for table in file:
            found = _data_set(h5py, file, table, path)
            rows = found[:]
            yield (
                table,
                _with_nulls(table, pl.DataFrame([_column(name, rows[name]) for name in found.dtype.names or ()])),
            )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield h5py and an open file; what h5py cannot read becomes one line."""
    name = shown(path)
    try:
        h5py = importlib.import_module("h5py")
    except ImportError:
        raise ReportError(
            f"{name}: HDF5 needs the package h5py; pip install 'traceview[hdf]', "
            "or export it as nsys export --type sqlite REPORT.nsys-rep"
        ) from None
    try:
        with h5py.File(path, "r", locking=False) as file:
            if STRINGS not in file:
                raise NotAnExportError(f"{name}: HDF5, but not as nsys exports it; {AGAIN}")
            yield h5py, file
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, UnicodeError):
        raise DamagedExportError(f"{name}: cut off or damaged; copy it whole, or {AGAIN}") from None


def _data_set(h5py: Any, file: Any, table: str, path: Path) -> Any:
    """Return a table's data set, if all of it is in this file and no larger than it can hold."""
    if not isinstance(file.get(table, getlink=True), h5py.HardLink):
        raise ValueError("a link to elsewhere")
    found = file[table]
    if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual or len(found.shape) != 1:
        raise ValueError("no table of its own")
    made = found.id.get_create_plist()
    if {made.get_filter(index)[0] for index in range(made.get_nfilters())} - FILTERS:
        raise ValueError("an unknown compression")
    if found.shape[0] > SMALL + ROWS_A_BYTE * path.stat().st_size:
        raise DamagedExportError(f"{shown(path)}: {table} claims more rows than the file can hold; {AGAIN}")
    return found


def _table(found: Any, file: str, table: str, wanted: Table, problems: list[str]) -> pl.DataFrame:
    columns = wanted_columns(found.dtype.names or (), table, problems, file=file, remedy=AGAIN)
    if not columns:
        return pl.DataFrame()
    rows = found.fields(columns)[:]
    frame = _with_nulls(table, pl.DataFrame([_column(name, rows[name]) for name in columns]))
    return typed(frame, table, wanted, problems)


def _with_nulls(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    zero = [name for name in NULL_IF_ZERO.get(table, ()) if name in frame.columns]
    empty = [one.name for one in frame if one.dtype == pl.Binary and table != STRINGS]
    return frame.with_columns(
        *(pl.when(pl.col(name) != 0).then(pl.col(name)).alias(name) for name in zero),
        *(pl.when(pl.col(name) != b"").then(pl.col(name)).alias(name) for name in empty),
    )


def _column(name: str, values: Any) -> pl.Series:
    if values.dtype.kind != "O":
        return pl.Series(name, values.copy())
    return pl.Series(name, [one if isinstance(one, bytes) else None for one in values], dtype=pl.Binary)


def _versions(found: Any) -> tuple[str | None, str | None]:
    if found is None or not {"name", "value"} <= set(found.dtype.names or ()):
        return None, None
    texts = {bytes(name): bytes(value).decode("utf-8", "replace") for name, value in found.fields(["name", "value"])[:]}
    return version_text(texts.get(b"EXPORT_PRODUCT_VERSION")), version_text(texts.get(b"EXPORT_SCHEMA_VERSION"))
