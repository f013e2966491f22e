"""A copy of a capture that can be shared: it keeps every figure and drops private data.

keep.toml         the tables, columns and rows that are kept; everything else is dropped
shapes.py         the patterns of secrets; those of tokens are in secrets.toml
secrets.py        finds and replaces secrets in texts; keeps or hashes names
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from urllib.parse import quote

from traceview.captures.redact.secrets import NameRedactor, Secrets, program_name, words_of_settings
from traceview.errors import OutputError
from traceview.model.catalogue import read_toml
from traceview.model.stacks import OP, SCOPE_KINDS
from traceview.model.units import quantity
from traceview.read import raw
from traceview.read.formats import as_sqlite
from traceview.read.source import MAX_NAME, DecodedSize, display_name
from traceview.read.sqlite.database import Export, open_export, typed
from traceview.report.files import check_outputs, new_file, refused_as_present

__all__ = ["Redacted", "redact", "summary_lines"]


Step = Callable[[str, float], None]
# The tables, columns and rows that a copy keeps.
_LISTED = read_toml(Path(__file__).with_name("keep.toml"))
_ENUMS = [f"ENUM_{name}" for name in _LISTED["enums"]]
_MORE: Mapping[str, Sequence[str]] = _LISTED["columns"] | dict.fromkeys(_ENUMS, ("id", "name", "label"))
COLUMNS: Mapping[str, frozenset[str]] = {
    table: frozenset((*(raw.TABLES[table].columns if table in raw.TABLES else ()), *_MORE.get(table, ())))
    for table in {**raw.TABLES, **_MORE}
    if table not in (*raw.STACKS, raw.FILE_EVENTS, raw.FILES)
}
ROWS: Mapping[str, Sequence[str]] = _LISTED["rows"]
WORDS: Mapping[str, Sequence[str]] = _LISTED["words"] | dict.fromkeys(_ENUMS, ("name", "label"))
NAMES: Mapping[str, Sequence[str]] = _LISTED["names"]
REMOVED: Mapping[str, str] = _LISTED["removed"]
NOT_NEEDED = "not needed for any figure"
SERIAL = "uuid"
IDS = ("demangledName", "shortName", "mangledName", "nameId", "textId")
OWNERS = ("globalTid", "globalPid")  # (value >> 24) & 0xFFFFFF is the process
PROCESS_TABLES = ("PROCESSES", "ThreadNames")  # these list every program of the machine
LOCAL = "Local (CLI)"
KINDS = ("INTEGER", "INT", "REAL", "TEXT", "BLOB", "BOOLEAN")
PROCESS = "(({} >> 24) & 16777215)"


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """The removed rows of a table, and what they contain."""

    table: str
    count: int
    content: str


@dataclass(frozen=True, slots=True)
class Redacted:
    """What was removed: rows, the number of columns of kept tables and of serial numbers of GPUs, secrets by kind.

    `not_promised` has a sentence for each secret that the copy may still have. `notes` name what is in place of a
    table, such as a view.
    """

    rows: tuple[RemovedRows, ...]
    columns: int
    serial_numbers: int
    secrets: Mapping[str, int]
    hashed: bool
    not_promised: tuple[str, ...]
    notes: tuple[str, ...] = ()


class CaptureCopier:
    """Copies the kept tables, columns and rows of one capture into the database that is attached as `copy`."""

    def __init__(self, export: Export, hashed: bool) -> None:
        """Read which tables and columns the capture has, and its private words. Raises ReportError."""
        export.require_strings()
        self.export, self.connection, self.hashed = export, export.connection, hashed
        self.connection.execute("BEGIN")
        self.present = sorted(table for table in export.tables if not table.startswith("sqlite_"))
        self.dropped_columns = 0
        self.columns = {table: self._column_types(table) for table in self.present if table in COLUMNS}
        self.secrets = Secrets(self._private_words())
        self.names = NameRedactor(self.secrets, hashed)
        self.removed: dict[tuple[str, str], int] = {}
        self.serials: dict[str, str] = {}

    def _column_types(self, table: str) -> dict[str, str]:
        """Return the declared type of each stored column that is kept."""
        stored, alias = self.export.stored_columns(table), self.export.rowid_alias(table)
        self.dropped_columns += sum(column.name not in COLUMNS[table] for column in stored)
        return {
            name: "INTEGER PRIMARY KEY" if name == alias else kind if kind in KINDS else ""
            for name, kind, _ in stored
            if name in COLUMNS[table]
        }

    def copy(self, step: Step) -> Redacted:
        """Copy the kept data and return what was removed."""
        self._register_functions()
        self._number_gpus()
        self._find_traced_processes()
        self._find_used_strings()
        step("search names", 0.0)
        self.secrets.learn(self._source_texts())
        self.export.begin_pass()
        tables = sorted(self.columns, key=lambda table: (table == raw.STRINGS, table))
        for index, table in enumerate(tables):
            step(f"copy {table}", 0.1 + 0.8 * index / len(tables))
            self._copy_table(table)
        for table in self.present:
            if table not in self.columns:
                self._count_removed(table, 0)
        rows = tuple(RemovedRows(table, count, content) for (table, content), count in self.removed.items())
        return Redacted(
            rows,
            self.dropped_columns,
            len(self.serials),
            dict(self.secrets.counts),
            self.hashed,
            self.secrets.not_promised(),
            tuple(self.export.unread_tables(COLUMNS)),
        )

    def problem(self) -> str | None:
        """Return what is wrong with the copy: a text in a numeric column, or a match of a secret pattern."""
        for table, columns in self.columns.items():
            numeric = [name for name in columns if name not in self._text_columns(table) and name != SERIAL]
            tests = [f"(typeof(\"{name}\") IN ('text', 'blob') AND length(\"{name}\"))" for name in numeric]
            if not tests:
                continue
            if self.connection.execute(f'SELECT 1 FROM copy."{table}" WHERE {" OR ".join(tests)} LIMIT 1').fetchone():
                return f"{table} has a text in a numeric column"
        self.export.begin_pass()
        kind = self.secrets.kind_in(self._copied_texts())
        return None if kind is None else f"a text in the copy still matches the pattern of: {kind}"

    def _text_columns(self, table: str) -> tuple[str, ...]:
        text_columns = (*WORDS.get(table, ()), *NAMES.get(table, ()))
        return tuple(name for name in self.columns[table] if name in text_columns)

    def _source_texts(self) -> Iterator[str]:
        """Yield each different text of the text columns, from the kept rows."""
        for table in self.columns:
            for name in self._text_columns(table):
                rows = self.export.select(f'"{name}"', table, f"WHERE {is_text(name)} AND {self._kept_rows(table)}")
                texts = {text for (text,) in rows}
                yield from map(program_name, texts) if table == "PROCESSES" else texts

    def _copied_texts(self) -> Iterator[str]:
        """Yield the texts of the copy's text columns."""
        for table in self.columns:
            for name in self._text_columns(table):
                rows = self.connection.execute(f'SELECT "{name}" FROM copy."{table}" WHERE {is_text(name)}')
                yield from {text for (text,) in rows}

    def _private_words(self) -> dict[str, str]:
        """Return the capture's host, user and keys, which names may contain, with their kinds."""
        rows: list[tuple[object, object]] = []
        for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA"):
            if {"name", "value"} <= set(self.columns.get(table, ())):
                rows += self.export.select("name, value", table, f"WHERE {is_text('value')}")
        if "value" in self.columns[raw.STRINGS]:  # environments of processes, with NUL bytes between the variables
            texts = self.export.select('"value"', raw.STRINGS, f"WHERE {is_text('value')}")
            rows += (("ENVIRONMENT", text) for (text,) in texts if "\0" in text)
        return words_of_settings((str(name), value) for name, value in rows if isinstance(value, str))

    def _register_functions(self) -> None:
        """Register the SQL functions as_word, as_range, ... of a text, and has_kept_name_... for each of ROWS."""
        makers = {"word": self.names.word, "range": self.names.range, "kernel": self.names.kernel}
        makers |= {"program": self.names.program, "code": self.names.code, "call": self.names.call}
        makers |= {
            "message": self.names.message,
            "serial": lambda text: self.serials.get(text, ""),
            "system": lambda text: text * (text == LOCAL),
        }
        for name, make in makers.items():
            self.export.add_function(f"as_{name}", cache(_cut_after(make)), "")
        for table, patterns in ROWS.items():
            kept = re.compile("|".join(map(_like, patterns)), re.IGNORECASE | re.DOTALL)
            self.export.add_function(f"has_kept_name_{table}", partial(_is_match, kept), False)

    def _number_gpus(self) -> None:
        """Give each GPU an invented serial number, so that different GPUs stay different."""
        tables = [table for table, columns in self.columns.items() if SERIAL in columns]
        rows = (row for table in tables for row in self.export.select(SERIAL, table, f"WHERE {is_text('uuid')}"))
        seen = {uuid for (uuid,) in rows}
        self.serials = {uuid: f"00000000-0000-0000-0000-{index:012d}" for index, uuid in enumerate(sorted(seen))}

    def _find_traced_processes(self) -> None:
        """Fill temp.traced with the processes that have events."""
        self.connection.execute("CREATE TEMP TABLE traced (process INTEGER PRIMARY KEY)")
        for table, columns in self.columns.items():
            events = table.startswith("CUPTI_ACTIVITY_KIND_") or table in (raw.NVTX, *raw.MPI)
            for owner in set(OWNERS) & set(columns) if events else ():
                self._insert("OR IGNORE INTO temp.traced", table, PROCESS.format(owner), f"typeof({owner}) = 'integer'")

    def _find_used_strings(self) -> None:
        """Fill temp.used_ids with the string ids in kept rows, and range_ids, api_ids and code_ids by kind of name."""
        for ids in ("used_ids", "api_ids", "range_ids", "code_ids"):
            self.connection.execute(f"CREATE TEMP TABLE {ids} (id INTEGER PRIMARY KEY)")
        for table, columns in self.columns.items():
            for column in set(IDS) & set(columns):
                is_range = column == "textId" or table == "ThreadNames"
                kinds = ("range_ids",) if is_range else ("api_ids",) if column == "nameId" else ()
                for ids in ("used_ids", *kinds):
                    kept = f"typeof(\"{column}\") = 'integer' AND {self._kept_rows(table)}"
                    self._insert(f"OR IGNORE INTO temp.{ids}", table, f'"{column}"', kept)
        if {"nameId", "kind"} <= set(self.columns.get(raw.SCOPES, ())):
            is_code = f"typeof(nameId) = 'integer' AND {typed('kind', 'integer')} <> {SCOPE_KINDS.index(OP)}"
            self._insert("OR IGNORE INTO temp.code_ids", raw.SCOPES, "nameId", is_code)

    def _insert(self, into: str, table: str, values: str, condition: str) -> int:
        """Insert values of the rows of a table that meet a condition, and return their number."""
        rows = f"SELECT {values} FROM {self.export.rows(table)} WHERE {condition}"
        return self.connection.execute(f"INSERT {into} {rows}").rowcount

    def _kept_rows(self, table: str) -> str:
        """Return the SQL condition that a kept row of the table meets."""
        columns = self.columns[table]
        if table in ROWS:
            return text_meets(f"has_kept_name_{table}", "name", otherwise=0) if "name" in columns else "0"
        if table in PROCESS_TABLES:
            owner = next((name for name in OWNERS if name in columns), None)
            return f"{PROCESS.format(typed(owner, 'integer'))} IN (SELECT process FROM temp.traced)" if owner else "0"
        if table == "DIAGNOSTIC_EVENT":
            return "1" if "text" in columns else "0"
        return f"{typed('id', 'integer')} IN (SELECT id FROM temp.used_ids)" if table == raw.STRINGS else "1"

    def _copy_table(self, table: str) -> None:
        columns = self.columns[table]
        if not columns:
            self._count_removed(table, 0)
            return
        declared = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        self.connection.execute(f'CREATE TABLE copy."{table}" ({declared})')
        names = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(self._redacted_value(table, name) for name in columns)
        copied = self._insert(f'INTO copy."{table}" ({names})', table, values, self._kept_rows(table))
        self._count_removed(table, copied)

    def _redacted_value(self, table: str, column: str) -> str:
        """Return the SQL value of a column in the copy. A text outside WORDS and NAMES becomes empty."""
        quoted = f'"{column}"'
        as_text = "''"
        if table == raw.STRINGS and column == "value":
            as_text = self._redacted_string()
        elif table == "TARGET_INFO_SYSTEM_ENV" and column == "devStateName":
            as_text = f"as_system(CAST({quoted} AS BLOB))"
        elif column in WORDS.get(table, ()):
            as_text = f"as_{'message' if table == raw.DIAGNOSTICS else 'word'}(CAST({quoted} AS BLOB))"
        elif column in NAMES.get(table, ()):
            as_text = f"as_{'program' if table == 'PROCESSES' else 'range'}(CAST({quoted} AS BLOB))"
        elif column == SERIAL:
            as_text = f"as_serial(CAST({quoted} AS BLOB))"
        return f"CASE typeof({quoted}) WHEN 'text' THEN {as_text} WHEN 'blob' THEN x'' ELSE {quoted} END"

    @staticmethod
    def _redacted_string() -> str:
        """Return the SQL value of StringIds.value in the copy."""
        text = "CAST(value AS BLOB)"
        return (
            f"CASE WHEN id IN (SELECT id FROM temp.code_ids) THEN as_code({text}) "
            f"WHEN id IN (SELECT id FROM temp.api_ids) THEN as_call({text}) "
            f"WHEN id IN (SELECT id FROM temp.range_ids) THEN as_range({text}) ELSE as_kernel({text}) END"
        )

    def _count_removed(self, table: str, copied: int) -> None:
        """Count the rows of a table that were not copied."""
        rows = self.export.count(table)
        if rows > copied:
            known = table in REMOVED or table in COLUMNS
            key = (table, REMOVED.get(table, NOT_NEEDED)) if known else ("other tables", NOT_NEEDED)
            self.removed[key] = self.removed.get(key, 0) + rows - copied


