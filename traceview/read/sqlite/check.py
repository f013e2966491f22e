"""Checks of an SQLite export before SQLite opens it: the file is complete and its schema has a plausible size."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from traceview.errors import DamagedExportError, NotAnExportError, NotFoundError, ReportError
from traceview.read.source import display_name
from traceview.read.sqlite.database import EXPORT_AGAIN, HEADER

LEAF, INTERIOR = 13, 5  # types of b-tree pages
# SQLite needs minutes to parse a million tables. Real exports have about 250 tables and views in 0.1 MB of SQL.
MAX_SCHEMA_ENTRIES = 20_000
MAX_SCHEMA_BYTES = 16 << 20
MAX_SCHEMA_PAGES = 20_000


def check_file(path: Path) -> None:
    """Check that a file is a finished SQLite export. Raises ReportError."""
    name = display_name(path)
    try:
        _check_is_file(path, name)
        with path.open("rb") as file:
            head = file.read(100)
        size = path.stat().st_size
        journals = [suffix for suffix in ("-wal", "-journal") if _is_nonempty_file(Path(f"{path}{suffix}"))]
        excess = schema_excess(path) if head.startswith(HEADER) else None
    except OSError as error:
        raise ReportError(f"{name}: cannot be read ({error.strerror}); check its name and permissions") from None
    if not head:
        raise NotAnExportError(f"{name}: the file is empty; {EXPORT_AGAIN}")
    if not head.startswith(HEADER):
        raise NotAnExportError(f"{name}: not an SQLite file; {EXPORT_AGAIN}")
    if journals:
        raise DamagedExportError(
            f"{name}: still being written ({name}{journals[0]} exists); wait until nsys export ends"
        )
    if size < (stated := _stated_size(head)):
        raise DamagedExportError(
            f"{name}: cut off: the file has {size} of {stated} bytes; copy it again, or {EXPORT_AGAIN}"
        )
    if excess is not None:
        raise NotAnExportError(f"{name}: has {excess}, more than any export; {EXPORT_AGAIN}")


def _check_is_file(path: Path, name: str) -> None:
    if path.is_dir():
        raise NotFoundError(f"{name}: is a directory; name the .sqlite file inside it")
    if not path.exists():
        raise NotFoundError(f"{name}: no such file; make it with: nsys export --type sqlite REPORT.nsys-rep")
    if not path.is_file():
        raise NotAnExportError(f"{name}: a pipe or device, not a file; {EXPORT_AGAIN}")


def _is_nonempty_file(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _page_size(head: bytes) -> int:
    size = int.from_bytes(head[16:18], "big")
    return 65536 if size == 1 else size


def _stated_size(head: bytes) -> int:
    """Return the file size that the database header states; 0 if the last writer did not maintain it."""
    maintained = head[24:28] == head[92:96]
    return int.from_bytes(head[28:32], "big") * _page_size(head) if maintained else 0


def schema_excess(path: Path) -> str | None:
    """Return what is too large about a database's schema; None if SQLite can parse it.

    The function ignores damage, which SQLite reports itself. Raises OSError.
    """
    with path.open("rb") as file:
        size = _page_size(file.read(100))
        return _walk_schema(file, size) if size >= 512 else None


def _walk_schema(file: IO[bytes], size: int) -> str | None:
    """Walk the b-tree of sqlite_schema and add up its entries and their bytes."""
    entries = stored = 0
    waiting, seen = [1], set[int]()
    while waiting:
        number = waiting.pop()
        if number in seen or len(seen) > MAX_SCHEMA_PAGES:
            return "a list of tables that leads back to itself" if number in seen else "an endless list of tables"
        seen.add(number)
        page = _page(file, number, size)
        first = 100 if number == 1 else 0
        kind, count = (page[first], int.from_bytes(page[first + 3 : first + 5], "big")) if page else (0, 0)
        if kind == INTERIOR:
            waiting += _children(page, first, count)
        elif kind == LEAF:
            entries += count
            stored += sum(_payload_size(page, first + 8, index) for index in range(count))
        if entries > MAX_SCHEMA_ENTRIES or stored > MAX_SCHEMA_BYTES:
            too_many = entries > MAX_SCHEMA_ENTRIES
            return f"{entries} tables and views" if too_many else f"{stored >> 20} MB of definitions"
    return None


def _page(file: IO[bytes], number: int, size: int) -> bytes:
    if number < 1:
        return b""
    file.seek((number - 1) * size)
    page = file.read(size)
    return page if len(page) == size else b""


def _children(page: bytes, first: int, count: int) -> list[int]:
    cells = [_cell_place(page, first + 12, index) for index in range(count)]
    return [int.from_bytes(page[at : at + 4], "big") for at in (*cells, first + 8)]


def _cell_place(page: bytes, pointers: int, index: int) -> int:
    return int.from_bytes(page[pointers + 2 * index : pointers + 2 * index + 2], "big")


def _payload_size(page: bytes, pointers: int, index: int) -> int:
    """Return the payload size of a cell, a varint of up to nine bytes."""
    value = 0
    at = _cell_place(page, pointers, index)
    for byte in page[at : at + 9]:
        value = value << 7 | (byte & 127)
        if byte < 128:
            break
    return value
