"""An SQLite export opened read-only, with limits on what SQLite does with an untrusted file."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from traceview.errors import DamagedExportError, NotAnExportError, ReportError
from traceview.read.limits import MAX_NAME_BYTES, MAX_TEXT, DecodedSize
from traceview.read.raw import ESSENTIAL
from traceview.read.source import display_name

HEADER = b"SQLite format 3\x00"
EXPORT_AGAIN = "export it again: nsys export --type sqlite REPORT.nsys-rep"
META_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # the second until 2022
PROGRESS_STEP = 200_000  # SQLite instructions between two calls of the progress handler
# A row of six bytes costs some tens of instructions: reading every table of a file ten times stays far below this.
MAX_INSTRUCTIONS, MAX_INSTRUCTIONS_PER_BYTE = 40_000_000, 300

Result = TypeVar("Result")


class Guard:
    """Stops a connection that runs more instructions than a file of its size needs: pages that form a cycle never end.

    SQLite discards exceptions (Ctrl-C, SIGTERM) that Python raises inside its callbacks. The guard keeps them, stops
    SQLite, and `reraise` raises them again.
    """

    def __init__(self, connection: sqlite3.Connection, size: int) -> None:
        self.left = MAX_INSTRUCTIONS + MAX_INSTRUCTIONS_PER_BYTE * size
        self.raised: BaseException | None = None
        _harden(connection)
        connection.set_progress_handler(self._on_progress, PROGRESS_STEP)

    def watched(self, function: Callable[[bytes], Result], otherwise: Result) -> Callable[[bytes], Result]:
        """Return `function` for use in SQL: its exceptions are kept for `reraise`, and it then returns `otherwise`."""

        def call(text: bytes) -> Result:
            try:
                return otherwise if self.raised else function(text)
            except BaseException as error:
                self.raised = error
                return otherwise

        return call

    def reraise(self, error: sqlite3.Error | None = None) -> None:
        """Raise the exception that was kept while SQLite ran, if there is one.

        A signal that arrives as Python enters a callback is raised before the callback can keep it. SQLite then reports
        an interruption or a failed function that the guard did not cause: this is a KeyboardInterrupt.
        """
        if self.raised is not None:
            raise self.raised
        message = str(error)
        if "user-defined function" in message or ("interrupted" in message and self.left >= 0):
            raise KeyboardInterrupt from None

    def _on_progress(self) -> int:
        try:
            self.left -= PROGRESS_STEP
            return int(self.left < 0 or self.raised is not None)
        except BaseException as error:
            self.raised = error
            return 1


def _harden(connection: sqlite3.Connection) -> None:
    """Disable SQLite features that only a hostile file uses, as far as this Python version can."""
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    if sys.version_info >= (3, 11):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT)
        connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0)
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an export. Nothing in it can run, and SQLite writes no file beside it."""
    address = f"file:{quote(bytes(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.text_factory = _text_decoder(display_name(path))
            connection.execute("PRAGMA query_only=ON")
            guard = Guard(connection, path.stat().st_size)
            try:
                yield connection
            except sqlite3.Error as error:
                guard.reraise(error)
                raise
    except (sqlite3.Error, OverflowError, MemoryError, UnicodeError) as error:
        raise damaged_error(display_name(path), error) from None


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


def damaged_error(name: str, error: Exception) -> DamagedExportError:
    """Return the error for a file that SQLite or Python cannot read."""
    if isinstance(error, sqlite3.Error):
        return DamagedExportError(f"{name}: SQLite cannot read it ({_reason(error)}); {EXPORT_AGAIN}")
    # The name of a table may be invalid UTF-8.
    what = "names that are not text" if isinstance(error, UnicodeError) else f"impossible sizes ({error})"
    return DamagedExportError(f"{name}: holds {what}; {EXPORT_AGAIN}")


