"""Reduce an export to the contents that a folder of tables can hold, to compare the figures of both."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from traceview.read.raw import STRINGS, TABLES

MOST_ROWS = 20_000


def plain(report: Path, out: Path) -> bool:
    """Write the tables that the analysis reads, with whole numbers and texts only.

    Return False for an export without a table of strings.
    """
    source = sqlite3.connect(f"{report.absolute().as_uri()}?immutable=1", uri=True)
    source.text_factory = lambda raw: raw.decode("utf-8", "replace")
    made = sqlite3.connect(out)
    try:
        present = {name for (name,) in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not _has_needed(source, STRINGS):
            return False
        with made:
            for table in TABLES:
                if table in present:
                    _copy(source, made, table)
    except sqlite3.Error:
        return False
    finally:
        source.close()
        made.close()
    return True


def _has_needed(source: sqlite3.Connection, table: str) -> bool:
    known = {row[1] for row in source.execute(f'PRAGMA table_info("{table}")')}
    return known.issuperset(TABLES[table].needed) and bool(known)


def _copy(source: sqlite3.Connection, made: sqlite3.Connection, table: str) -> None:
    known = {row[1] for row in source.execute(f'PRAGMA table_info("{table}")')}
    columns = [name for name in TABLES[table].columns if name in known]
    if not columns:
        return
    names = ", ".join(f'"{name}"' for name in columns)
    rows = source.execute(f'SELECT {names} FROM "{table}" LIMIT {MOST_ROWS}').fetchall()
    types = [str if name in TABLES[table].text else int for name in columns]
    typed = [tuple(v if isinstance(v, kind) else None for v, kind in zip(row, types, strict=True)) for row in rows]
    made.execute(f'CREATE TABLE "{table}" ({names})')
    made.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns))})', typed)
