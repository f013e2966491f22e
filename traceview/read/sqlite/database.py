"""The database of a capture: the one place that opens it, read-only, and selects its rows.

An export is checked before SQLite opens it: the file is complete, and its schema has a plausible size.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from traceview.errors import DamagedExportError, NotAnExportError, NotFoundError, ReportError
from traceview.read.raw import ESSENTIAL, STRINGS, known_table, problem_of_unread
from traceview.read.source import MAX_NAME_BYTES, MAX_TEXT, DecodedSize, display_name
from traceview.read.sqlite.pages import page_size, schema_pages, stated_pages

# SQLite needs minutes to parse a million tables. Real exports have about 250 tables and views in 0.1 MB of SQL.
MAX_SCHEMA_ENTRIES = 20_000
MAX_SCHEMA_BYTES = 16 << 20
MAX_SCHEMA_PAGES = 20_000


def check_file(path: Path) -> None:
    """Check that a file is a finished SQLite export. Raises ReportError."""
    name = display_name(path)
    try:
        _check_is_file(path, name)
        with path.open("rb") as file:
            head = file.read(100)
        size = path.stat().st_size
        journals = [suffix for suffix in ("-wal", "-journal") if _is_nonempty_file(Path(f"{path}{suffix}"))]
        excess = schema_excess(path) if head.startswith(HEADER) else None
    except OSError as error:
        raise ReportError(f"{name}: cannot be read ({error.strerror}); check its name and permissions") from None
    if len(bytes(path.resolve())) > MAX_PATH:
        raise ReportError(f"{name}: its path has more than {MAX_PATH} bytes, which SQLite cannot open; move the file")
    if not head:
        raise NotAnExportError(f"{name}: the file is empty; {EXPORT_AGAIN}")
    if not head.startswith(HEADER):
        raise NotAnExportError(f"{name}: not an SQLite file; {EXPORT_AGAIN}")
    if journals:
        raise DamagedExportError(
            f"{name}: still being written ({name}{journals[0]} exists); wait until nsys export ends"
        )
    if size < (stated := stated_pages(head) * page_size(head)):
        raise DamagedExportError(
            f"{name}: cut off: the file has {size} of {stated} bytes; copy it again, or {EXPORT_AGAIN}"
        )
    if excess is not None:
        raise NotAnExportError(f"{name}: has {excess}, more than any export; {EXPORT_AGAIN}")


def _check_is_file(path: Path, name: str) -> None:
    if path.is_dir():
        raise NotFoundError(f"{name}: is a directory; name the capture inside it")
    if not path.exists():
        raise NotFoundError(f"{name}: no such file; make it with: nsys export --type sqlite REPORT.nsys-rep")
    if not path.is_file():
        raise NotAnExportError(f"{name}: a pipe or device, not a file; {EXPORT_AGAIN}")


def _is_nonempty_file(path: Path) -> bool:
    with suppress(OSError):  # without such a file, or where its name is too long for one
        return path.stat().st_size > 0
    return False


def schema_excess(path: Path) -> str | None:
    """Return what is too large about a database's schema; None if SQLite can parse it. Raises OSError."""
    entries = stored = 0
    seen = set[int]()
    with path.open("rb") as file:
        for page in schema_pages(file):
            if page.number in seen:
                return "a list of tables that leads back to itself"
            seen.add(page.number)
            entries, stored = entries + len(page.entries), stored + sum(page.entries)
            if entries > MAX_SCHEMA_ENTRIES:
                return f"{entries} tables and views"
            if stored > MAX_SCHEMA_BYTES:
                return f"{stored >> 20} MB of definitions"
            if len(seen) > MAX_SCHEMA_PAGES:
                return "an endless list of tables"
    return None


MAX_PATH = 504  # bytes: 512, less what SQLite appends for a journal (MAX_PATHNAME in os_unix.c)
HEADER = b"SQLite format 3\x00"
EXPORT_AGAIN = "export it again: nsys export --type sqlite REPORT.nsys-rep"
META_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # the second until 2022
PROGRESS_STEP = 200_000  # SQLite instructions between two calls of the progress handler
# A row of six bytes costs some tens of instructions: reading every table of a file ten times stays far below this.
MAX_INSTRUCTIONS, MAX_INSTRUCTIONS_PER_BYTE = 40_000_000, 300


