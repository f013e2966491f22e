"""Rows keep their columns together for any indices, keys and columns of a table; hand-made tables."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import sample
from traceview.read import raw
from traceview.read.sqlite import decoder
from traceview.read.sqlite.database import open_export
from traceview.read.sqlite.decoder import table_decoder
from traceview.read.sqlite.reader import read_sqlite

COLUMNS = ["start", "end", "eventType", "globalTid", "text", "textId", "domainId"]
INDICES = [
    "CREATE INDEX i{} ON NVTX_EVENTS (text)",
    "CREATE INDEX i{} ON NVTX_EVENTS (text DESC, start)",
    "CREATE INDEX i{} ON NVTX_EVENTS (text COLLATE NOCASE)",
    "CREATE UNIQUE INDEX i{} ON NVTX_EVENTS (text, start)",
    "CREATE INDEX i{} ON NVTX_EVENTS (text) WHERE text > 'range 5'",
    "CREATE INDEX i{} ON NVTX_EVENTS (text) WHERE text IS NOT NULL",
    "CREATE INDEX i{} ON NVTX_EVENTS (upper(text), text)",
    "CREATE INDEX i{} ON NVTX_EVENTS (globalTid, text)",
    'CREATE INDEX i{} ON NVTX_EVENTS (text, textId, domainId, start, "end", eventType, globalTid)',
]
CHANGES = [
    "ALTER TABLE NVTX_EVENTS ADD COLUMN added INTEGER DEFAULT 7",
    "ALTER TABLE NVTX_EVENTS ADD COLUMN computed AS (start + 1)",
    "ALTER TABLE NVTX_EVENTS DROP COLUMN spare",
    "ALTER TABLE NVTX_EVENTS RENAME COLUMN spare TO other",
    "ALTER TABLE NVTX_EVENTS RENAME COLUMN domainId TO domain",
    "DELETE FROM NVTX_EVENTS WHERE start % 7 = 3",
    "UPDATE NVTX_EVENTS SET spare = 1 << 40 WHERE start % 5 = 1",
    "VACUUM",
    "ANALYZE",
]
# Types or constraints of the columns start, text and spare, and the table options.
KINDS = [
    ("INTEGER", "TEXT", "INTEGER", ""),
    ("INTEGER", "TEXT", "INTEGER", ""),
    ("INTEGER", "TEXT", "INTEGER UNIQUE", ""),
    ("INTEGER", "TEXT UNIQUE", "INTEGER", ""),
    ("INTEGER", "TEXT", "INTEGER PRIMARY KEY", ""),
    ("INTEGER PRIMARY KEY DESC", "TEXT", "INTEGER", ""),
    ("INTEGER", "TEXT PRIMARY KEY", "INTEGER", ""),
    ("INTEGER", "TEXT PRIMARY KEY", "INTEGER", "WITHOUT ROWID"),
    ("INTEGER PRIMARY KEY", "TEXT", "INTEGER", "WITHOUT ROWID"),
    ("INTEGER", "TEXT", "INTEGER AS (start + 1) STORED", ""),
    ("INTEGER", "TEXT", "INTEGER AS (start + 1) VIRTUAL", ""),
]


@pytest.fixture(autouse=True)
def every_table_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(decoder, "MIN_TABLE_BYTES", 0)
    monkeypatch.setattr(decoder, "PAGES_PER_CHUNK", 3)
    yield


def text_of(start: int) -> str | None:
    """Return the text of the range that begins at `start`; texts and numbers sort differently."""
    return None if start % 11 == 5 else f"range {start * 7919 % 1000} {start}"


def write_export(path: Path, kind: tuple[str, str, str, str], starts: list[int], pragmas: list[str]) -> None:
    """Write an export with ranges that begin at these times, in this row order."""
    start, text, spare, suffix = kind
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("synchronous=OFF", *pragmas):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    connection.execute(
        f'CREATE TABLE NVTX_EVENTS (start {start}, "end" INTEGER, eventType INTEGER, globalTid INTEGER, '
        f"spare {spare}, text {text}, textId INTEGER, domainId INTEGER) {suffix}"
    )
    connection.executemany(
        'INSERT OR IGNORE INTO NVTX_EVENTS (start, "end", eventType, globalTid, text) VALUES (?, ?, 59, 3, ?)',
        [(start, start + 5, text_of(start)) for start in starts],
    )
    connection.close()


def run_all(path: Path, statements: list[str]) -> None:
    """Run the statements that fit the table."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    for number, statement in enumerate(statements):
        try:
            connection.execute(statement.format(number))
        except sqlite3.Error:
            continue
    connection.close()


