"""How large a database's schema is, told before SQLite parses it: a million tables would take it minutes."""

from __future__ import annotations

from pathlib import Path
from typing import IO

LEAF, INTERIOR = 13, 5
MOST_ENTRIES = 20_000  # real exports have some 250 tables and views
MOST_BYTES = 16 << 20  # of definitions; real exports have 0.1 MB
MOST_PAGES = 20_000


def too_large(path: Path) -> str | None:
    """Return what is too much about a database's list of tables, None where it can be parsed.

    What makes no sense is left to SQLite, which says so. Raises OSError.
    """
    with path.open("rb") as file:
        head = file.read(100)
        said = int.from_bytes(head[16:18], "big")
        size = 65536 if said == 1 else said
        if size < 512:
            return None
        return _walk(file, size)


def _walk(file: IO[bytes], size: int) -> str | None:
    entries = stored = 0
    waiting, seen = [1], set[int]()
    while waiting:
        number = waiting.pop()
        if number in seen or len(seen) > MOST_PAGES:
            return "a list of tables that leads back to itself" if number in seen else "an endless list of tables"
        seen.add(number)
        page = _page(file, number, size)
        first = 100 if number == 1 else 0
        kind, count = (page[first], int.from_bytes(page[first + 3 : first + 5], "big")) if page else (0, 0)
        if kind == INTERIOR:
            waiting += _children(page, first, count)
        elif kind == LEAF:
            entries += count
            stored += sum(_payload(page, first + 8, index) for index in range(count))
        if entries > MOST_ENTRIES or stored > MOST_BYTES:
            return f"{entries} tables and views" if entries > MOST_ENTRIES else f"{stored >> 20} MB of definitions"
    return None


def _page(file: IO[bytes], number: int, size: int) -> bytes:
    if number < 1:
        return b""
    file.seek((number - 1) * size)
    page = file.read(size)
    return page if len(page) == size else b""


def _children(page: bytes, first: int, count: int) -> list[int]:
    cells = [_at(page, first + 12, index) for index in range(count)]
    return [int.from_bytes(page[at : at + 4], "big") for at in (*cells, first + 8)]


def _at(page: bytes, pointers: int, index: int) -> int:
    return int.from_bytes(page[pointers + 2 * index : pointers + 2 * index + 2], "big")


def _payload(page: bytes, pointers: int, index: int) -> int:
    """Return how many bytes a cell says that it holds: a varint of up to nine bytes."""
    value = 0
    at = _at(page, pointers, index)
    for byte in page[at : at + 9]:
        value = value << 7 | (byte & 127)
        if byte < 128:
            break
    return value
