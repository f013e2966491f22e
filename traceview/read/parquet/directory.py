"""A folder of `nsys export --type parquetdir` or `--type arrowdir`: one file per table, columns as in SQLite."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import polars as pl

from traceview.errors import DamagedExportError, ReportError
from traceview.read.limits import DecodedSize
from traceview.read.parquet.file_checks import check_pages, decoded_size
from traceview.read.raw import (
    CATEGORICAL,
    NOT_A_TIME,
    STRINGS,
    TABLES,
    TIMES,
    RawCapture,
    WantedColumns,
    as_text,
    problem_of_rows,
    wanted_columns,
)
from traceview.read.source import display_name, private_folder
from traceview.read.sqlite.database import META_TABLES, version_text
from traceview.read.sqlite.write import write_sqlite

EXPORT_AGAIN = "export it again: nsys export --type parquetdir REPORT.nsys-rep"
END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # end of an Arrow stream
MAX_ROWS_PER_BYTE, MIN_SUSPICIOUS_ROWS = 16, 100_000  # real tables stay far below
STDERR = 2

# Opens a table. Also returns the least number of bytes that each column decodes to; key None for all columns together.
OpenTable = Callable[[Path, DecodedSize], tuple[pl.LazyFrame, dict[str | None, int]]]


class TableFolderReader:
    """Reads folders that `nsys export --type parquetdir` or `--type arrowdir` writes."""

    kind = "folder of tables"

    def matches(self, path: Path, _head: bytes) -> bool:
        """Return whether a path is such a folder."""
        return table_suffix(path) is not None

    def check(self, path: Path) -> None:
        """Accept every folder: its tables are checked as they are read."""

    def read(self, path: Path) -> RawCapture:
        """Read the tables that the analysis needs. Raises DamagedExportError or ReportError."""
        suffix = table_suffix(path)
        problems: list[str] = []
        tables = {}
        size = DecodedSize(display_name(path))
        for name, wanted in TABLES.items():
            file = path / f"{name}{suffix}"
            if file.is_file():
                tables[name] = _read_table(file, name, wanted, size, problems)
        version, schema = _stated_versions(path, suffix, size)
        return RawCapture(path.name, version, schema, tables, tuple(problems))

    @contextmanager
    def as_sqlite(self, path: Path) -> Iterator[Path]:
        """Yield a temporary SQLite export of all tables. Raises DamagedExportError or ReportError."""
        with private_folder(path) as folder:
            yield write_sqlite(display_name(path), _all_tables(path), folder)


def table_suffix(folder: Path) -> str | None:
    """Return the file suffix of a folder's tables; None if the path is not such a folder."""
    try:
        if not folder.is_dir():
            return None
        return next((suffix for suffix in OPEN_TABLE if (folder / f"{STRINGS}{suffix}").is_file()), None)
    except OSError:
        return None


def _open_arrow(path: Path, size: DecodedSize) -> tuple[pl.LazyFrame, dict[str | None, int]]:
    """Read a complete stream. Without its end mark it was cut off, but polars would take the cut for its end."""
    with path.open("rb") as file:
        file.seek(-min(len(END_MARK), path.stat().st_size), os.SEEK_END)
        if file.read() != END_MARK:
            raise ValueError("no end mark")
    decoded = decoded_size(path)
    size.check(decoded)
    return pl.read_ipc_stream(path).lazy(), {None: decoded}


def _open_parquet(path: Path, _size: DecodedSize) -> tuple[pl.LazyFrame, dict[str | None, int]]:
    return pl.scan_parquet(path), {name: count for name, count in check_pages(path).items()}  # noqa: C416 - wider keys


OPEN_TABLE: dict[str, OpenTable] = {".parquet": _open_parquet, ".arrow": _open_arrow}


