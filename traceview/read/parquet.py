"""A folder of `nsys export --type parquetdir` or `--type arrowdir`: one file per table, columns as in SQLite.

polars reads the tables. A damaged or hostile file makes it ask for more memory than the machine has, which ends the
process without a message. So another process reads the tables first, with a limit on its memory.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import polars as pl

from traceview.errors import DamagedExportError, ReportError
from traceview.process import python_command
from traceview.read import raw
from traceview.read.raw import RawCapture, Wanted
from traceview.read.source import DecodedSize, display_name, private_folder, size_text
from traceview.read.sqlite.database import META_TABLES, version_text
from traceview.read.sqlite.reader import write_sqlite

SUFFIXES = (".parquet", ".arrow")
EXPORT_AGAIN = "export it again: nsys export --type parquetdir REPORT.nsys-rep"
EXPORT_SQLITE = "export it as SQLite, which may have any text: nsys export --type sqlite REPORT.nsys-rep"
END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # end of an Arrow stream
MAX_ROWS_PER_BYTE, MIN_SUSPICIOUS_ROWS = 16, 100_000  # real tables stay far below
VALUE_BYTES = 8  # size of a number in a frame, and smallest size of a text
# Reads files, and prints the number of each before. What polars refuses by itself is named where the table is read.
TRIAL = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]), int(sys.argv[1])))
import polars
for number, path in enumerate(sys.argv[2:]):
    print(number, flush=True)
    try:
        polars.read_ipc_stream(path) if path.endswith(".arrow") else polars.read_parquet(path)
    except Exception:
        pass
"""
TRIAL_BYTES = 256 << 20  # polars with two threads takes 112 MB before it reads anything

Choose = Callable[[list[str]], "list[str] | None"]  # returns the columns to read of those that a table has


class NotUtf8Error(DamagedExportError):
    """A table has text in the encoding of a Windows in another language, as the name of its time zone."""


class TableFolderReader:
    """Reads folders that `nsys export --type parquetdir` or `--type arrowdir` writes."""

    kind = "folder of tables"

    def matches(self, path: Path, _head: bytes) -> bool:
        """Return whether a path is such a folder."""
        return table_suffix(path) is not None

    def check(self, path: Path) -> None:
        """Accept every folder: its tables are checked as they are read."""

    def read(self, path: Path, _wanted: Wanted | None = None) -> RawCapture:
        """Read the tables that the analysis needs. Raises DamagedExportError or ReportError."""
        size = DecodedSize(display_name(path))
        files = {file.stem: file for file in _table_files(path) if file.stem in (*raw.TABLES, *META_TABLES)}
        _check_tables(list(files.values()), size)
        versioned = [file.stem for file in _table_files(path) if raw.known_table(file.stem)]
        problems = list(map(raw.problem_of_unread, versioned))
        tables = {name: _read_table(files[name], name, size, problems) for name in raw.TABLES if name in files}
        version, schema = _stated_versions(files, size)
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
        return next((suffix for suffix in SUFFIXES if (folder / f"{raw.STRINGS}{suffix}").is_file()), None)
    except OSError:
        return None


def _table_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob(f"*{table_suffix(folder)}")) if path.is_file()]


def _check_tables(files: Sequence[Path], size: DecodedSize) -> None:
    """Read tables in a process whose memory is bounded by --max-decoded. Raises DamagedExportError or ReportError."""
    with suppress(OSError):  # what went away is named where it is read
        size.check(sum(file.stat().st_size for file in files))
    done = subprocess.run(
        python_command(TRIAL, str(size.limit + TRIAL_BYTES), *map(str, files)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "POLARS_MAX_THREADS": "2"},
        check=False,
    )
    if done.returncode:
        number = len(done.stdout.split()) - 1
        raise DamagedExportError(
            f"{size.name}: {display_name(files[number])} is damaged, or decodes to more than {size_text(size.limit)}; "
            f"{EXPORT_AGAIN}, or raise the limit: --max-decoded {size_text(2 * size.limit)}"
        )


