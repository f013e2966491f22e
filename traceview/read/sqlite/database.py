"""An SQLite export as a file: checked before SQLite sees it, opened read-only, its schema not trusted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from traceview.errors import DamagedExportError, NotAnExportError, NotFoundError, ReportError
from traceview.read.limits import MAX_NAME_BYTES, DecodedSize
from traceview.read.raw import ESSENTIAL
from traceview.read.sqlite.guard import Guard
from traceview.read.sqlite.schema_size import too_large

HEADER = b"SQLite format 3\x00"
EXPORT_AGAIN = "export it again: nsys export --type sqlite REPORT.nsys-rep"


def check_file(path: Path) -> None:
    """Refuse what cannot be a finished export before SQLite sees it."""
    name = shown(path)
    try:
        _refuse_what_is_no_file(path, name)
        with path.open("rb") as file:
            head = file.read(100)
        size = path.stat().st_size
        beside = [suffix for suffix in ("-wal", "-journal") if _holds_something(Path(f"{path}{suffix}"))]
        much = too_large(path) if head.startswith(HEADER) else None
    except OSError as error:
        raise ReportError(f"{name}: cannot be read ({error.strerror}); check its name and permissions") from None
    if not head:
        raise NotAnExportError(f"{name}: the file is empty; {EXPORT_AGAIN}")
    if not head.startswith(HEADER):
        raise NotAnExportError(f"{name}: not an SQLite file; {EXPORT_AGAIN}")
    if beside:
        raise DamagedExportError(
            f"{name}: still being written ({name}{beside[0]} lies beside it); wait for nsys export to end"
        )
    if size < (whole := _size_said(head)):
        raise DamagedExportError(
            f"{name}: cut off, {size} of {whole} bytes are there; copy it whole, or {EXPORT_AGAIN}"
        )
    if much is not None:
        raise NotAnExportError(f"{name}: has {much}, more than any export; {EXPORT_AGAIN}")


def shown(path: Path) -> str:
    """Return a file's name for a message of one line: a name may hold line ends and escape sequences."""
    return "".join(letter if letter.isprintable() else "?" for letter in path.name) or str(path)


def _refuse_what_is_no_file(path: Path, name: str) -> None:
    if path.is_dir():
        raise NotFoundError(f"{name}: is a directory; name the .sqlite file inside it")
    if not path.exists():
        raise NotFoundError(f"{name}: no such file; make it with: nsys export --type sqlite REPORT.nsys-rep")
    if not path.is_file():
        raise NotAnExportError(f"{name}: a pipe or device, not a file; {EXPORT_AGAIN}")


def _holds_something(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _size_said(head: bytes) -> int:
    """Return the file's size as its header states it; 0 where the last writer did not keep it."""
    size = int.from_bytes(head[16:18], "big")
    kept = head[24:28] == head[92:96]
    return int.from_bytes(head[28:32], "big") * (65536 if size == 1 else size) if kept else 0


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an export so that nothing in it can run and nothing beside it is written."""
    address = f"file:{quote(bytes(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.text_factory = _text_decoder(shown(path))
            connection.execute("PRAGMA query_only=ON")
            guard = Guard(connection, path.stat().st_size)
            try:
                yield connection
            except sqlite3.Error as error:
                guard.reraise(error)
                raise
    except sqlite3.Error as error:
        raise damaged(shown(path), error) from None
    except (OverflowError, MemoryError, UnicodeError) as error:  # a name of a table may be no text
        raise damaged(shown(path), error) from None


def _text_decoder(name: str) -> Callable[[bytes], str]:
    """Return a function that decodes SQLite's texts up to MAX_NAME_BYTES, and raises ReportError above the limits."""
    size = DecodedSize(name)

    def decode(raw: bytes) -> str:
        if len(raw) > MAX_NAME_BYTES:
            size.check_text(len(raw))
            raw = raw[:MAX_NAME_BYTES]
        size.total += len(raw)
        if size.total > size.limit:
            size.check(0)
        return raw.decode("utf-8", "replace")

    return decode


def damaged(name: str, error: Exception) -> DamagedExportError:
    """Return the error for what SQLite or Python cannot make sense of."""
    if isinstance(error, sqlite3.Error):
        return DamagedExportError(f"{name}: SQLite cannot read it ({_reason(error)}); {EXPORT_AGAIN}")
    what = "names that are no text" if isinstance(error, UnicodeError) else f"impossible sizes ({error})"
    return DamagedExportError(f"{name}: holds {what}; {EXPORT_AGAIN}")


def real_tables(connection: sqlite3.Connection, name: str) -> dict[str, int]:
    """Return the root page of every ordinary table; views and virtual tables are not looked at."""
    try:
        rows = connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        return {str(table): int(root) for table, root in rows}
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise DamagedExportError(f"{name}: its list of tables is damaged ({_reason(error)}); {EXPORT_AGAIN}") from None


def views_among(connection: sqlite3.Connection, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return those of these tables that are a view or a virtual table, each with what it is; neither is queried."""
    query = "SELECT name, type FROM sqlite_master WHERE type = 'view' OR type = 'table' AND coalesce(rootpage, 0) = 0"
    kinds = {name: "view" if kind == "view" else "virtual table" for name, kind in connection.execute(query)}
    return [(name, kinds[name]) for name in names if name in kinds]


def _reason(error: Exception) -> str:
    """Return what SQLite says without what it quotes from the file."""
    said = " ".join(str(error).split()).split(" - ")[0].split(" near ")[0][:80]
    return "".join(letter for letter in said if letter.isprintable()) or type(error).__name__


def not_an_export(name: str, present: dict[str, int]) -> ReportError:
    """Return the error for a database without StringIds."""
    ours = [table for table in ESSENTIAL if table in present]
    if ours:
        return DamagedExportError(f"{name}: has {ours[0]} but no StringIds, so nothing has a name; {EXPORT_AGAIN}")
    return NotAnExportError(f"{name}: an SQLite file, but not one that Nsight Systems exported; {EXPORT_AGAIN}")


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return a table's column names, in order."""
    return [str(row[0]) for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def primary_key_order(connection: sqlite3.Connection, table: str) -> str:
    """Return the ORDER BY clause of a table WITHOUT ROWID; empty for others, which have the order of their rowids.

    Only for tables WITHOUT ROWID, SQLite lists an index with the name of the table: the primary key.
    """
    query = "SELECT name FROM pragma_index_info(?) WHERE name IN (SELECT name FROM pragma_table_info(?) WHERE pk)"
    rows = connection.execute(f"{query} ORDER BY seqno", (table, table))
    names = [str(name).replace('"', '""') for (name,) in rows]
    return "ORDER BY " + ", ".join(f'"{name}"' for name in names) if names else ""


def rows_of(connection: sqlite3.Connection, table: str, database: str = "main") -> int:
    """Return how many rows a table has. Not with count(*): nothing can stop that where pages lead to each other."""
    quoted = table.replace('"', '""')
    return int(connection.execute(f'SELECT coalesce(sum(1), 0) FROM {database}."{quoted}"').fetchone()[0])


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
            return version_text(found.get("EXPORT_PRODUCT_VERSION")), version_text(found.get("EXPORT_SCHEMA_VERSION"))
    return None, None


def version_text(version: object) -> str | None:
    """Return a version as text; what does not look like one is not passed on."""
    text = str(version)
    return text if version is not None and len(text) < 40 and text.replace(".", "").replace("-", "").isalnum() else None
