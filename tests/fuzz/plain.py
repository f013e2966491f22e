"""An export with nothing in it but what all of nsys's forms can say, so that one can be held against another."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from traceview.read.raw import NVTX, RUNTIME, STRINGS, TABLES

MOST_ROWS, MOST_STRINGS = 20_000, 50_000
IN_LINES = tuple(table for table in TABLES if not table.startswith("TARGET_INFO"))
Row = tuple[object, ...]


def plain(report: Path, out: Path, form: str) -> bool:
    """Write the tables that are read, as whole numbers and texts alone, as `form` can hold them.

    False where the export has no strings, without which it is none.
    """
    source = sqlite3.connect(f"{report.absolute().as_uri()}?immutable=1", uri=True)
    source.text_factory = lambda raw: raw.decode("utf-8", "replace")
    made = sqlite3.connect(out)
    try:
        present = {name for (name,) in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not _has_needed(source, STRINGS):
            return False
        with made:
            for table in TABLES if form != "lines" else IN_LINES:
                needed = _has_needed(source, table) or table == "ThreadNames"
                if needed if form == "lines" else table in present:
                    _copy(source, made, table, form)
    except sqlite3.Error:
        return False
    finally:
        source.close()
        made.close()
    return True


def _has_needed(source: sqlite3.Connection, table: str) -> bool:
    known = {row[1] for row in source.execute(f'PRAGMA table_info("{table}")')}
    return known.issuperset(TABLES[table].needed) and bool(known)


def _copy(source: sqlite3.Connection, made: sqlite3.Connection, table: str, form: str) -> None:
    known = {row[1] for row in source.execute(f'PRAGMA table_info("{table}")')}
    columns = [name for name in TABLES[table].columns if name in known or (form == "lines" and table == "ThreadNames")]
    columns += ["eventClass"] if table == RUNTIME and form == "lines" else []
    if not columns:
        return
    rows: list[Row] = []
    if known.issuperset(set(columns) - {"eventClass"}):
        wanted = ", ".join("0" if name == "eventClass" else f'"{name}"' for name in columns)
        rows = source.execute(f'SELECT {wanted} FROM "{table}" LIMIT {MOST_ROWS}').fetchall()
    typed = [tuple(_value(table, name, one, form) for name, one in zip(columns, row, strict=True)) for row in rows]
    if form == "lines":
        typed = list(_in_lines(table, columns, typed))
    names = ", ".join(f'"{name}"' for name in columns)
    made.execute(f'CREATE TABLE "{table}" ({names})')
    made.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns))})', typed)


def _value(table: str, column: str, value: object, form: str) -> object:
    is_text = column in TABLES[table].text
    found = value if isinstance(value, str if is_text else int) else None
    if form != "hdf":
        return found
    # HDF5 has no null.
    if table == NVTX and column in ("end", "textId"):
        return found or None
    if is_text:
        return (found or "") if table == STRINGS else (found or None)
    return found or 0


def _in_lines(table: str, columns: list[str], rows: list[Row]) -> Iterable[Row]:
    if table == STRINGS and {"id", "value"} <= set(columns):
        at = columns.index("id")
        texts = {row[at]: row[1 - at] or "" for row in rows if isinstance(row[at], int) and 0 <= row[at] < MOST_STRINGS}
        last = max(texts, default=0)
        return [(place, texts.get(place, ""))[:: 1 if at == 0 else -1] for place in range(last + 1)]
    if table == NVTX and "eventType" in columns:
        at = columns.index("eventType")
        return [row for row in rows if isinstance(row[at], int) and row[at] >= 0]
    if table == "ThreadNames":
        return [row for row in rows if None not in row]
    return rows
