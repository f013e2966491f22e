"""Damaged and hostile pages are left to SQLite; decoding them neither raises nor hangs."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.captures import sample
from tests.read.sqlite.decoded import read_integers
from traceview.read import raw
from traceview.read.sqlite import decoder, pages
from traceview.read.sqlite.pages import NotPlainError

COLUMNS = list(raw.TABLES[raw.RUNTIME].columns)
PAGE = 4096


@pytest.fixture(autouse=True)
def every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(decoder, "MIN_TABLE_BYTES", 0)
    yield


@pytest.fixture
def content() -> bytes:
    return sample("dual.sqlite").read_bytes()


def decode(path: Path, data: bytes) -> list[tuple[int, ...]] | None:
    """Decode the API calls of a file with these bytes and the schema of the original."""
    path.write_bytes(data)
    connection = sqlite3.connect(sample("dual.sqlite"))
    try:
        actual = read_integers(path, connection, raw.RUNTIME, COLUMNS)
    finally:
        connection.close()
    return None if actual is None else actual.rows()


def root_page(path: Path) -> int:
    connection = sqlite3.connect(path)
    root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (raw.RUNTIME,)).fetchone()[0]
    connection.close()
    return int(root)


@pytest.mark.parametrize("flips", [1, 30, 3000])
def test_flipped_bits_never_raise(tmp_path: Path, content: bytes, flips: int) -> None:
    sound = decode(tmp_path / "made.sqlite", content)
    assert sound is not None
    answers = []
    for seed in range(25):
        chance, data = random.Random(seed), bytearray(content)
        for _ in range(flips):
            data[chance.randrange(100, len(data))] ^= 1 << chance.randrange(8)
        answers.append(decode(tmp_path / "made.sqlite", bytes(data)))
    assert all(answer is None or len(answer[0]) == len(COLUMNS) for answer in answers)
    assert any(answer != sound for answer in answers)


def test_cyclic_pages(tmp_path: Path, content: bytes) -> None:
    """A page with hundreds of children, each the page itself, would be decoded forever."""
    root = root_page(sample("dual.sqlite"))
    data = bytearray(content)
    first = (root - 1) * PAGE
    assert data[first] == pages.INTERIOR
    count = int.from_bytes(data[first + 3 : first + 5], "big")
    for number in range(count):
        cell = first + int.from_bytes(data[first + 12 + 2 * number :][:2], "big")
        data[cell : cell + 4] = root.to_bytes(4, "big")
    data[first + 8 : first + 12] = root.to_bytes(4, "big")
    assert decode(tmp_path / "made.sqlite", bytes(data)) is None


def test_header_longer_than_its_record(tmp_path: Path) -> None:
    """In the last cell of the last page, such a header would be read beyond the file."""
    path = tmp_path / "made.sqlite"
    connection = sqlite3.connect(path)
    columns = [f"c{number}" for number in range(60)]
    connection.execute(f"CREATE TABLE t ({', '.join(columns)})")
    connection.execute(f"INSERT INTO t VALUES ({', '.join('0' * 60)})")
    connection.commit()
    # The first record ends at the end of its page: size 61, rowid 1, a header of 61 bytes and no body.
    data = bytearray(path.read_bytes())
    assert data[-63:-60] == bytes([61, 1, 61])
    data[-63:-60] = bytes([2, 1, 127])
    path.write_bytes(data)
    assert read_integers(path, connection, "t", columns) is None
    # The same at the very end: a record of two bytes that claims a header of 127.
    data[PAGE + 8 : PAGE + 10] = (PAGE - 4).to_bytes(2, "big")
    data[-4:] = bytes([2, 1, 127, 8])
    path.write_bytes(data)
    assert read_integers(path, connection, "t", columns) is None
    connection.close()


@pytest.mark.parametrize(
    "column", ["c REAL", "c DOUBLE PRECISION", "c INTEGER PRIMARY KEY", "c INTEGER GENERATED ALWAYS AS (a + 1) STORED"]
)
def test_converted_columns_are_left_to_sqlite(tmp_path: Path, column: str) -> None:
    path = tmp_path / "made.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE t (a INTEGER, {column}, b INTEGER)")
    connection.execute("INSERT INTO t (a, b) VALUES (1, 2)")
    connection.commit()
    assert read_integers(path, connection, "t", ["a", "b"] if "KEY" in column else ["c"]) is None
    connection.close()


@pytest.mark.parametrize("end", ["", "WITHOUT ROWID"])
def test_key_of_two_columns_is_not_the_rowid(tmp_path: Path, end: str) -> None:
    """Call chains have such a key. Without rowids their records would be in the order of the key."""
    path = tmp_path / "made.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE t (a INTEGER, b INTEGER, c INTEGER, PRIMARY KEY (b, c)) {end}")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", [(1, 9, 8), (2, 3, 4)])
    connection.commit()
    decoded = read_integers(path, connection, "t", ["a", "b", "c"])
    assert (decoded is None) if end else (decoded is not None and decoded.rows() == [(1, 9, 8), (2, 3, 4)])
    connection.close()


def child_page(data: bytes, root: int) -> int:
    """Return the first child of an interior page."""
    first = (root - 1) * PAGE
    cell = first + int.from_bytes(data[first + 12 : first + 14], "big")
    return int.from_bytes(data[cell : cell + 4], "big")


@pytest.mark.parametrize("level", ["interior", "leaf"])
def test_pages_without_cells(tmp_path: Path, content: bytes, level: str) -> None:
    """SQLite calls the table malformed; its rows must not disappear silently."""
    root = root_page(sample("dual.sqlite"))
    page = root if level == "interior" else child_page(content, root)
    data = bytearray(content)
    data[(page - 1) * PAGE + 3 : (page - 1) * PAGE + 5] = bytes(2)
    assert decode(tmp_path / "made.sqlite", bytes(data)) is None


@pytest.mark.parametrize("place", [8, 9, PAGE - 3])
@pytest.mark.parametrize("level", ["interior", "leaf"])
def test_cells_outside_the_cell_area(tmp_path: Path, content: bytes, place: int, level: str) -> None:
    root = root_page(sample("dual.sqlite"))
    page = root if level == "interior" else child_page(content, root)
    at = (page - 1) * PAGE + (12 if level == "interior" else 8)
    data = bytearray(content)
    data[at : at + 2] = place.to_bytes(2, "big")
    assert decode(tmp_path / "made.sqlite", bytes(data)) is None


def test_key_beyond_its_page(tmp_path: Path, content: bytes) -> None:
    root = root_page(sample("dual.sqlite"))
    first = (root - 1) * PAGE
    data = bytearray(content)
    count = int.from_bytes(data[first + 3 : first + 5], "big")
    last = first + 12 + 2 * (count - 1)
    cell = first + int.from_bytes(data[last : last + 2], "big")
    moved = first + PAGE - 5
    data[moved : moved + 5] = data[cell : cell + 4] + b"\x81"
    data[last : last + 2] = (PAGE - 5).to_bytes(2, "big")
    assert decode(tmp_path / "made.sqlite", bytes(data)) is None


def test_pages_beyond_the_stated_size(tmp_path: Path, content: bytes) -> None:
    data = bytearray(content)
    assert data[24:28] == data[92:96]
    data[28:32] = root_page(sample("dual.sqlite")).to_bytes(4, "big")
    assert decode(tmp_path / "made.sqlite", bytes(data)) is None
    data[95] ^= 1  # the stated size is not valid now: SQLite uses the file's size
    assert decode(tmp_path / "made.sqlite", bytes(data)) is not None


def test_root_page_that_is_not_an_integer(tmp_path: Path) -> None:
    path = tmp_path / "made.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE a (value INTEGER)")
    connection.execute("INSERT INTO a VALUES (1)")
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute("UPDATE sqlite_master SET rootpage = X'32'")
    connection.commit()
    connection.close()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT value FROM a").fetchall() == [(1,)]
    decoded = read_integers(path, connection, "a", ["value"])
    connection.close()
    assert decoded is None


def test_lock_byte_page() -> None:
    """SQLite refuses it in files beyond 1 GiB."""
    file = pages.Pages(-1, 65536, 20_000)
    file.check_numbers(np.array([2, 16_384, 16_386], np.int64))
    with pytest.raises(NotPlainError):
        file.check_numbers(np.array([2, 16_385], np.int64))
