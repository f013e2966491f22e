"""Decoded columns equal those that SQLite reads, for real captures and random databases."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import ALL, sample, shared
from tests.read.sqlite.decoded import read_integers
from traceview.read import raw
from traceview.read.sqlite import decoder
from traceview.read.sqlite.decoder import table_decoder

NUMBER = st.one_of(st.none(), st.integers(-3, 3), st.integers(-(2**15), 2**31), st.integers(-(2**63), 2**63 - 1))
ROWS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER, NUMBER), min_size=1, max_size=40)


@pytest.fixture(autouse=True)
def every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(decoder, "MIN_TABLE_BYTES", 0)
    monkeypatch.setattr(decoder, "PAGES_PER_CHUNK", 3)
    yield


def made(folder: str, rows: list[tuple[object, ...]], page: int, times: int, column: str = "c INTEGER") -> Path:
    path = Path(folder) / "made.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {page}")
    connection.execute(f"CREATE TABLE t (a INTEGER, b INTEGER, {column}, d INTEGER)")
    with connection:
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows * times)
        connection.execute("DELETE FROM t WHERE rowid % 7 = 3")
    connection.close()
    return path


def both(
    path: Path, table: str, columns: list[str], grouped: Sequence[str] = ()
) -> tuple[list[tuple[int, ...]] | None, list[tuple[int, ...]]]:
    connection = sqlite3.connect(path)
    try:
        actual = read_integers(path, connection, table, columns, grouped)
        names = ", ".join(f'"{column}"' for column in columns)
        expected = connection.execute(f"SELECT {names} FROM {table}").fetchall()
    finally:
        connection.close()
    return None if actual is None else actual.rows(), expected


@settings(max_examples=60, deadline=None)
@given(
    ROWS,
    st.sampled_from([512, 1024, 4096, 65536]),
    st.sampled_from([1, 30, 400]),
    st.sampled_from(["", "", "bc", "d", "bd", "bcd"]),
)
def test_integers_and_grouped_columns(rows: list[tuple[object, ...]], page: int, times: int, grouped: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = made(folder, rows, page, times)
        actual, expected = both(path, "t", ["d", "a", "c", "b"], grouped)
        assert actual == expected or (actual is None and len(expected) == 0)


def test_grouped_columns_are_decoded_once(tmp_path: Path) -> None:
    path = made(str(tmp_path), [(row, row % 3, 300 * (row % 2), None) for row in range(400)], 4096, 1)
    with closing(sqlite3.connect(path)) as connection:
        planned = table_decoder(path, connection, "t", ["a"], ["b", "c", "d"])
        decoded = None if planned is None else planned.decode()
    assert decoded is not None
    assert decoded.groups is not None and len(decoded.groups) <= 6 * 5 < len(decoded.columns)


@settings(max_examples=30, deadline=None)
@given(ROWS, st.text(max_size=30))
def test_text_columns_between_integers(rows: list[tuple[object, ...]], text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [(a, b, text, d) for a, b, _, d in rows]
        actual, expected = both(made(folder, rows, 4096, 20, "c TEXT"), "t", ["a", "d"])
        assert actual == expected or actual is None


@pytest.mark.parametrize("value", [1.5, "noon", b"\x01", "x" * 9000])
def test_other_values_are_left_to_sqlite(tmp_path: Path, value: object) -> None:
    path = made(str(tmp_path), [(1, 2, 3, 4)] * 9 + [(1, 2, value, 4)], 4096, 10, "c")
    assert both(path, "t", ["a", "c"])[0] is None


def test_rowid_columns_and_utf16_are_left_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "odd.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA encoding = 'UTF-16le'")
    connection.execute("CREATE TABLE t (a INTEGER)")
    connection.execute("CREATE TABLE keyed (a INTEGER PRIMARY KEY, b INTEGER)")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.execute("INSERT INTO keyed VALUES (1, 2)")
    connection.commit()
    connection.close()
    assert both(path, "t", ["a"])[0] is None
    assert both(path, "keyed", ["b"])[0] is None


@settings(max_examples=25, deadline=None)
@given(first=ROWS, then=ROWS, columns=st.sampled_from([["a"], ["d"], ["a", "d"], ["a", "b", "c", "d"]]))
def test_wider_records_on_later_pages(
    first: list[tuple[object, ...]], then: list[tuple[object, ...]], columns: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = made(folder, [*first * (400 // len(first)), *then * (400 // len(then)), *first], 512, 1)
        actual, expected = both(path, "t", columns)
        assert actual == expected


@pytest.mark.parametrize("value", [0, 1, 2, None])
def test_skipped_column_of_0_and_1(tmp_path: Path, value: object) -> None:
    path = made(str(tmp_path), [(5, 0, 1, 300), (6, 1, value, 70_000), (7, value, 0, 1)], 1024, 300)
    for columns in (["a", "d"], ["b", "d"], ["c"], ["a", "b", "c", "d"]):
        actual, expected = both(path, "t", columns)
        assert actual == expected


@pytest.mark.parametrize("name", ["samples/dual.sqlite", *ALL])
def test_every_table_of_every_capture(name: str) -> None:
    path = sample("dual.sqlite") if name.startswith("samples") else shared(name)
    decoded = 0
    connection = sqlite3.connect(path)
    present = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table, wanted in raw.TABLES.items():
        layout = connection.execute(f"PRAGMA table_info({table})").fetchall()
        columns = [row[1] for row in layout]
        columns = [column for column in wanted.columns if column in columns and column not in wanted.text]
        has_key = any(row[5] for row in layout)
        if table not in present or not columns:
            continue
        actual, expected = both(path, table, columns)
        assert actual == expected or (actual is None and (not expected or wanted.text or has_key))
        decoded += actual is not None
    connection.close()
    assert decoded > 0 or "textid_only" in name


@pytest.mark.parametrize("added", ["e INTEGER DEFAULT 5", "e INTEGER"])
def test_added_columns_are_left_to_sqlite(tmp_path: Path, added: str) -> None:
    path = made(str(tmp_path), [(1, 2, 3, 4)], 4096, 500)
    connection = sqlite3.connect(path)
    connection.execute(f"ALTER TABLE t ADD COLUMN {added}")
    with connection:
        connection.execute("INSERT INTO t VALUES (1, 2, 3, 4, 5)")
    connection.close()
    assert both(path, "t", ["a", "e"])[0] is None
    actual, expected = both(path, "t", ["d", "a"])
    assert actual == expected


def test_rows_far_apart_are_decoded_or_left_to_sqlite(tmp_path: Path) -> None:
    path = made(str(tmp_path), [(1, 2, 3, 4)], 1024, 900)
    actual, expected = both(path, "t", ["a", "d"])
    assert actual == expected
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO t (rowid, a) VALUES (?, 1)", (2**40,))
        connection.execute("INSERT INTO t (rowid, a) VALUES (-5, 1)")
    connection.close()
    actual, expected = both(path, "t", ["a", "d"])
    assert actual is None or actual == expected


@pytest.mark.parametrize("left", [50, 4096, 20_000])
def test_file_cut_off_after_opening_is_left_to_sqlite(tmp_path: Path, left: int) -> None:
    content = made(str(tmp_path), [(1, 2, 3, 4)], 4096, 5000)
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(content.read_bytes()[:left])
    connection = sqlite3.connect(content)  # what SQLite knew of it before
    assert read_integers(content, connection, "t", ["a"]) is not None
    assert read_integers(cut, connection, "t", ["a"]) is None
    connection.close()
