"""A folder of `nsys export --type parquetdir` or `--type arrowdir`: one file a table, columns as in SQLite."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from traceview.errors import DamagedExportError, ReportError
from traceview.read.limits import DecodedSize
from traceview.read.parquet.arrow_buffers import decoded_size
from traceview.read.parquet.page_headers import check_pages
from traceview.read.parquet.polars_panics import unsaid
from traceview.read.parquet.texts import CODED, as_text, with_shared_texts
from traceview.read.raw import NOT_A_TIME, STRINGS, TABLES, TIMES, RawCapture, Table, wanted_columns
from traceview.read.sqlite.database import shown, version_text

AGAIN = "export it again: nsys export --type parquetdir REPORT.nsys-rep"
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
META = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # the latter until 2022
ROWS_A_BYTE, SMALL = 16, 100_000  # more rows than that in a file is no capture, but a bomb

# Returns a table and how many bytes each of its columns decodes to at least; under None, what all share.
Reader = Callable[[Path, DecodedSize], tuple[pl.LazyFrame, dict[str | None, int]]]


def _arrow(path: Path, size: DecodedSize) -> tuple[pl.LazyFrame, dict[str | None, int]]:
    """Read a stream whole; without its end mark it was cut off, which polars takes for its end."""
    with path.open("rb") as file:
        file.seek(-min(len(END), path.stat().st_size), os.SEEK_END)
        if file.read() != END:
            raise ValueError("no end mark")
    decoded = decoded_size(path)
    size.check(decoded)
    return pl.read_ipc_stream(path).lazy(), {None: decoded}


def _parquet(path: Path, _size: DecodedSize) -> tuple[pl.LazyFrame, dict[str | None, int]]:
    return pl.scan_parquet(path), {name: count for name, count in check_pages(path).items()}  # noqa: C416 - wider keys


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
    size = DecodedSize(shown(folder))
    for name, wanted in TABLES.items():
        path = folder / f"{name}{suffix}"
        if path.is_file():
            tables[name] = _table(path, name, wanted, size, problems)
    version, schema = _versions(folder, suffix, size)
    return RawCapture(folder.name, version, schema, tables, tuple(problems))


def every_table(folder: Path, suffix: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield all tables of an export with all their columns, as they are. Raises as read_directory does."""
    size = DecodedSize(shown(folder))
    for path in sorted(folder.glob(f"*{suffix}")):
        yield path.stem, _read(path, _read(path, None, size).columns, size)


def _table(path: Path, table: str, wanted: Table, size: DecodedSize, problems: list[str]) -> pl.DataFrame:
    present = _read(path, None, size)
    columns = wanted_columns(present.columns, table, problems, file=size.name, remedy=AGAIN)
    if columns is None:
        return pl.DataFrame()
    return typed(_read(path, columns, size), table, wanted, problems)


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
def _read(path: Path, columns: list[str] | None, size: DecodedSize) -> pl.DataFrame:
    """Return some columns, or with None an empty frame of all, once the number of rows and of bytes is plausible."""
    said = f"{size.name}: {shown(path)}"
    try:
        lazy, decoded = READERS[path.suffix](path, size)
        if columns is None:
            return lazy.collect_schema().to_frame()
        rows = lazy.select(pl.len()).collect().item()
        if rows > SMALL + ROWS_A_BYTE * path.stat().st_size:
            raise DamagedExportError(f"{said} claims {rows} rows, more than its size can hold; {AGAIN}")
        expected = sum(decoded.get(name, 0) for name in (None, *columns))
        size.check(expected)
        return with_shared_texts(lazy.select(columns).collect(), size, expected)
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
    if column.dtype in (pl.String, pl.Binary, *CODED):
        return as_text(column)
    return pl.Series(column.name, [None], pl.String).new_from_index(0, len(column))


def _versions(folder: Path, suffix: str, size: DecodedSize) -> tuple[str | None, str | None]:
    for table in META:
        path = folder / f"{table}{suffix}"
        if path.is_file() and {"name", "value"} <= set(_read(path, None, size).columns):
            found = dict(_read(path, ["name", "value"], size).rows())
            return version_text(found.get("EXPORT_PRODUCT_VERSION")), version_text(found.get("EXPORT_SCHEMA_VERSION"))
    return None, None
