"""All commands read rows in one place: what a file says about its tables steers none of them."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.captures import ROOT, sample
from traceview.captures.info import describe
from traceview.captures.redact import redact
from traceview.errors import DamagedExportError
from traceview.pipeline import analyze
from traceview.read.formats import read_capture

KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
EMPTIED = {
    "ranges": "NVTX_EVENTS (eventType, text, textId, start, end, globalTid, domainId)",
    "names of ranges": "NVTX_EVENTS (textId, eventType)",
    "names of calls": f"{RUNTIME} (nameId)",
    "kernels": f"{KERNEL} (start, end, deviceId, contextId, streamId, globalPid)",
    "strings": "StringIds (value, id)",
}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return Path(shutil.copyfile(sample("dual.sqlite"), tmp_path / "plain.sqlite"))


def changed(path: Path, *statements: str) -> Path:
    """Return a copy with changes; the schema can be written to."""
    copy = Path(shutil.copyfile(path, path.with_name("run.sqlite")))
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            connection.execute(statement)
    return copy


def with_emptied_index(path: Path, columns: str) -> Path:
    """Add an index without rows that claims to hold all rows."""
    claim = "UPDATE sqlite_master SET sql = replace(sql, ' WHERE 0', '') WHERE name = 'odd'"
    return changed(path, f"CREATE INDEX odd ON {columns} WHERE 0", claim)


def rows(path: Path) -> dict[str, list[object]]:
    """Return all rows of a database without indices."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f'SELECT * FROM "{name}" NOT INDEXED').fetchall() for name in names}


def same_in_every_command(odd: Path, plain: Path, folder: Path) -> None:
    """Check that analyze, info and redact return the same for both files."""
    one, other = describe(odd), describe(plain)
    assert (one.tables, one.ranges, one.streams, one.missing) == (
        other.tables, other.ranges, other.streams, other.missing,
    )  # fmt: skip
    redact(odd, folder / "odd-copy.sqlite")
    redact(plain, folder / "plain-copy.sqlite")
    assert rows(folder / "odd-copy.sqlite") == rows(folder / "plain-copy.sqlite")
    read, expected = read_capture(odd).tables, read_capture(plain).tables
    assert read.keys() == expected.keys() and all(read[name].equals(expected[name]) for name in read)


@pytest.mark.parametrize("index", EMPTIED)
def test_emptied_index_steers_no_command(plain: Path, tmp_path: Path, index: str) -> None:
    odd = with_emptied_index(plain, EMPTIED[index])
    with closing(sqlite3.connect(odd)) as connection:  # SQLite itself trusts it
        table, first = EMPTIED[index].split(" (")[0], re.findall(r"\w+", EMPTIED[index])[1]
        assert connection.execute(f"SELECT count({first}) FROM {table} INDEXED BY odd").fetchone() == (0,)
    same_in_every_command(odd, plain, tmp_path)


def test_index_of_a_table_without_row_ids(plain: Path, tmp_path: Path) -> None:
    """NOT INDEXED has no effect on such a table."""
    columns = "start, end, correlationId, nameId, globalTid, returnValue"
    made = changed(
        plain,
        f"ALTER TABLE {RUNTIME} RENAME TO old",
        f"CREATE TABLE {RUNTIME} ({columns}, PRIMARY KEY (start, correlationId)) WITHOUT ROWID",
        f"INSERT INTO {RUNTIME} SELECT {columns} FROM old",
        "DROP TABLE old",
    ).rename(tmp_path / "ordered.sqlite")
    assert len(read_capture(made).tables[RUNTIME]) == describe(plain).tables[RUNTIME]
    same_in_every_command(with_emptied_index(made, f"{RUNTIME} ({columns})"), made, tmp_path)