def not_an_export_error(name: str, present: dict[str, int]) -> ReportError:
    """Return the error for a database without StringIds."""
    events = [table for table in ESSENTIAL if table in present]
    if events:
        return DamagedExportError(f"{name}: has {events[0]} but no StringIds, so nothing has a name; {EXPORT_AGAIN}")
    return NotAnExportError(f"{name}: an SQLite file, but not an export of Nsight Systems; {EXPORT_AGAIN}")


def _reason(error: Exception) -> str:
    """Return SQLite's message without the text that it quotes from the file."""
    message = " ".join(str(error).split()).split(" - ")[0].split(" near ")[0][:80]
    return "".join(letter for letter in message if letter.isprintable()) or type(error).__name__


def real_tables(connection: sqlite3.Connection, name: str) -> dict[str, int]:
    """Return the root page of every ordinary table; views and virtual tables are left out."""
    try:
        rows = connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        return {str(table): int(root) for table, root in rows}
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise DamagedExportError(f"{name}: its list of tables is damaged ({_reason(error)}); {EXPORT_AGAIN}") from None


def unread_tables(connection: sqlite3.Connection, names: Iterable[str]) -> list[str]:
    """Return a note for each of these tables that is a view, a virtual table, or written in another letter case."""
    query = "SELECT name, type, coalesce(rootpage, 0) FROM sqlite_master WHERE type IN ('table', 'view')"
    # SQLite's own names of tables ignore the case of ASCII letters, so that there is one entry at most.
    entries = {str(name).lower(): (str(name), kind, root) for name, kind, root in connection.execute(query)}
    notes = []
    for name in names:
        entry, kind, root = entries.get(name.lower(), (name, "table", 1))
        if kind == "view" or root == 0:
            kind = "view" if kind == "view" else "virtual table"
            notes.append(f"{name} is a {kind}, not a table: its rows are left out; {EXPORT_AGAIN}")
        elif entry != name:
            notes.append(f"{entry} differs from {name} in letter case: its rows are left out; {EXPORT_AGAIN}")
    return notes


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return a table's column names, in order."""
    return [str(row[0]) for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def primary_key_order(connection: sqlite3.Connection, table: str) -> str:
    """Return the ORDER BY clause of a table WITHOUT ROWID; empty for other tables, which are in rowid order.

    SQLite lists an index with the name of the table, its primary key, only for tables WITHOUT ROWID.
    """
    query = "SELECT name FROM pragma_index_info(?) WHERE name IN (SELECT name FROM pragma_table_info(?) WHERE pk)"
    rows = connection.execute(f"{query} ORDER BY seqno", (table, table))
    names = [str(name).replace('"', '""') for (name,) in rows]
    return "ORDER BY " + ", ".join(f'"{name}"' for name in names) if names else ""


def count_rows(connection: sqlite3.Connection, table: str, database: str = "main") -> int:
    """Return a table's number of rows. Nothing can stop SQLite's count(*) on pages that form a cycle; sum(1) can be."""
    quoted = table.replace('"', '""')
    return int(connection.execute(f'SELECT coalesce(sum(1), 0) FROM {database}."{quoted}"').fetchone()[0])


def versions(connection: sqlite3.Connection, present: dict[str, int]) -> tuple[str | None, str | None]:
    """Return the versions of nsys and of the export's schema; None if the export does not state them."""
    for table in META_TABLES:
        if table in present and {"name", "value"} <= set(columns_of(connection, table)):
            stated = dict(
                connection.execute(
                    f"SELECT name, value FROM {table} WHERE name IN (?, ?)",
                    ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"),
                )
            )
            return version_text(stated.get("EXPORT_PRODUCT_VERSION")), version_text(stated.get("EXPORT_SCHEMA_VERSION"))
    return None, None


def version_text(version: object) -> str | None:
    """Return a version as text; None if it does not look like a version."""
    text = str(version)
    return text if version is not None and len(text) < 40 and text.replace(".", "").replace("-", "").isalnum() else None