def is_text(column: str) -> str:
    """Return the SQL condition that a value is a text."""
    return f"typeof(\"{column}\") = 'text'"


def text_meets(function: str, column: str, otherwise: int) -> str:
    """Return the SQL condition that a function of a text is true; `otherwise` is the result for other values."""
    return f'CASE WHEN {is_text(column)} THEN {function}(CAST("{column}" AS BLOB)) ELSE {otherwise} END'


def _is_match(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.fullmatch(text) is not None


def _cut_after(make: Callable[[str], str]) -> Callable[[str], str]:
    """Return `make` with results as long as a name of a report is, and one letter more, which shows that it is cut.

    A text ends where the reader stopped, maybe inside a secret: `make` does not recognise what is left of it.
    """
    return lambda text: make(text)[: MAX_NAME + 1]


def _like(pattern: str) -> str:
    """Return the regular expression of a LIKE pattern whose only wildcard is %."""
    return ".*".join(map(re.escape, pattern.split("%")))


def redact(report: str | Path, out: str | Path, *, hash_names: bool = False, progress: Step | None = None) -> Redacted:
    """Write a copy of a capture that is safe to share, as SQLite. A failure leaves no file.

    With `hash_names`, the names of ranges, kernels, threads and programs are hashed. Raises ReportError when the
    capture cannot be read. Raises OutputError when `out` exists or cannot be written, or when the copy still matches
    the pattern of a secret.
    """
    report, out = Path(report), Path(out)
    step = progress or (lambda _step, _done: None)
    with as_sqlite(report) as database:
        if os.path.lexists(out):
            raise refused_as_present(out)
        check_outputs((report,), (out,))
        with new_file(out, replaces=False) as part, open_with_copy(part, database, display_name(report)) as export:
            copier = CaptureCopier(export, hash_names)
            redacted = copier.copy(step)
            step("check the copy", 0.9)
            if (problem := copier.problem()) is not None:
                raise OutputError(f"{out.name}: not written, because {problem}; use --names hash, and report this")
            return redacted


@contextmanager
def open_with_copy(part: Path, database: Path, name: str) -> Iterator[Export]:
    """Open the capture `name` with the new file `part` attached as `copy`, and commit what is written there.

    The copy cannot become larger than the capture by more than --max-decoded: rows may share pages.
    """
    size = DecodedSize(name)
    with open_export(database, name) as export:
        execute = export.connection.execute
        execute("ATTACH ? AS copy", (f"file:{quote(bytes(part.resolve()))}?mode=rw",))
        execute("PRAGMA copy.journal_mode=OFF")
        page_bytes = execute("PRAGMA copy.page_size").fetchone()[0]
        most = (database.stat().st_size + size.limit) // page_bytes + 1
        execute(f"PRAGMA copy.max_page_count={most}")
        try:
            with export.connection:
                yield export
        except sqlite3.Error as error:
            if "full" not in str(error) and "disk I/O" not in str(error):
                raise
            if part.stat().st_size >= (most - 1) * page_bytes:
                size.check(size.limit + 1)
            raise OutputError("the copy cannot be written (no space left, or a disk error)") from None


def summary_lines(redacted: Redacted) -> list[str]:
    """Return the lines that describe what was removed, and what to check before sharing."""
    rows = [f"  {rows.table}: {quantity(rows.count, 'row')}, {rows.content}" for rows in redacted.rows]
    columns = (
        [f"  {quantity(redacted.columns, 'column')} of kept tables, not needed for any figure"]
        if redacted.columns
        else []
    )
    serials = [f"  serial numbers of GPUs: {redacted.serial_numbers}"] if redacted.serial_numbers else []
    secrets = [f"  {kind}: {count} different" for kind, count in sorted(redacted.secrets.items())]
    removed = [*rows, *columns, *serials]
    return [
        *(["Removed:", *removed] if removed else ["Removed: nothing; the capture contains only what a copy keeps."]),
        *(["Matched a secret pattern and replaced by marks:", *secrets] if secrets else []),
        *(["No known secret pattern matched a kept name."] if not secrets else []),
        *redacted.not_promised,
        "Names are hashed: a guessed name can still be verified, and numbers of up to six digits stay."
        if redacted.hashed
        else "Names of kernels, NVTX ranges, threads and programs are kept: check them, or use --names hash.",
        *redacted.notes,
        "Every figure is the same as in the capture."
        + (" The copy does not note what is left out, and marks nothing as unsure for it." if redacted.notes else ""),
    ]