def _all_tables(folder: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield all tables of an export with all their columns, unchanged."""
    size, files = DecodedSize(display_name(folder)), _table_files(folder)
    _check_tables(files, size)
    for path in files:
        with suppress(NotUtf8Error) if path.stem in META_TABLES else nullcontext():
            yield path.stem, _read_columns(path, size, list)


def _read_table(path: Path, table: str, size: DecodedSize, problems: list[str]) -> pl.DataFrame:
    """Read a table's wanted columns as integers and texts; rows with a value of another type are counted."""
    wanted = partial(raw.wanted_columns, table=table, problems=problems, file=size.name, remedy=EXPORT_AGAIN)
    frame = _read_columns(path, size, wanted)
    wrong = pl.Series([False]).new_from_index(0, len(frame))
    typed_columns = []
    for column in frame:
        typed = _as_text_or_null(column) if column.name in raw.TABLES[table].text else _as_integer(column)
        if column.name not in raw.TIMES:
            wrong |= typed.is_null() & column.is_not_null()
        typed_columns.append(typed)
    if count := int(wrong.sum()):
        problems.append(raw.problem_of_rows(table, count, "with a value of the wrong type, which is ignored"))
    return pl.DataFrame(typed_columns)


def _read_columns(path: Path, size: DecodedSize, choose: Choose) -> pl.DataFrame:
    """Return the chosen columns of a file; its numbers of rows and bytes are checked first."""
    name = f"{size.name}: {display_name(path)}"
    try:
        table = _open_table(path)
        columns = choose(table.collect_schema().names()) or []
        rows = table.select(pl.len()).collect().item()
        if rows > MIN_SUSPICIOUS_ROWS + MAX_ROWS_PER_BYTE * path.stat().st_size:
            raise DamagedExportError(f"{name} claims {rows} rows, more than its size can hold; {EXPORT_AGAIN}")
        expected = VALUE_BYTES * rows * len(columns)
        size.check(expected)
        return _with_counted_texts(table.select(columns).collect(), size, expected)
    except OSError as error:
        if error.errno is None:
            raise DamagedExportError(f"{name} is cut off or damaged; {EXPORT_AGAIN}") from None
        raise ReportError(f"{name} cannot be read ({error.strerror}); check its permissions") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, TypeError) as error:
        if "UTF-8" in str(error):
            raise NotUtf8Error(f"{name} has text that is not UTF-8; {EXPORT_SQLITE}") from None
        raise DamagedExportError(f"{name} is cut off or damaged; {EXPORT_AGAIN}") from None


def _open_table(path: Path) -> pl.LazyFrame:
    """Open a table. An Arrow stream without its end mark was cut off, but polars would take the cut for its end."""
    if path.suffix == ".parquet":
        return pl.scan_parquet(path)
    with path.open("rb") as file:
        file.seek(-min(len(END_MARK), path.stat().st_size), os.SEEK_END)
        if file.read() != END_MARK:
            raise ValueError("no end mark")
    return pl.read_ipc_stream(path).lazy()


def _with_counted_texts(frame: pl.DataFrame, size: DecodedSize, expected: int) -> pl.DataFrame:
    """Return a frame with its categories as texts, and add its bytes to `size`: at least `expected`.

    Raises ReportError above the limits, before anything copies the text of each row.
    """
    frame = frame.with_columns(raw.as_text(column) for column in frame if column.dtype in raw.CATEGORICAL)
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
    """Return integers as SQLite stores them, in 64 bits; others become null, or raw.NOT_A_TIME in a time column."""
    if column.dtype == pl.UInt64:
        return column.reinterpret(signed=True)
    if column.dtype.is_integer() or column.dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Int64)
    empty = pl.Series(column.name, [None], pl.Int64).new_from_index(0, len(column))
    if column.name not in raw.TIMES:
        return empty
    return empty.to_frame().select(pl.when(column.is_not_null()).then(raw.NOT_A_TIME).alias(column.name)).to_series()


def _as_text_or_null(column: pl.Series) -> pl.Series:
    if column.dtype in (pl.String, pl.Binary, *raw.CATEGORICAL):
        return raw.as_text(column)
    return pl.Series(column.name, [None], pl.String).new_from_index(0, len(column))


def _stated_versions(files: Mapping[str, Path], size: DecodedSize) -> tuple[str | None, str | None]:
    """Return the versions of nsys and of the export's schema; None if the export does not state them."""
    for table in META_TABLES:
        if table in files:
            with suppress(NotUtf8Error):
                rows = _read_columns(files[table], size, lambda names: sorted({"name", "value"}.intersection(names)))
                stated = dict(rows.rows()) if rows.width == 2 else {}
                product, schema = (stated.get(f"EXPORT_{name}_VERSION") for name in ("PRODUCT", "SCHEMA"))
                return version_text(product), version_text(schema)
    return None, None