def _all_tables(folder: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield all tables of an export with all their columns, unchanged."""
    size = DecodedSize(display_name(folder))
    for path in sorted(folder.glob(f"*{table_suffix(folder)}")):
        yield path.stem, _read_columns(path, _read_columns(path, None, size).columns, size)


def _read_table(path: Path, table: str, wanted: WantedColumns, size: DecodedSize, problems: list[str]) -> pl.DataFrame:
    """Read a table's wanted columns as integers and texts; rows with a value of another type are counted."""
    present = _read_columns(path, None, size)
    columns = wanted_columns(present.columns, table, problems, file=size.name, remedy=EXPORT_AGAIN)
    if columns is None:
        return pl.DataFrame()
    frame = _read_columns(path, columns, size)
    wrong = pl.Series([False]).new_from_index(0, len(frame))
    typed_columns = []
    for column in frame:
        typed = _as_text_or_null(column) if column.name in wanted.text else _as_integer(column)
        if column.name not in TIMES:
            wrong |= typed.is_null() & column.is_not_null()
        typed_columns.append(typed)
    if count := int(wrong.sum()):
        problems.append(problem_of_rows(table, count, "with a value of the wrong type, which is ignored"))
    return pl.DataFrame(typed_columns)


def _read_columns(path: Path, columns: list[str] | None, size: DecodedSize) -> pl.DataFrame:
    """Return some columns of a file; for None, an empty frame of all columns.

    The numbers of rows and bytes are checked first.
    """
    name = f"{size.name}: {display_name(path)}"
    try:
        with suppressed_stderr():
            lazy, decoded = OPEN_TABLE[path.suffix](path, size)
            if columns is None:
                return lazy.collect_schema().to_frame()
            rows = lazy.select(pl.len()).collect().item()
            if rows > MIN_SUSPICIOUS_ROWS + MAX_ROWS_PER_BYTE * path.stat().st_size:
                raise DamagedExportError(f"{name} claims {rows} rows, more than its size can hold; {EXPORT_AGAIN}")
            expected = sum(decoded.get(key, 0) for key in (None, *columns))
            size.check(expected)
            return _with_counted_texts(lazy.select(columns).collect(), size, expected)
    except OSError as error:
        if error.errno is None:
            raise DamagedExportError(f"{name} is cut off or damaged; {EXPORT_AGAIN}") from None
        raise ReportError(f"{name} cannot be read ({error.strerror}); check its permissions") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, TypeError, EOFError):
        raise DamagedExportError(f"{name} is cut off or damaged; {EXPORT_AGAIN}") from None


def _with_counted_texts(frame: pl.DataFrame, size: DecodedSize, expected: int) -> pl.DataFrame:
    """Return a frame with its categories as texts, and add its bytes to `size`: at least `expected`.

    Raises ReportError above the limits, before anything copies the text of each row.
    """
    frame = frame.with_columns(as_text(column) for column in frame if column.dtype in CATEGORICAL)
    texts = 0
    for column in frame:
        if column.dtype in (pl.String, pl.Binary):
            lengths = column.str.len_bytes() if column.dtype == pl.String else column.bin.size()
            longest = lengths.max()
            size.check_text(longest if isinstance(longest, int) else 0)
            texts += int(lengths.sum())
    size.add(max(expected, texts))
    return frame


def _as_integer(column: pl.Series) -> pl.Series:
    """Return integers as SQLite stores them, in 64 bits; other values become null, or NOT_A_TIME in a time column."""
    if column.dtype == pl.UInt64:
        return column.reinterpret(signed=True)
    if column.dtype.is_integer() or column.dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Int64)
    empty = pl.Series(column.name, [None], pl.Int64).new_from_index(0, len(column))
    if column.name not in TIMES:
        return empty
    return empty.to_frame().select(pl.when(column.is_not_null()).then(NOT_A_TIME).alias(column.name)).to_series()


def _as_text_or_null(column: pl.Series) -> pl.Series:
    if column.dtype in (pl.String, pl.Binary, *CATEGORICAL):
        return as_text(column)
    return pl.Series(column.name, [None], pl.String).new_from_index(0, len(column))


def _stated_versions(folder: Path, suffix: str | None, size: DecodedSize) -> tuple[str | None, str | None]:
    """Return the versions of nsys and of the export's schema; None if the export does not state them."""
    for table in META_TABLES:
        path = folder / f"{table}{suffix}"
        if path.is_file() and {"name", "value"} <= set(_read_columns(path, None, size).columns):
            stated = dict(_read_columns(path, ["name", "value"], size).rows())
            return version_text(stated.get("EXPORT_PRODUCT_VERSION")), version_text(stated.get("EXPORT_SCHEMA_VERSION"))
    return None, None


@contextmanager
def suppressed_stderr() -> Iterator[None]:
    """Hide the backtraces that polars prints when damaged data makes it panic.

    The context holds back standard error, and writes it at the end unless an exception was raised.
    """
    with tempfile.TemporaryFile() as kept:
        try:
            before = os.dup(STDERR)
        except OSError:  # standard error is closed
            yield
            return
        _flush_stderr()
        os.dup2(kept.fileno(), STDERR)
        try:
            yield
            _flush_stderr()
        except BaseException:
            kept.truncate(0)
            raise
        finally:
            os.dup2(before, STDERR)
            os.close(before)
            kept.seek(0)
            while chunk := kept.read(1 << 16):
                os.write(STDERR, chunk)


def _flush_stderr() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
