"""A folder of `nsys export --type parquetdir` or `--type arrowdir`: one file a table, columns as in SQLite."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from traceview.errors import DamagedExportError, ReportError
from traceview.read.database import shown, version_text
from traceview.read.panics import unsaid
from traceview.read.parquet_pages import check_pages
from traceview.read.raw import NOT_A_TIME, STRINGS, TABLES, TIMES, RawCapture, Table, wanted_columns

AGAIN = "export it again: nsys export --type parquetdir REPORT.nsys-rep"
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
META = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # the latter until 2022
ROWS_A_BYTE, SMALL = 16, 100_000  # more rows than that in a file is no capture, but a bomb

Reader = Callable[[Path], pl.LazyFrame]


def _arrow(path: Path) -> pl.LazyFrame:
    """Read a stream whole; without its end mark it was cut off, which polars takes for its end."""
    with path.open("rb") as file:
        file.seek(-min(len(END), path.stat().st_size), os.SEEK_END)
        if file.read() != END:
            raise ValueError("no end mark")
    return pl.read_ipc_stream(path).lazy()


def _parquet(path: Path) -> pl.LazyFrame:
    check_pages(path)
    return pl.scan_parquet(path)


READERS: dict[str, Reader] = {".parquet": _parquet, ".arrow": _arrow}


def kind_of(folder: Path) -> str | None:
    """Return the ending of the folder's tables; None where it is no such export."""
    return next((suffix for suffix in READERS if (folder / f"{STRINGS}{suffix}").is_file()), None)


def read_directory(folder: Path, suffix: str) -> RawCapture:
    """Read the tables that the analysis needs from files that end in `suffix`.

    Raises DamagedExportError or ReportError with one line.
    """
    problems: list[str] = []
    tables = {}
    for name, wanted in TABLES.items():
        path = folder / f"{name}{suffix}"
        if path.is_file():
            tables[name] = _table(folder, path, name, wanted, problems)
    version, schema = _versions(folder, suffix)
    return RawCapture(folder.name, version, schema, tables, tuple(problems))


def every_table(folder: Path, suffix: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield all tables of an export with all their columns, as they are. Raises as read_directory does."""
    for path in sorted(folder.glob(f"*{suffix}")):
        said = f"{shown(folder)}: {shown(path)}"
        yield path.stem, _read(said, path, _read(said, path, None).columns)


def _table(folder: Path, path: Path, table: str, wanted: Table, problems: list[str]) -> pl.DataFrame:
    said = f"{shown(folder)}: {path.name}"
    present = _read(said, path, None)
    columns = wanted_columns(present.columns, table, problems, file=shown(folder), remedy=AGAIN)
    if columns is None:
        return pl.DataFrame()
    return typed(_read(said, path, columns), table, wanted, problems)


def typed(frame: pl.DataFrame, table: str, wanted: Table, problems: list[str]) -> pl.DataFrame:
    """Return a table's columns as whole numbers and texts; rows with a value of another type are counted."""
    odd = pl.Series([False]).new_from_index(0, len(frame))
    made = []
    for column in frame:
        one = _text(column) if column.name in wanted.text else _whole(column)
        if column.name not in TIMES:
            odd |= one.is_null() & column.is_not_null()
        made.append(one)
    if count := odd.sum():
        problems.append(f"{table}: {count} rows hold a value of the wrong type there")
    return pl.DataFrame(made)


@unsaid()
def _read(said: str, path: Path, columns: list[str] | None) -> pl.DataFrame:
    """Return some columns, or with None an empty frame of all of them, once the number of rows is plausible."""
    try:
        lazy = READERS[path.suffix](path)
        if columns is None:
            return lazy.collect_schema().to_frame()
        rows = lazy.select(pl.len()).collect().item()
        if rows > SMALL + ROWS_A_BYTE * path.stat().st_size:
            raise DamagedExportError(f"{said} claims {rows} rows, more than its size can hold; {AGAIN}")
        return lazy.select(columns).collect()
    except OSError as error:
        if error.errno is None:
            raise DamagedExportError(f"{said} is cut off or damaged; {AGAIN}") from None
        raise ReportError(f"{said} cannot be read ({error.strerror}); check its permissions") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, TypeError, EOFError):
        raise DamagedExportError(f"{said} is cut off or damaged; {AGAIN}") from None


def _whole(column: pl.Series) -> pl.Series:
    """Return whole numbers as SQLite holds them, signed in 64 bits; others become null, or no time."""
    if column.dtype == pl.UInt64:
        return column.reinterpret(signed=True)
    if column.dtype.is_integer() or column.dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Int64)
    empty = pl.Series(column.name, [None], pl.Int64).new_from_index(0, len(column))
    if column.name not in TIMES:
        return empty
    return empty.to_frame().select(pl.when(column.is_not_null()).then(NOT_A_TIME).alias(column.name)).to_series()


def _text(column: pl.Series) -> pl.Series:
    if column.dtype == pl.Binary:
        texts = [None if one is None else one.decode("utf-8", "replace") for one in column.to_list()]
        return pl.Series(column.name, texts, pl.String)
    if column.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        return column.cast(pl.String)
    return pl.Series(column.name, [None], pl.String).new_from_index(0, len(column))


def _versions(folder: Path, suffix: str) -> tuple[str | None, str | None]:
    for table in META:
        path = folder / f"{table}{suffix}"
        said = f"{shown(folder)}: {path.name}"
        if path.is_file() and {"name", "value"} <= set(_read(said, path, None).columns):
            found = dict(_read(said, path, ["name", "value"]).rows())
            return version_text(found.get("EXPORT_PRODUCT_VERSION")), version_text(found.get("EXPORT_SCHEMA_VERSION"))
    return None, None