def rows_in_order(path: Path, columns: list[str], without_rowid: bool) -> list[tuple[object, ...]]:
    """Return the rows as SQLite reads them in one statement, by rowid or primary key."""
    connection = sqlite3.connect(path)
    keys = [row[1] for row in connection.execute("PRAGMA table_info(NVTX_EVENTS)") if row[5]]
    order = ", ".join(f'"{key}"' for key in keys) if without_rowid else "rowid"
    names = ", ".join(f'"{column}"' for column in columns)
    rows = connection.execute(f"SELECT {names} FROM NVTX_EVENTS ORDER BY {order}").fetchall()
    connection.close()
    return rows


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    starts=st.lists(st.integers(0, 2**40), max_size=8, unique=True),
    count=st.sampled_from([0, 30, 200]),
    indices=st.lists(st.sampled_from(INDICES), max_size=3),
    changes=st.lists(st.sampled_from(CHANGES), max_size=3),
    indices_first=st.booleans(),
    page=st.sampled_from([512, 1024, 4096, 65536]),
    vacuum=st.sampled_from([0, 1, 2]),
    encoding=st.sampled_from(["UTF-8", "UTF-8", "UTF-16le", "UTF-16be"]),
    journal=st.sampled_from(["DELETE", "DELETE", "WAL"]),
)
def test_ranges_keep_their_names(
    kind: tuple[str, str, str, str],
    starts: list[int],
    count: int,
    indices: list[str],
    changes: list[str],
    indices_first: bool,
    page: int,
    vacuum: int,
    encoding: str,
    journal: str,
) -> None:
    pragmas = [f"page_size={page}", f"auto_vacuum={vacuum}", f"encoding='{encoding}'", f"journal_mode={journal}"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.sqlite"
        write_export(path, kind, list(dict.fromkeys([*starts, *range(3 * count, 0, -3)])), pragmas)
        run_all(path, indices + changes if indices_first else changes + indices)
        frame = read_sqlite(path).tables[raw.NVTX]
        assert frame.rows() == rows_in_order(path, frame.columns, "WITHOUT ROWID" in kind)
        assert set(frame.columns) >= {"start", "end", "eventType", "globalTid", "text", "textId"}
        for start, end, text in frame.select("start", "end", "text").rows():
            assert (end, text) == (start + 5, text_of(start))


def test_text_index_with_decoded_numbers(tmp_path: Path) -> None:
    path = tmp_path / "made.sqlite"
    write_export(path, KINDS[0], list(range(900, 0, -1)), [])
    before = read_sqlite(path).tables[raw.NVTX]
    run_all(path, INDICES[:1])
    with open_export(path) as export:
        planned = table_decoder(path, export.connection, raw.NVTX, ["start", "end"])
        assert planned is not None and planned.decode() is not None
        assert export.connection.execute("SELECT text FROM NVTX_EVENTS").fetchone() != (text_of(900),)
    assert read_sqlite(path).tables[raw.NVTX].equals(before)


@pytest.mark.parametrize("index", ["(text)", "(text) WHERE text IS NOT NULL", "(lower(text), text)", "(text, start)"])
def test_text_index_of_a_capture(tmp_path: Path, index: str) -> None:
    path = tmp_path / "dual.sqlite"
    shutil.copy(sample("dual.sqlite"), path)
    before = read_sqlite(path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE NVTX_EVENTS SET text = 'name ' || (rowid * 7919 % 1000) WHERE text IS NULL")
    connection.commit()
    named = read_sqlite(path).tables[raw.NVTX]
    connection.execute(f"CREATE INDEX names ON NVTX_EVENTS {index}")
    connection.close()
    after = read_sqlite(path)
    assert after.tables[raw.NVTX].equals(named) and after.problems == before.problems
    assert all(after.tables[name].equals(frame) for name, frame in before.tables.items() if name != raw.NVTX)


def test_without_rowid_order(tmp_path: Path) -> None:
    path = tmp_path / "made.sqlite"
    write_export(path, KINDS[8], list(range(500, 0, -1)), [])
    run_all(path, [INDICES[8], "ANALYZE"])
    starts = read_sqlite(path).tables[raw.NVTX]["start"].to_list()
    assert starts == list(range(1, 501))
