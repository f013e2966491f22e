"""The copy: a new database into which what stays is put, table by table; the capture is only read."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from traceview.errors import OutputError
from traceview.read import raw
from traceview.read.database import damaged, not_an_export, rows_of, shown
from traceview.read.formats import as_sqlite
from traceview.read.guard import Guard
from traceview.redact import keep
from traceview.redact.names import Names
from traceview.redact.secrets import Secrets, words_of_environment
from traceview.report.write import check_place

Step = Callable[[str, float], None]
PROCESS = "(({} >> 24) & 16777215)"


@dataclass(frozen=True, slots=True)
class Redacted:
    """What was removed: rows of each table that are not in the copy and what they said, secrets by kind."""

    rows: tuple[tuple[str, int, str], ...]
    serial_numbers: int
    secrets: Mapping[str, int]
    hashed: bool


def redact(report: str | Path, out: str | Path, *, hash_names: bool = False, progress: Step | None = None) -> Redacted:
    """Write a copy of a capture that is safe to share, as SQLite, whole or not at all.

    With `hash_names`, names of ranges, kernels, threads and programs are hashed. Raises ReportError when
    the capture cannot be read, OutputError when `out` exists or cannot be written.
    """
    report, out = Path(report), Path(out)
    step = progress or (lambda _step, _done: None)
    with as_sqlite(report) as export:
        if out.exists() or out.is_symlink():
            raise OutputError(f"{out.name}: exists; redact writes a new file, so name another")
        check_place(out)
        with _new_file(out) as part, _opened(part, export, report) as (connection, guard):
            return _Copy(connection, guard, shown(report), hash_names).make(step)


@contextmanager
def _new_file(out: Path) -> Iterator[Path]:
    """Yield a file beside `out` that takes its place when all went well, and else is removed."""
    try:
        handle, name = tempfile.mkstemp(prefix=".traceview-", suffix=".part", dir=out.parent)
        os.close(handle)
    except OSError as error:
        raise OutputError(f"{out.name}: cannot be written ({error.strerror}); name another place for it") from None
    part = Path(name)
    try:
        yield part
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        part.replace(out)
    except OSError as error:
        raise OutputError(f"{out.name}: cannot be written ({error.strerror}); name another place for it") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def _opened(part: Path, export: Path, report: Path) -> Iterator[tuple[sqlite3.Connection, Guard]]:
    """Open the copy with the capture attached as `source`, read-only; nothing in the capture can run."""
    try:
        with closing(sqlite3.connect(f"file:{quote(bytes(part.resolve()))}", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            connection.execute("PRAGMA journal_mode=OFF")
            address = f"file:{quote(bytes(export.resolve()))}?mode=ro&immutable=1"
            connection.execute("ATTACH ? AS source", (address,))
            guard = Guard(connection, export.stat().st_size)
            try:
                with connection:
                    yield connection, guard
            except sqlite3.Error as error:
                guard.reraise(error)
                raise
            guard.reraise()
    except sqlite3.Error as error:
        if "full" in str(error) or "disk I/O" in str(error):
            raise OutputError("the copy cannot be written (no space is left, or the disk fails)") from None
        raise damaged(shown(report), error) from None
    except (OverflowError, MemoryError, UnicodeError) as error:  # a name of a table may be no text
        raise damaged(shown(report), error) from None


class _Copy:
    """One copy being made."""

    def __init__(self, connection: sqlite3.Connection, guard: Guard, file: str, hashed: bool) -> None:
        self.connection, self.guard, self.hashed = connection, guard, hashed
        connection.execute("BEGIN")
        self.present = self._tables(file)
        self.columns = {table: self._columns(table) for table in self.present if keep.is_kept(table)}
        self.secrets = Secrets(self._private_words())
        self.names = Names(self.secrets, hashed)
        self.removed: list[tuple[str, int, str]] = []
        self.serials: dict[str, str] = {}

    def _tables(self, file: str) -> list[str]:
        rows = self.connection.execute(
            "SELECT name FROM source.sqlite_master WHERE type = 'table' AND rootpage > 0 "
            "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
        )
        present = [str(name) for (name,) in rows]
        if raw.STRINGS not in present:
            raise not_an_export(file, dict.fromkeys(present, 0))
        return present

    def _columns(self, table: str) -> dict[str, str]:
        """Return the declared type of each column that is stored and has a plain name."""
        rows = self.connection.execute("SELECT name, type, pk, hidden FROM pragma_table_xinfo(?, 'source')", (table,))
        found = [(str(name), str(kind).upper(), bool(key)) for name, kind, key, hidden in rows if not hidden]
        alone = sum(key for *_, key in found) == 1
        return {
            name: "INTEGER PRIMARY KEY"
            if key and alone and kind == "INTEGER"
            else (kind if kind in ("INTEGER", "INT", "REAL", "TEXT", "BLOB", "BOOLEAN") else "")
            for name, kind, key in found
            if keep.PLAIN.fullmatch(name)
        }

    def make(self, step: Step) -> Redacted:
        """Copy what stays and return what did not."""
        self._functions()
        self._gpus()
        self._programs()
        tables = sorted(self.columns, key=lambda table: (table == raw.STRINGS, table))
        for index, table in enumerate(tables):
            step(f"copy {table}", index / len(tables))
            self._copy(table)
        for table in self.present:
            if table not in self.columns:
                self._note(table, 0)
        return Redacted(tuple(self.removed), len(self.serials), dict(self.secrets.found), self.hashed)

    def _private_words(self) -> dict[str, str]:
        """Return the capture's own host, user and keys: names may hold them too."""
        found: dict[str, str] = {}
        for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA"):
            if {"name", "value"} <= set(self.columns.get(table, ())):
                for name, value in self.connection.execute(f'SELECT name, value FROM source."{table}"'):
                    if not isinstance(name, str) or not isinstance(value, str):
                        continue
                    if "ENVIRONMENT" in name.upper():
                        found |= words_of_environment(value)
                    elif name.rsplit(":", 1)[-1] in keep.WHO:
                        found[value] = "host or user"
        return found

    def _functions(self) -> None:
        makers = {"word": self.names.word, "range": self.names.range, "kernel": self.names.kernel}
        makers["program"] = lambda text: self.names.range(text.replace("\\", "/").rsplit("/", 1)[-1])
        makers["serial"] = lambda text: self.serials.get(text, "")
        for name, make in makers.items():
            self.connection.create_function(f"as_{name}", 1, self.guard.watched(_once(make), ""), deterministic=True)

    def _gpus(self) -> None:
        """Make up a serial number for each GPU: two GPUs stay two, and neither is anybody's."""
        seen: set[str] = set()
        for table, columns in self.columns.items():
            if keep.SERIAL in columns:
                rows = self.connection.execute(f'SELECT DISTINCT uuid FROM source."{table}"')
                seen.update(uuid for (uuid,) in rows if isinstance(uuid, str))
        self.serials = {uuid: f"00000000-0000-0000-0000-{index:012d}" for index, uuid in enumerate(sorted(seen))}

    def _programs(self) -> None:
        """Find out which programs were traced, and which strings what stays refers to."""
        self.connection.execute("CREATE TEMP TABLE traced (process INTEGER PRIMARY KEY)")
        for kind in ("used", "of_api", "of_range"):
            self.connection.execute(f"CREATE TEMP TABLE {kind} (id INTEGER PRIMARY KEY)")
        for table, columns in self.columns.items():
            events = table.startswith("CUPTI_ACTIVITY_KIND_") or table in (raw.NVTX, *raw.MPI)
            for owner in set(keep.OWNERS) & set(columns) if events else ():
                self.connection.execute(
                    f'INSERT OR IGNORE INTO temp.traced SELECT {PROCESS.format(owner)} FROM source."{table}" '
                    f"WHERE typeof({owner}) = 'integer'"
                )
        for table, columns in self.columns.items():
            for column in set(keep.IDS) & set(columns):
                self._use(table, column)

    def _use(self, table: str, column: str) -> None:
        kinds = ["used"]
        if column == "textId" or table == "ThreadNames":
            kinds.append("of_range")
        elif column == "nameId":
            kinds.append("of_api")
        for kind in kinds:
            self.connection.execute(
                f'INSERT OR IGNORE INTO temp.{kind} SELECT "{column}" FROM source."{table}" '
                f"WHERE typeof(\"{column}\") = 'integer' AND {self._stays(table)}"
            )

    def _stays(self, table: str) -> str:
        """Return SQL that says whether a row of a table stays."""
        columns = self.columns[table]
        if table in keep.ROWS:
            named = " OR ".join(f"name LIKE '{pattern}'" for pattern in keep.ROWS[table])
            return f"({named})" if "name" in columns else "0"
        if table in keep.DIRECTORIES:
            owner = next((name for name in keep.OWNERS if name in columns), None)
            return f"{PROCESS.format(owner)} IN (SELECT process FROM temp.traced)" if owner else "0"
        if table == "DIAGNOSTIC_EVENT":
            return "0" if self.hashed or "text" not in columns else "text NOT LIKE '%/%' AND text NOT LIKE '%=%'"
        return "id IN (SELECT id FROM temp.used)" if table == raw.STRINGS else "1"

    def _copy(self, table: str) -> None:
        columns = self.columns[table]
        if not columns:
            self._note(table, 0)
            return
        declared = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        self.connection.execute(f'CREATE TABLE main."{table}" ({declared})')
        listed = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(self._value(table, name) for name in columns)
        added = self.connection.execute(
            f'INSERT INTO main."{table}" ({listed}) SELECT {values} FROM source."{table}" WHERE {self._stays(table)}'
        ).rowcount
        self._note(table, added)

    def _value(self, table: str, column: str) -> str:
        """Return SQL for a column as the copy has it: a text that nobody vouches for becomes an empty one."""
        quoted = f'"{column}"'
        if column in keep.GONE:
            return "NULL"
        as_text = "''"
        if table == raw.STRINGS and column == "value":
            as_text = self._string()
        elif table == "TARGET_INFO_SYSTEM_ENV" and column == "devStateName":
            as_text = f"CASE {quoted} WHEN '{keep.LOCAL}' THEN {quoted} ELSE '' END"
        elif column in keep.words_of(table):
            as_text = f"as_word(CAST({quoted} AS BLOB))"
        elif column in keep.NAMES.get(table, ()):
            as_text = f"as_{'program' if table == 'PROCESSES' else 'range'}(CAST({quoted} AS BLOB))"
        elif column == keep.SERIAL:
            as_text = f"as_serial(CAST({quoted} AS BLOB))"
        return f"CASE typeof({quoted}) WHEN 'text' THEN {as_text} WHEN 'blob' THEN x'' ELSE {quoted} END"

    @staticmethod
    def _string() -> str:
        text = "CAST(value AS BLOB)"
        return (
            f"CASE WHEN id IN (SELECT id FROM temp.of_api) THEN as_word({text}) "
            f"WHEN id IN (SELECT id FROM temp.of_range) THEN as_range({text}) ELSE as_kernel({text}) END"
        )

    def _note(self, table: str, copied: int) -> None:
        rows = rows_of(self.connection, table, "source")
        if rows > copied:
            name = table if keep.PLAIN.fullmatch(table) else "a table with another name"
            self.removed.append((name, rows - copied, keep.WHAT.get(table, keep.UNREAD)))


def _once(make: Callable[[str], str]) -> Callable[[bytes], str]:
    """Return a function for SQL that makes each text once."""
    made: dict[bytes, str] = {}

    def of(text: bytes) -> str:
        if text not in made:
            made[text] = make(text.decode("utf-8", "replace"))
        return made[text]

    return of