class Export:
    """The open database of a capture. Every command reads its rows here.

    Rows come from the b-tree of an ordinary table: an index may differ from its table, and is never used. Views,
    virtual tables, triggers and computed columns of the file never run. `tables` has the root page of each ordinary
    table. Texts are cut off at MAX_NAME_BYTES, and all bytes that SQLite decodes for them count toward --max-decoded.
    """

    def __init__(self, connection: sqlite3.Connection, guard: Guard, name: str) -> None:
        """Read the list of tables. Raises DamagedExportError."""
        self.connection, self.guard, self.name = connection, guard, name
        self._size = DecodedSize(name)
        connection.text_factory = self._text
        self.tables = self._ordinary_tables()

    def rows(self, table: str) -> str:
        """Return the SQL name of an ordinary table whose rows SQLite then reads in the order of the table's b-tree."""
        if not self._is_without_rowid(table):
            return f"main.{quoted(table)} NOT INDEXED"
        # Such a table is its primary key. SQLite ignores NOT INDEXED here, and may read another index.
        lines = self._pragma("index_list", table)
        return f"main.{quoted(table)} INDEXED BY " + next(quoted(name) for _, name, _, kind, _ in lines if kind == "pk")

    def select(
        self, values: str, table: str, condition: str = "", parameters: Sequence[int | str] = ()
    ) -> sqlite3.Cursor:
        """Return values of the rows of an ordinary table. `condition` is SQL: WHERE, GROUP BY or LIMIT."""
        return self.connection.execute(f"SELECT {values} FROM {self.rows(table)} {condition}", parameters)

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        # Nothing stops SQLite's count(*) on pages that form a cycle; the guard stops sum(1).
        return int(self.select("coalesce(sum(1), 0)", table).fetchone()[0])

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns in order, without computed ones."""
        lines = self._pragma("table_xinfo", table)
        return [str(name) for _, name, _, _, _, _, hidden in lines if not hidden]

    def metadata(self) -> dict[object, object]:
        """Return what the export states about itself, such as EXPORT_SCHEMA_VERSION."""
        for table in META_TABLES:
            if table in self.tables and {"name", "value"} <= set(self.columns(table)):
                return dict(self.select("name, value", table).fetchall())
        return {}

    def counted(self, blob: bytes | None) -> bytes | None:
        """Return a selected blob, and count its bytes as those of texts. Raises ReportError above the limit."""
        self._size.add(len(blob or b""))
        return blob

    def require_strings(self) -> None:
        """Raise ReportError if this is not an export, which has StringIds."""
        if STRINGS in self.tables:
            return
        events = [table for table in ESSENTIAL if table in self.tables]
        if events and "StringTable" in self.tables:
            raise NotAnExportError(
                f"{self.name}: written by nvprof, with CUPTI's records in a form that traceview does not read; capture "
                "the program with: nsys profile"
            )
        if events:
            raise DamagedExportError(
                f"{self.name}: has {events[0]} but no StringIds, so nothing has a name; {EXPORT_AGAIN}"
            )
        raise NotAnExportError(f"{self.name}: an SQLite file, but not an export of Nsight Systems; {EXPORT_AGAIN}")

    def unread_tables(self, names: Iterable[str]) -> list[str]:
        """Return a note for each of these tables that is a view, a virtual table, or written in another letter case.

        Also for each table with rows whose name is that of one of them with a version.
        """
        query = "SELECT name, type, coalesce(rootpage, 0) FROM main.sqlite_master WHERE type IN ('table', 'view')"
        # SQLite's own names of tables ignore the case of ASCII letters, so that there is one entry at most.
        entries = {str(name).lower(): (str(name), kind, root) for name, kind, root in self.connection.execute(query)}
        notes = []
        for name in names:
            entry, kind, root = entries.get(name.lower(), (name, "table", 1))
            if kind == "view" or root == 0:
                kind = "view" if kind == "view" else "virtual table"
                notes.append(f"{name} is a {kind}, not a table: its rows are left out; {EXPORT_AGAIN}")
            elif entry != name:
                notes.append(f"{entry} differs from {name} in letter case: its rows are left out; {EXPORT_AGAIN}")
        versioned = sorted(table for table in self.tables if known_table(table))
        return notes + [problem_of_unread(table) for table in versioned if self.has_rows(table)]

    def has_rows(self, table: str) -> bool:
        """Return whether a table has a row."""
        return self.select("1", table, "LIMIT 1").fetchone() is not None

    def versions(self) -> tuple[str | None, str | None]:
        """Return the versions of nsys and of the export's schema; None if the export does not state them."""
        return stated_versions(self.metadata())

    def _is_without_rowid(self, table: str) -> bool:
        # SQLite lists an index with the name of the table, its primary key, only for tables WITHOUT ROWID.
        return bool(self._pragma("index_info", table))

    def _pragma(self, name: str, table: str) -> list[tuple[Any, ...]]:
        # A table of the file may be called pragma_table_info and hide SQLite's own.
        lines: list[tuple[Any, ...]] = self.connection.execute(f"PRAGMA main.{name}({quoted(table)})").fetchall()
        return lines

    def _ordinary_tables(self) -> dict[str, int]:
        query = "SELECT name, rootpage FROM main.sqlite_master WHERE type = 'table' AND rootpage > 0"
        try:
            return {str(table): int(root) for table, root in self.connection.execute(query)}
        except (sqlite3.Error, ValueError, TypeError) as error:
            self.guard.reraise(error if isinstance(error, sqlite3.Error) else None)
            reason = _reason(error)
            raise DamagedExportError(f"{self.name}: its list of tables is damaged ({reason}); {EXPORT_AGAIN}") from None

    def _text(self, raw: bytes) -> str:
        """Decode a text up to MAX_NAME_BYTES. Raises ReportError above the limits."""
        size, count = self._size, len(raw)
        if count > MAX_NAME_BYTES:
            size.check_text(count)
            raw = raw[:MAX_NAME_BYTES]
        size.total += count
        if size.total > size.limit:
            size.check(0)
        return raw.decode("utf-8", "replace")


