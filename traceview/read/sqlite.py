"""Nsight Systems' SQLite export, opened read-only and without trusting its schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import polars as pl

from traceview.errors import DamagedExportError, NotAnExportError, NotFoundError, ReportError
from traceview.read import pages
from traceview.read.raw import ESSENTIAL, NOT_A_TIME, STRINGS, TABLES, TIMES, RawCapture, Table

HEADER = b"SQLite format 3\x00"
EXPORT_AGAIN = "export it again: nsys export --type sqlite REPORT.nsys-rep"
BATCH = 200_000


def read_sqlite(path: str | Path) -> RawCapture:
    """Read the tables and columns that the analysis needs.

    Raises NotFoundError, NotAnExportError or DamagedExportError, each with one line that says what
    to do. The file and its folder stay as they were.
    """
    path = Path(path)
    check_file(path)
    with open_read_only(path) as connection:
        present = real_tables(connection, path.name)
        if STRINGS not in present:
            raise not_an_export(path.name, present)
        problems: list[str] = []
        tables = {
            name: _read_table(connection, path, name, wanted, problems)
            for name, wanted in TABLES.items()
            if name in present
        }
        version, schema = versions(connection, present)
    return RawCapture(path.name, version, schema, tables, tuple(problems))


def check_file(path: Path) -> None:
    """Refuse what cannot be a finished export before SQLite sees it."""
    name = path.name
    if path.is_dir():
        raise NotFoundError(f"{name}: is a directory; name the .sqlite file inside it")
    if not path.exists():
        raise NotFoundError(f"{name}: no such file; make it with: nsys export --type sqlite REPORT.nsys-rep")
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise ReportError(f"{name}: cannot be read ({error.strerror}); check its permissions") from None
    if not head:
        raise NotAnExportError(f"{name}: the file is empty; {EXPORT_AGAIN}")
    if not head.startswith(HEADER):
        raise NotAnExportError(f"{name}: not an SQLite file; {EXPORT_AGAIN}")
    for suffix in ("-wal", "-journal"):
        beside = path.with_name(name + suffix)
        if beside.exists() and beside.stat().st_size:
            raise DamagedExportError(
                f"{name}: still being written ({beside.name} lies beside it); wait for nsys export to end"
            )
    page = int.from_bytes(head[16:18], "big") or 512
    page = 65536 if page == 1 else page
    pages_said = int.from_bytes(head[28:32], "big")
    if pages_said and path.stat().st_size < pages_said * page:
        raise DamagedExportError(
            f"{name}: cut off, {path.stat().st_size} of {pages_said * page} bytes are there; "
            f"copy it whole, or {EXPORT_AGAIN}"
        )


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an export so that nothing in it can run and nothing beside it is written."""
    address = f"file:{quote(bytes(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute("PRAGMA query_only=ON")
            connection.execute("PRAGMA cell_size_check=ON")
            yield connection
    except sqlite3.Error as error:
        raise DamagedExportError(f"{path.name}: SQLite cannot read it ({_reason(error)}); {EXPORT_AGAIN}") from None
    except (OverflowError, MemoryError) as error:
        raise DamagedExportError(f"{path.name}: holds impossible sizes ({error}); {EXPORT_AGAIN}") from None


def real_tables(connection: sqlite3.Connection, name: str) -> dict[str, int]:
    """Return the root page of every ordinary table; views and virtual tables are not looked at."""
    try:
        rows = connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        return {str(table): int(root) for table, root in rows}
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise DamagedExportError(f"{name}: its list of tables is damaged ({_reason(error)}); {EXPORT_AGAIN}") from None


def _reason(error: Exception) -> str:
    """Return what SQLite says without what it quotes from the file."""
    return str(error).splitlines()[0].split(" - ")[0].split(" near ")[0][:80] if str(error) else type(error).__name__


def not_an_export(name: str, present: dict[str, int]) -> ReportError:
    """Return the error for a database without StringIds."""
    ours = [table for table in ESSENTIAL if table in present]
    if ours:
        return DamagedExportError(f"{name}: has {ours[0]} but no StringIds, so nothing has a name; {EXPORT_AGAIN}")
    return NotAnExportError(f"{name}: an SQLite file, but not one that Nsight Systems exported; {EXPORT_AGAIN}")


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return a table's column names, in order."""
    return [str(row[0]) for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _read_table(
    connection: sqlite3.Connection, path: Path, table: str, wanted: Table, problems: list[str]
) -> pl.DataFrame:
    present = columns_of(connection, table)
    missing = [column for column in wanted.needed if column not in present]
    if missing:
        if table in (*ESSENTIAL, STRINGS):
            raise DamagedExportError(f"{path.name}: the table {table} has no column {missing[0]!r}; {EXPORT_AGAIN}")
        problems.append(f"{table} has no column {missing[0]!r} and was left out")
        return pl.DataFrame()
    columns = [column for column in wanted.columns if column in present]
    if table in ESSENTIAL:
        problems.extend(f"{table} has no column {one!r}" for one in wanted.optional if one not in present)
    if not wanted.text:
        fast = pages.read_integers(path, connection, table, columns)
        if fast is not None:
            return fast
    return _read_slowly(connection, table, columns, wanted.text, problems)


def _read_slowly(
    connection: sqlite3.Connection, table: str, columns: list[str], text: tuple[str, ...], problems: list[str]
) -> pl.DataFrame:
    schema = {column: pl.String if column in text else pl.Int64 for column in columns}
    if not columns:
        return pl.DataFrame()
    # SQLite itself tells the types apart; the rows with a time of another type are counted when they are left out.
    kinds = {column: "text" if column in text else "integer" for column in columns}
    selected = ", ".join(_typed(column, kind) for column, kind in kinds.items())
    strange = [f"typeof(\"{one}\") NOT IN ('null', '{kind}')" for one, kind in kinds.items() if one not in TIMES]
    cursor = connection.execute(f'SELECT {selected} FROM "{table}"')
    frames = []
    while rows := cursor.fetchmany(BATCH):
        frames.append(pl.DataFrame(rows, schema=schema, orient="row"))
    query = f'SELECT count(*) FROM "{table}" WHERE {" OR ".join(strange) or "0"}'
    if odd := int(connection.execute(query).fetchone()[0]):
        problems.append(f"{table}: {odd} rows hold a value of the wrong type there")
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema)


def _typed(column: str, kind: str) -> str:
    """Return SQL for a column in which a value of another type is null, or no time where a time should be."""
    other = f" WHEN 'null' THEN NULL ELSE {NOT_A_TIME + 1} - 1" if column in TIMES else ""
    return f"CASE typeof(\"{column}\") WHEN '{kind}' THEN \"{column}\"{other} END"


def versions(connection: sqlite3.Connection, present: dict[str, int]) -> tuple[str | None, str | None]:
    """Return the versions of nsys and of the export's schema, None where the export does not say."""
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if table in present and {"name", "value"} <= set(columns_of(connection, table)):
            found = dict(
                connection.execute(
                    f"SELECT name, value FROM {table} WHERE name IN (?, ?)",
                    ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"),
                )
            )
            return _short(found.get("EXPORT_PRODUCT_VERSION")), _short(found.get("EXPORT_SCHEMA_VERSION"))
    return None, None


def _short(version: object) -> str | None:
    """Return a version as text; what does not look like one is not passed on."""
    text = str(version)
    return text if version is not None and len(text) < 40 and text.replace(".", "").replace("-", "").isalnum() else None
