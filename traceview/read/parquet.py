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
from traceview.read.source import DecodedSize, display_name, private_folder, size_text, table_files
from traceview.read.sqlite.database import META_TABLES, stated_versions
from traceview.read.sqlite.reader import longest_text, write_sqlite

EXPORT_AGAIN = "export it again: nsys export --type parquetdir REPORT.nsys-rep"
EXPORT_SQLITE = "export it as SQLite, which may have any text: nsys export --type sqlite REPORT.nsys-rep"
END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # end of an Arrow stream
MAX_ROWS_PER_BYTE, MIN_SUSPICIOUS_ROWS = 16, 100_000  # real tables stay far below
# Reads files, and prints a line before each. What polars refuses by itself is named where the table is read.
TRIAL = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]), int(sys.argv[1])))
import polars
for path in sys.argv[2:]:
    print(flush=True)
    try:
        polars.read_ipc_stream(path) if path.endswith(".arrow") else polars.read_parquet(path)
    except Exception:
        pass
"""
TRIAL_BYTES = 256 << 20  # polars with two threads takes 112 MB before it reads anything


class NotUtf8Error(DamagedExportError):
    """A table has text in the encoding of a Windows in another language, as the name of its time zone."""


class TableFolderReader:
    """Reads folders that `nsys export --type parquetdir` or `--type arrowdir` writes."""

    kind = "folder of tables"

    def matches(self, path: Path, head: bytes) -> bool:
        """Return whether a path is such a folder."""
        return not head and bool(table_files(path))

    def check(self, path: Path) -> None:
        """Accept every folder: its tables are checked as they are read."""

    def read(self, path: Path, _wanted: Wanted | None = None) -> RawCapture:
        """Read the tables that the analysis needs. Raises DamagedExportError or ReportError."""
        size, files = DecodedSize(display_name(path)), {file.stem: file for file in table_files(path)}
        _check_tables([file for name, file in files.items() if name in (*raw.TABLES, *META_TABLES)], size)
        problems = [raw.problem_of_unread(name) for name in files if raw.known_table(name)]
        tables = {name: _read_table(files[name], name, size, problems) for name in raw.TABLES if name in files}
        return RawCapture(path.name, *stated_versions(_metadata(files, size)), tables, tuple(problems))

    @contextmanager
    def as_sqlite(self, path: Path) -> Iterator[Path]:
        """Yield a temporary SQLite export of all tables. Raises DamagedExportError or ReportError."""
        with private_folder(path) as folder:
            yield write_sqlite(display_name(path), _all_tables(path), folder)


def _all_tables(folder: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    size, files = DecodedSize(display_name(folder)), table_files(folder)
    _check_tables(files, size)
    for path in files:
        with suppress(NotUtf8Error) if path.stem in META_TABLES else nullcontext():
            yield path.stem, _read_columns(path, size, list)


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
        last = files[len(done.stdout) - 1]
        raise DamagedExportError(
            f"{size.name}: {display_name(last)} is damaged, or decodes to more than {size_text(size.limit)}; "
            f"{EXPORT_AGAIN}, or raise the limit: --max-decoded {size_text(2 * size.limit)}"
        )


def _read_table(path: Path, table: str, size: DecodedSize, problems: list[str]) -> pl.DataFrame:
    """Read a table's wanted columns as integers and texts; rows with a value of another type are counted."""
    wanted = partial(raw.wanted_columns, table=table, problems=problems, file=size.name, remedy=EXPORT_AGAIN)
    frame = _read_columns(path, size, wanted)
    types = {name: pl.String if name in raw.TABLES[table].text else pl.Int64 for name in frame.columns}
    wrong = [name for name, kind in types.items() if frame[name].dtype != kind]
    rows = frame.select(pl.any_horizontal(False, pl.col(set(wrong).difference(raw.TIMES)).is_not_null())).to_series()
    if count := int(rows.sum()):
        problems.append(raw.problem_of_rows(table, count, "with a value of the wrong type, which is ignored"))
    return frame.with_columns(
        pl.when(pl.col(name).is_not_null())
        .then(pl.lit(raw.NOT_A_TIME if name in raw.TIMES else None, types[name]))
        .alias(name)
        for name in wrong
    )


def _read_columns(path: Path, size: DecodedSize, choose: Callable[[list[str]], list[str] | None]) -> pl.DataFrame:
    """Return the columns of a file that are chosen from its names, as raw.as_stored, and count their bytes."""
    name = f"{size.name}: {display_name(path)}"
    try:
        table = _open_table(path)
        columns = choose(table.collect_schema().names()) or []
        rows = table.select(pl.len()).collect().item()
        if rows > MIN_SUSPICIOUS_ROWS + MAX_ROWS_PER_BYTE * path.stat().st_size:
            raise DamagedExportError(f"{name} claims {rows} rows, more than its size can hold; {EXPORT_AGAIN}")
        frame = table.select(columns).collect()
        size.check(int(frame.estimated_size()))
        frame = pl.DataFrame(list(map(raw.as_stored, frame)))
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, TypeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise ReportError(f"{name} cannot be read ({error.strerror}); check its permissions") from None
        if "UTF-8" in str(error):
            raise NotUtf8Error(f"{name} has text that is not UTF-8; {EXPORT_SQLITE}") from None
        raise DamagedExportError(f"{name} is cut off or damaged; {EXPORT_AGAIN}") from None
    size.check_text(max(map(longest_text, frame), default=0))
    size.add(int(frame.estimated_size()))
    return frame


def _open_table(path: Path) -> pl.LazyFrame:
    """Open a table. An Arrow stream without its end mark was cut off, but polars would take the cut for its end."""
    if path.suffix == ".parquet":
        return pl.scan_parquet(path)
    with path.open("rb") as file:
        file.seek(-min(len(END_MARK), path.stat().st_size), os.SEEK_END)
        if file.read() != END_MARK:
            raise ValueError("no end mark")
    return pl.read_ipc_stream(path).lazy()


def _metadata(files: Mapping[str, Path], size: DecodedSize) -> dict[object, object]:
    """Return what the export states about itself, such as EXPORT_SCHEMA_VERSION."""
    for table in META_TABLES:
        with suppress(NotUtf8Error, KeyError):
            stated = _read_columns(files[table], size, lambda names: sorted({"name", "value"}.intersection(names)))
            return dict(stated.rows()) if stated.width == 2 else {}
    return {}