@contextmanager
def open_export(path: Path, name: str | None = None) -> Iterator[Export]:
    """Open a capture's database. Nothing in it can run, and SQLite writes no file beside it.

    Errors call it `name`; without it, by the name of the file. Raises DamagedExportError.
    """
    name = name or display_name(path)
    address = f"file:{quote(bytes(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            guard = Guard(connection, path.stat().st_size)
            try:
                yield Export(connection, guard, name)
            except sqlite3.Error as error:
                guard.reraise(error)
                raise
            guard.reraise()
    except (sqlite3.Error, OverflowError, MemoryError, UnicodeError) as error:
        raise _damaged_error(name, error) from None


def quoted(name: str) -> str:
    """Return a name of a table or column for use in SQL."""
    return '"' + name.replace('"', '""') + '"'


def typed(column: str, kind: str) -> str:
    """Return SQL for a column in which values of another type are null, so that SQLite does not read their bytes."""
    return f"CASE typeof({quoted(column)}) WHEN '{kind}' THEN {quoted(column)} END"


def _damaged_error(name: str, error: Exception) -> DamagedExportError:
    """Return the error for a file that SQLite or Python cannot read."""
    if isinstance(error, sqlite3.Error):
        return DamagedExportError(f"{name}: SQLite cannot read it ({_reason(error)}); {EXPORT_AGAIN}")
    # The name of a table may be invalid UTF-8.
    what = "names that are not text" if isinstance(error, UnicodeError) else f"impossible sizes ({error})"
    return DamagedExportError(f"{name}: holds {what}; {EXPORT_AGAIN}")


def _reason(error: Exception) -> str:
    """Return SQLite's message without the text that it quotes from the file."""
    message = " ".join(str(error).split()).split(" - ")[0].split(" near ")[0][:80]
    return "".join(letter for letter in message if letter.isprintable()) or type(error).__name__


def stated_versions(metadata: Mapping[object, object]) -> tuple[str | None, str | None]:
    """Return the versions of nsys and of an export's schema; None for what the metadata does not state."""
    product, schema = (metadata.get(f"EXPORT_{name}_VERSION") for name in ("PRODUCT", "SCHEMA"))
    return version_text(product), version_text(schema)


def version_text(version: object) -> str | None:
    """Return a version as text; None if it does not look like a version."""
    text = str(version)
    return text if version is not None and len(text) < 40 and text.replace(".", "").replace("-", "").isalnum() else None


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

    def reraise(self, error: sqlite3.Error | None = None) -> None:
        """Raise the exception that was kept while SQLite ran, if there is one.

        A signal that arrives as Python enters a callback is raised before the callback can keep it. SQLite then reports
        an interruption that the guard did not cause: this is a KeyboardInterrupt.
        """
        if self.raised is not None:
            raise self.raised
        if "interrupted" in str(error) and self.left >= 0:
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
