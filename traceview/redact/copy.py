"""The copy: a new database that takes the tables, columns and rows that stay; the capture is only read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from traceview.errors import OutputError
from traceview.files import check_file, new_file
from traceview.read import raw
from traceview.read.formats import as_sqlite
from traceview.read.sqlite.database import not_an_export, rows_of, shown
from traceview.read.sqlite.guard import Guard
from traceview.redact import keep
from traceview.redact.databases import attached, encoding_of
from traceview.redact.names import Names
from traceview.redact.secrets import HOST_OR_USER, Secrets, words_of_environment

Step = Callable[[str, float], None]
PROCESS = "(({} >> 24) & 16777215)"


@dataclass(frozen=True, slots=True)
class Redacted:
    """What the copy lacks: rows by table and what they held, columns of the other rows, secrets by kind."""

    rows: tuple[tuple[str, int, str], ...]
    columns: int
    serial_numbers: int
    secrets: Mapping[str, int]
    hashed: bool


def redact(report: str | Path, out: str | Path, *, hash_names: bool = False, progress: Step | None = None) -> Redacted:
    """Write a copy of a capture that is safe to share, as SQLite, whole or not at all.

    With `hash_names`, names of ranges, kernels, threads and programs are hashed. Raises ReportError when
    the capture cannot be read, OutputError when `out` exists or cannot be written, or when the copy would still hold
    something that matches the pattern of a secret.
    """
    report, out = Path(report), Path(out)
    step = progress or (lambda _step, _done: None)
    with as_sqlite(report) as export:
        if out.exists() or out.is_symlink():
            raise OutputError(f"{out.name}: exists; redact writes a new file, so name another")
        check_file(out)
        encoding = encoding_of(export)
        with new_file(out) as part, attached(part, export, report, encoding) as (connection, guard):
            copy = _Copy(connection, guard, shown(report), hash_names, encoding)
            done = copy.make(step)
            step("check the copy", 0.9)
            if (problem := copy.problem()) is not None:
                raise OutputError(f"{out.name}: not written, because {problem}; use --names hash, and report this")
            return done


class _Copy:
    """One copy being made."""

    def __init__(self, connection: sqlite3.Connection, guard: Guard, file: str, hashed: bool, encoding: str) -> None:
        self.connection, self.guard, self.hashed, self.encoding = connection, guard, hashed, encoding
        connection.execute("BEGIN")
        self.present = self._tables(file)
        self.left_out = 0
        self.columns = {table: self._columns(table) for table in self.present if table in keep.COLUMNS}
        self.secrets = Secrets(self._private_words())
        self.names = Names(self.secrets, hashed)
        self.removed: dict[tuple[str, str], int] = {}
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
        """Return the type to declare for each stored column that stays."""
        rows = self.connection.execute("SELECT name, type, pk, hidden FROM pragma_table_xinfo(?, 'source')", (table,))
        stored = [(str(name), str(kind).upper(), bool(key)) for name, kind, key, hidden in rows if not hidden]
        alone = sum(key for *_, key in stored) == 1
        self.left_out += sum(name not in keep.COLUMNS[table] for name, *_ in stored)
        return {
            name: "INTEGER PRIMARY KEY"
            if key and alone and kind == "INTEGER"
            else (kind if kind in ("INTEGER", "INT", "REAL", "TEXT", "BLOB", "BOOLEAN") else "")
            for name, kind, key in stored
            if name in keep.COLUMNS[table]
        }

    def make(self, step: Step) -> Redacted:
        """Copy what stays and return what did not."""
        self._functions()
        self._gpus()
        self._programs()
        step("search the names", 0.0)
        self.secrets.learn(self._texts("source"))
        tables = sorted(self.columns, key=lambda table: (table == raw.STRINGS, table))
        for index, table in enumerate(tables):
            step(f"copy {table}", 0.1 + 0.8 * index / len(tables))
            self._copy(table)
        for table in self.present:
            if table not in self.columns:
                self._note(table, 0)
        removed = tuple((table, rows, what) for (table, what), rows in self.removed.items())
        return Redacted(removed, self.left_out, len(self.serials), dict(self.secrets.found), self.hashed)

    def problem(self) -> str | None:
        """Return what is wrong with the copy; None where no pattern matches and every column has values of its type."""
        for table, columns in self.columns.items():
            stray = [name for name in columns if name not in self._text_columns(table) and name != keep.SERIAL]
            said = " OR ".join(f"(typeof(\"{name}\") IN ('text', 'blob') AND length(\"{name}\"))" for name in stray)
            if said and self.connection.execute(f'SELECT 1 FROM main."{table}" WHERE {said} LIMIT 1').fetchone():
                return f"{table} has a text in a column of numbers"
        kind = self.secrets.kind_in(self._texts("main"))
        return None if kind is None else f"a text in the copy still matches the pattern of: {kind}"

    def _text_columns(self, table: str) -> tuple[str, ...]:
        named = (*keep.WORDS.get(table, ()), *keep.NAMES.get(table, ()))
        return tuple(name for name in self.columns[table] if name in named)

    def _texts(self, database: str) -> Iterator[str]:
        """Yield each text of a column whose texts stay, in the rows that stay."""
        for table in self.columns:
            if table == "PROCESSES" and database == "source":
                continue  # only the last part of a program's path stays
            stays = self._stays(table) if database == "source" else "1"
            for name in self._text_columns(table):
                rows = self.connection.execute(
                    f'SELECT DISTINCT CAST("{name}" AS BLOB) FROM {database}."{table}" '
                    f"WHERE typeof(\"{name}\") = 'text' AND {stays}"
                )
                yield from (text.decode(self.encoding, "replace") for (text,) in rows)

    def _private_words(self) -> dict[str, str]:
        """Return the capture's own host, user and keys: names may hold them too."""
        words: dict[str, str] = {}
        for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA"):
            if {"name", "value"} <= set(self.columns.get(table, ())):
                for name, value in self.connection.execute(f'SELECT name, value FROM source."{table}"'):
                    if not isinstance(name, str) or not isinstance(value, str):
                        continue
                    if "ENVIRONMENT" in name.upper():
                        words |= words_of_environment(value)
                    elif name.rsplit(":", 1)[-1] in keep.WHO:
                        words[value] = HOST_OR_USER
        return words

    def _functions(self) -> None:
        makers = {"word": self.names.word, "range": self.names.range, "kernel": self.names.kernel}
        makers["program"] = self.names.program
        makers["serial"] = lambda text: self.serials.get(text, "")
        for name, make in makers.items():
            function = self.guard.watched(_once(make, self.encoding), "")
            self.connection.create_function(f"as_{name}", 1, function, deterministic=True)

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
        """Return SQL for a column as the copy has it: a text outside keep.WORDS and keep.NAMES becomes an empty one."""
        quoted = f'"{column}"'
        as_text = "''"
        if table == raw.STRINGS and column == "value":
            as_text = self._string()
        elif table == "TARGET_INFO_SYSTEM_ENV" and column == "devStateName":
            as_text = f"CASE {quoted} WHEN '{keep.LOCAL}' THEN {quoted} ELSE '' END"
        elif column in keep.WORDS.get(table, ()):
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
            known = table in keep.WHAT or table in keep.COLUMNS
            key = (table, keep.WHAT.get(table, keep.UNREAD)) if known else ("other tables", keep.UNREAD)
            self.removed[key] = self.removed.get(key, 0) + rows - copied


def _once(make: Callable[[str], str], encoding: str) -> Callable[[bytes], str]:
    """Return a function for SQL that makes each text once."""
    made: dict[bytes, str] = {}

    def lookup(text: bytes) -> str:
        if text not in made:
            made[text] = make(text.decode(encoding, "replace"))
        return made[text]

    return lookup