def test_tables_with_the_names_of_pragmas(plain: Path, tmp_path: Path) -> None:
    """Such a table hides SQLite's own list of columns from a query."""
    hidden = [
        f"CREATE TABLE {name} (name, type, pk, hidden, seqno, cid)"
        for name in ("pragma_table_info", "pragma_table_xinfo", "pragma_index_info", "pragma_index_list")
    ]
    odd = changed(plain, *hidden, "ALTER TABLE NVTX_EVENTS ADD COLUMN _rowid_ DEFAULT 1")
    read, expected = read_capture(odd).tables, read_capture(plain).tables
    assert all(read[name].equals(expected[name]) for name in expected)
    redact(odd, tmp_path / "copy.sqlite")
    assert read_capture(tmp_path / "copy.sqlite").tables[KERNEL].equals(expected[KERNEL])


def test_keys_that_are_no_row_ids(plain: Path, tmp_path: Path) -> None:
    """SQLite's DESC key may be null; a copy with another kind of key would number these rows."""
    odd = changed(
        plain,
        "ALTER TABLE StringIds RENAME TO old",
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY DESC, value TEXT)",
        "INSERT INTO StringIds SELECT * FROM old",
        "INSERT INTO StringIds VALUES (NULL, 'no id')",
        "DROP TABLE old",
    )
    redact(odd, tmp_path / "copy.sqlite")
    redact(plain, tmp_path / "plain-copy.sqlite")
    assert rows(tmp_path / "copy.sqlite") == rows(tmp_path / "plain-copy.sqlite")


def test_redact_names_views_in_place_of_tables(plain: Path, tmp_path: Path) -> None:
    odd = changed(plain, f"ALTER TABLE {KERNEL} RENAME TO kernels", f"CREATE VIEW {KERNEL} AS SELECT * FROM kernels")
    redacted = redact(odd, tmp_path / "copy.sqlite")
    assert [note for note in redacted.notes if f"{KERNEL} is a view, not a table" in note]
    assert [note.text for note in analyze(odd).notes if f"{KERNEL} is a view" in note.text]


@pytest.mark.parametrize("value", ["start || ' ns'", "start + 0.5"])
def test_times_of_another_type(plain: Path, value: str) -> None:
    """The error was that the capture holds no GPU work."""
    tables = (KERNEL, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
    odd = changed(plain, *(f"UPDATE {table} SET start = {value}" for table in tables))
    with pytest.raises(DamagedExportError) as error:
        analyze(odd)
    message = str(error.value)
    for table, count in zip(tables, (6000, 300, 760), strict=True):
        assert f"{count:,} rows of {table} left out: their 'start' is a text, a real number" in message
    assert "\n" not in message and "no GPU work" not in message
    few = changed(plain, f"UPDATE {KERNEL} SET start = {value} WHERE rowid < 4")
    assert any(f"3 rows of {KERNEL} left out: their 'start' is a text" in note.text for note in analyze(few).notes)


def test_times_of_other_tables(plain: Path) -> None:
    odd = changed(
        plain,
        "CREATE TABLE OSRT_API (start, end, globalTid INTEGER, nameId INTEGER)",
        "INSERT INTO OSRT_API SELECT 'noon', end, globalTid, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 5",
    )
    assert any("5 rows of OSRT_API left out: their 'start' is a text" in note.text for note in analyze(odd).notes)


def test_one_place_opens_databases() -> None:
    """A second place would have to repeat every rule."""
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.glob("traceview/**/*.py")}
    opening = {
        name for name, text in sources.items() if re.search(r"sqlite3\.connect\b|import apsw|read_database", text)
    }
    assert opening == {
        "traceview/read/sqlite/database.py",
        "traceview/read/sqlite/reader.py",
    }  # reader.py writes new ones
    selecting = {name for name, text in sources.items() if re.search(r"\bSELECT\b.*\bFROM\b", text)}
    pages = "traceview/read/sqlite/decoder.py"  # it asks for the root page of a table
    assert selecting == {"traceview/read/sqlite/database.py", pages}
