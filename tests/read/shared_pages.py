"""Change the pages of a database, which SQLite does not check: rows that share overflow pages."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

LEAF, INTERIOR = 13, 5


def share_overflow(path: Path, table: str) -> None:
    """Let all long rows of a table share the overflow pages of the first, which SQLite does not check."""
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ? AND type = 'table'"
        row = connection.execute(query, (table,)).fetchone()
    data = bytearray(path.read_bytes())
    size = page_size(data)
    usable, chain = size - data[20], b""
    least = (usable - 12) * 32 // 255 - 23
    for page in _leaves(data, size, row[0]) if row else ():
        for cell in _cells(data, page, 8):
            payload, at = _varint(data, page + cell)
            _, at = _varint(data, at)
            if payload > usable - 35:
                local = least + (payload - least) % (usable - 4)
                place = at + (local if local <= usable - 35 else least)
                chain = chain or bytes(data[place : place + 4])
                data[place : place + 4] = chain
    path.write_bytes(data)


def page_size(data: bytes | bytearray) -> int:
    """Return the size of a database's pages."""
    size = int.from_bytes(data[16:18], "big")
    return 65536 if size == 1 else size


def _leaves(data: bytearray, size: int, root: int) -> list[int]:
    """Return the offsets of the leaf pages of a table with row ids."""
    page = (root - 1) * size
    if data[page] != INTERIOR:
        return [page] if data[page] == LEAF else []
    children = [data[page + cell : page + cell + 4] for cell in _cells(data, page, 12)]
    numbers = [int.from_bytes(child, "big") for child in (*children, data[page + 8 : page + 12])]
    return [leaf for number in numbers for leaf in _leaves(data, size, number)]


def _cells(data: bytearray, page: int, header: int) -> list[int]:
    """Return the offsets of a page's cells within the page."""
    count = int.from_bytes(data[page + 3 : page + 5], "big")
    places = range(page + header, page + header + 2 * count, 2)
    return [int.from_bytes(data[place : place + 2], "big") for place in places]


def _varint(data: bytearray, at: int) -> tuple[int, int]:
    value = 0
    while True:
        value, at = value << 7 | data[at] & 127, at + 1
        if data[at - 1] < 128:
            return value, at
