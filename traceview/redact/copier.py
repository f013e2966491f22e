"""Copies the kept part of a capture into a new database; keep.py lists what is kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping

from traceview.frozen import frozen
from traceview.model.scopes import OP, SCOPE_KINDS
from traceview.read import raw
from traceview.read.sqlite.database import Guard, count_rows, not_an_export_error
from traceview.redact import keep
from traceview.redact.secrets import HOST_OR_USER, NameRedactor, Secrets, words_of_environment

Step = Callable[[str, float], None]
PROCESS = "(({} >> 24) & 16777215)"


@frozen
class RemovedRows:
    """The removed rows of a table, and what they contain."""

    table: str
    count: int
    content: str


@frozen
class Redacted:
    """What was removed: rows, the number of columns of kept tables and of serial numbers of GPUs, secrets by kind."""

    rows: tuple[RemovedRows, ...]
    columns: int
    serial_numbers: int
    secrets: Mapping[str, int]
    hashed: bool


class CaptureCopier:
    """Copies the kept tables, columns and rows of one capture, attached as `source`, into the main database."""

    def __init__(self, connection: sqlite3.Connection, guard: Guard, file: str, hashed: bool, encoding: str) -> None:
        """Read which tables and columns the capture has, and its private words. Raises ReportError."""
        self.connection, self.guard, self.hashed, self.encoding = connection, guard, hashed, encoding
        connection.execute("BEGIN")
        self.present = self._table_names(file)
        self.dropped_columns = 0
        self.columns = {table: self._column_types(table) for table in self.present if table in keep.COLUMNS}
        self.secrets = Secrets(self._private_words())
        self.names = NameRedactor(self.secrets, hashed)
        self.removed: dict[tuple[str, str], int] = {}
        self.serials: dict[str, str] = {}

    def _table_names(self, file: str) -> list[str]:
        rows = self.connection.execute(
            "SELECT name FROM source.sqlite_master WHERE type = 'table' AND rootpage > 0 "
            "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
        )
        present = [str(name) for (name,) in rows]
        if raw.STRINGS not in present:
            raise not_an_export_error(file, dict.fromkeys(present, 0))
        return present

    def _column_types(self, table: str) -> dict[str, str]:
        """Return the declared type of each stored column that is kept."""
        rows = self.connection.execute("SELECT name, type, pk, hidden FROM pragma_table_xinfo(?, 'source')", (table,))
        stored = [(str(name), str(kind).upper(), bool(key)) for name, kind, key, hidden in rows if not hidden]
        single_key = sum(key for *_, key in stored) == 1
        self.dropped_columns += sum(name not in keep.COLUMNS[table] for name, *_ in stored)
        return {
            name: "INTEGER PRIMARY KEY"
            if key and single_key and kind == "INTEGER"
            else (kind if kind in ("INTEGER", "INT", "REAL", "TEXT", "BLOB", "BOOLEAN") else "")
            for name, kind, key in stored
            if name in keep.COLUMNS[table]
        }

    def copy(self, step: Step) -> Redacted:
        """Copy the kept data and return what was removed."""
        self._register_functions()
        self._number_gpus()
        self._find_traced_processes()
        self._find_used_strings()
        step("search names", 0.0)
        self.secrets.learn(self._texts("source"))
        tables = sorted(self.columns, key=lambda table: (table == raw.STRINGS, table))
        for index, table in enumerate(tables):
            step(f"copy {table}", 0.1 + 0.8 * index / len(tables))
            self._copy_table(table)
        for table in self.present:
            if table not in self.columns:
                self._count_removed(table, 0)
        rows = tuple(RemovedRows(table, count, content) for (table, content), count in self.removed.items())
        return Redacted(rows, self.dropped_columns, len(self.serials), dict(self.secrets.counts), self.hashed)

    def problem(self) -> str | None:
        """Return what is wrong with the copy: a text in a numeric column, or a match of a secret pattern."""
        for table, columns in self.columns.items():
            numeric = [name for name in columns if name not in self._text_columns(table) and name != keep.SERIAL]
            tests = [f"(typeof(\"{name}\") IN ('text', 'blob') AND length(\"{name}\"))" for name in numeric]
            if not tests:
                continue
            if self.connection.execute(f'SELECT 1 FROM main."{table}" WHERE {" OR ".join(tests)} LIMIT 1').fetchone():
                return f"{table} has a text in a numeric column"
        kind = self.secrets.kind_in(self._texts("main"))
        return None if kind is None else f"a text in the copy still matches the pattern of: {kind}"

    def _text_columns(self, table: str) -> tuple[str, ...]:
        text_columns = (*keep.WORDS.get(table, ()), *keep.NAMES.get(table, ()))
        return tuple(name for name in self.columns[table] if name in text_columns)

    def _texts(self, database: str) -> Iterator[str]:
        """Yield each text of the text columns, from the kept rows."""
        for table in self.columns:
            if table == "PROCESSES" and database == "source":
                continue  # only the last part of a program's path is kept
            kept = self._kept_rows(table) if database == "source" else "1"
            for name in self._text_columns(table):
                rows = self.connection.execute(
                    f'SELECT DISTINCT CAST("{name}" AS BLOB) FROM {database}."{table}" '
                    f"WHERE typeof(\"{name}\") = 'text' AND {kept}"
                )
                yield from (text.decode(self.encoding, "replace") for (text,) in rows)

    def _private_words(self) -> dict[str, str]:
        """Return the capture's host, user and keys, which names may contain, with their kinds."""
        words: dict[str, str] = {}
        for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA"):
            if {"name", "value"} <= set(self.columns.get(table, ())):
                for name, value in self.connection.execute(f'SELECT name, value FROM source."{table}"'):
                    if not isinstance(name, str) or not isinstance(value, str):
                        continue
                    if "ENVIRONMENT" in name.upper():
                        words |= words_of_environment(value)
                    elif name.rsplit(":", 1)[-1] in keep.HOST_OR_USER_SETTINGS:
                        words[value] = HOST_OR_USER
        return words

    def _register_functions(self) -> None:
        """Register the SQL functions as_word, as_range, as_kernel, as_program, as_code and as_serial."""
        makers = {"word": self.names.word, "range": self.names.range, "kernel": self.names.kernel}
        makers["program"], makers["code"] = self.names.program, self.names.code
        makers["serial"] = lambda text: self.serials.get(text, "")
        for name, make in makers.items():
            function = self.guard.watched(_cached_by_text(make, self.encoding), "")
            self.connection.create_function(f"as_{name}", 1, function, deterministic=True)

    def _number_gpus(self) -> None:
        """Give each GPU an invented serial number, so that different GPUs stay different."""
        seen: set[str] = set()
        for table, columns in self.columns.items():
            if keep.SERIAL in columns:
                rows = self.connection.execute(f'SELECT DISTINCT uuid FROM source."{table}"')
                seen.update(uuid for (uuid,) in rows if isinstance(uuid, str))
        self.serials = {uuid: f"00000000-0000-0000-0000-{index:012d}" for index, uuid in enumerate(sorted(seen))}

    def _find_traced_processes(self) -> None:
        """Fill temp.traced with the processes that have events."""
        self.connection.execute("CREATE TEMP TABLE traced (process INTEGER PRIMARY KEY)")
        for table, columns in self.columns.items():
            events = table.startswith("CUPTI_ACTIVITY_KIND_") or table in (raw.NVTX, *raw.MPI)
            for owner in set(keep.OWNERS) & set(columns) if events else ():
                self.connection.execute(
                    f'INSERT OR IGNORE INTO temp.traced SELECT {PROCESS.format(owner)} FROM source."{table}" '
                    f"WHERE typeof({owner}) = 'integer'"
                )

    def _find_used_strings(self) -> None:
        """Fill temp.used_ids with the string ids in kept rows, and range_ids, api_ids and code_ids by kind of name."""
        for ids in ("used_ids", "api_ids", "range_ids", "code_ids"):
            self.connection.execute(f"CREATE TEMP TABLE {ids} (id INTEGER PRIMARY KEY)")
        for table, columns in self.columns.items():
            for column in set(keep.IDS) & set(columns):
                is_range = column == "textId" or table == "ThreadNames"
                kinds = ("range_ids",) if is_range else ("api_ids",) if column == "nameId" else ()
                for ids in ("used_ids", *kinds):
                    self.connection.execute(
                        f'INSERT OR IGNORE INTO temp.{ids} SELECT "{column}" FROM source."{table}" '
                        f"WHERE typeof(\"{column}\") = 'integer' AND {self._kept_rows(table)}"
                    )
        if {"nameId", "kind"} <= set(self.columns.get(raw.SCOPES, ())):
            self.connection.execute(
                f"INSERT OR IGNORE INTO temp.code_ids SELECT nameId FROM source.{raw.SCOPES} "
                f"WHERE typeof(nameId) = 'integer' AND kind <> {SCOPE_KINDS.index(OP)}"
            )

    def _kept_rows(self, table: str) -> str:
        """Return the SQL condition that a kept row of the table meets."""
        columns = self.columns[table]
        if table in keep.ROWS:
            patterns = " OR ".join(f"name LIKE '{pattern}'" for pattern in keep.ROWS[table])
            return f"({patterns})" if "name" in columns else "0"
        if table in keep.PROCESS_TABLES:
            owner = next((name for name in keep.OWNERS if name in columns), None)
            return f"{PROCESS.format(owner)} IN (SELECT process FROM temp.traced)" if owner else "0"
        if table == "DIAGNOSTIC_EVENT":
            return "0" if self.hashed or "text" not in columns else "text NOT LIKE '%/%' AND text NOT LIKE '%=%'"
        return "id IN (SELECT id FROM temp.used_ids)" if table == raw.STRINGS else "1"

    def _copy_table(self, table: str) -> None:
        columns = self.columns[table]
        if not columns:
            self._count_removed(table, 0)
            return
        declared = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        self.connection.execute(f'CREATE TABLE main."{table}" ({declared})')
        names = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(self._redacted_value(table, name) for name in columns)
        copied = self.connection.execute(
            f'INSERT INTO main."{table}" ({names}) SELECT {values} FROM source."{table}" WHERE {self._kept_rows(table)}'
        ).rowcount
        self._count_removed(table, copied)

    def _redacted_value(self, table: str, column: str) -> str:
        """Return the SQL value of a column in the copy. A text outside keep.WORDS and keep.NAMES becomes empty."""
        quoted = f'"{column}"'
        as_text = "''"
        if table == raw.STRINGS and column == "value":
            as_text = self._redacted_string()
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
    def _redacted_string() -> str:
        """Return the SQL value of StringIds.value in the copy."""
        text = "CAST(value AS BLOB)"
        return (
            f"CASE WHEN id IN (SELECT id FROM temp.code_ids) THEN as_code({text}) "
            f"WHEN id IN (SELECT id FROM temp.api_ids) THEN as_word({text}) "
            f"WHEN id IN (SELECT id FROM temp.range_ids) THEN as_range({text}) ELSE as_kernel({text}) END"
        )

    def _count_removed(self, table: str, copied: int) -> None:
        """Count the rows of a table that were not copied."""
        rows = count_rows(self.connection, table, "source")
        if rows > copied:
            known = table in keep.REMOVED or table in keep.COLUMNS
            key = (table, keep.REMOVED.get(table, keep.NOT_NEEDED)) if known else ("other tables", keep.NOT_NEEDED)
            self.removed[key] = self.removed.get(key, 0) + rows - copied


def _cached_by_text(make: Callable[[str], str], encoding: str) -> Callable[[bytes], str]:
    """Return an SQL function that calls `make` once per distinct text."""
    results: dict[bytes, str] = {}

    def lookup(text: bytes) -> str:
        if text not in results:
            results[text] = make(text.decode(encoding, "replace"))
        return results[text]

    return lookup
