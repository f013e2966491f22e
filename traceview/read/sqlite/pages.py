"""The pages of an open database file: the checks that SQLite makes of b-tree pages, and the leaf pages of a table.

Sections 1.3, 1.4 and 1.6 of the file format (decoder.py). `schema_pages` makes no checks: it sizes the list of tables
before SQLite parses it.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.model.frozen import dataclass

INTERIOR, LEAF = 5, 13
HEADER_SIZE = {INTERIOR: 12, LEAF: 8}  # bytes of a page before its cell pointers
LAST_CHILD = 8  # place of the last child in the header of an interior page
FIXED_FRACTIONS = b"\x40\x20\x20"  # bytes 21 to 23 of every database
UTF8 = 1
LOCK_BYTE = 1 << 30
MIN_CELL_BYTES = 6  # smallest size of a cell with its pointer
MAX_DEPTH = 20  # levels; SQLite refuses more
MAX_VARINT_BYTES = 9
PADDING = 16

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]


class NotPlainError(Exception):
    """The decoder does not support this table; SQLite must read it."""


def page_size(head: bytes) -> int:
    """Return the page size that a database header states."""
    size = int.from_bytes(head[16:18], "big")
    return 65536 if size == 1 else size


def stated_pages(head: bytes) -> int:
    """Return the number of pages that a database header states; 0 if the last writer did not maintain it."""
    return int.from_bytes(head[28:32], "big") if head[24:28] == head[92:96] else 0


class SchemaPage(NamedTuple):
    """A page of sqlite_schema, and the bytes of each entry on it."""

    number: int
    entries: list[int]


def schema_pages(file: IO[bytes]) -> Iterator[SchemaPage]:
    """Yield the pages of sqlite_schema, also those of a list that never ends. SQLite reports a damaged page itself."""
    size = page_size(file.read(100))
    waiting = [1] if size >= 512 else []
    while waiting:
        number = waiting.pop()
        file.seek(max(number - 1, 0) * size)
        page, first = file.read(size), 100 if number == 1 else 0
        try:
            kind, count = struct.unpack_from(">BxxH", page, first)
            cells = struct.unpack_from(f">{count}H", page, first + HEADER_SIZE.get(kind, size))
        except struct.error:
            kind, cells = 0, ()
        if kind == INTERIOR:
            waiting += [int.from_bytes(page[at : at + 4], "big") for at in (*cells, first + LAST_CHILD)]
        yield SchemaPage(number, [_first_varint(page[at : at + 9]) for at in cells] if kind == LEAF else [])


def _first_varint(cell: bytes) -> int:
    value = 0
    for byte in cell:
        value = value << 7 | (byte & 127)
        if byte < 128:
            break
    return value


@dataclass(frozen=True, slots=True)
class Pages:
    """An open database file. Pages have numbers from 1. They are read, not mapped: a file may shrink meanwhile."""

    file: int
    size: int
    count: int

    @classmethod
    def from_header(cls, file: int) -> Pages:
        """Read the database header (section 1.3). Raises NotPlainError if it is not that of a plain export."""
        head = os.pread(file, 100, 0)
        if len(head) < 100:
            raise NotPlainError
        size = page_size(head)
        write_version, read_version, reserved = head[18:21]
        encoding = int.from_bytes(head[56:60], "big")
        plain = (write_version, read_version, reserved, encoding) == (1, 1, 0, UTF8) and head[21:24] == FIXED_FRACTIONS
        if not plain or size < 512 or size & (size - 1):
            raise NotPlainError
        pages_in_file = os.fstat(file).st_size // size
        # SQLite refuses pages beyond the size that the header states, even if the file is longer.
        return cls(file, size, min(pages_in_file, stated_pages(head) or pages_in_file))

    def check_numbers(self, numbers: Numbers) -> None:
        """Raise NotPlainError for page numbers that no table can have, and for repeated ones."""
        lock_page = LOCK_BYTE // self.size + 1
        if numbers.min() < 2 or numbers.max() > self.count or (numbers == lock_page).any():
            raise NotPlainError
        # Page numbers usually ascend, which is ten times faster to check than that all differ.
        if not (numbers[1:] > numbers[:-1]).all() and len(np.unique(numbers)) < len(numbers):
            raise NotPlainError

    def page(self, number: int) -> bytes:
        """Read one page."""
        page = os.pread(self.file, self.size, (number - 1) * self.size)
        if len(page) < self.size:
            raise NotPlainError
        return page

    def block(self, numbers: Numbers, padding: int) -> Bytes:
        """Read these pages into one array, and append `padding` zeros."""
        block = np.empty(len(numbers) * self.size + padding, np.uint8)
        block[-padding:] = 0
        breaks = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1) != 1).tolist()
        for first, last in pairwise(breaks):
            chunk = block[first * self.size : last * self.size].data
            if os.preadv(self.file, [chunk], (int(numbers[first]) - 1) * self.size) < len(chunk):
                raise NotPlainError
        return block


def cell_counts(pages: Bytes, kind: int) -> Numbers:
    """Return the number of cells of each page; a page is a row. Raises NotPlainError unless all pages have this kind.

    A table with rows has no pages without cells, and SQLite refuses them.
    """
    heads = pages[:, :5].astype(np.int64)  # pages are far apart in memory: read each once
    if not (heads[:, 0] == kind).all():
        raise NotPlainError
    counts = heads[:, 3] << 8 | heads[:, 4]
    if counts.min() < 1 or counts.max() > (pages.shape[1] - 8) // MIN_CELL_BYTES:
        raise NotPlainError
    return counts


def check_cell_places(cells: Numbers, counts: Numbers, kind: int, page_size: int) -> None:
    """Raise NotPlainError for cells that begin in the header, the pointers or the last bytes of their page.

    `cells` has the places of the first page's cells, then those of the second, and so on.
    """
    first = HEADER_SIZE[kind] + 2 * counts
    lowest = np.minimum.reduceat(cells, np.cumsum(counts) - counts)
    if (lowest < first).any() or cells.max() > page_size - (4 if kind == LEAF else 5):
        raise NotPlainError


def leaf_pages(pages: Pages, root: int) -> Numbers:
    """Return the leaf pages of a table in the order of its rows. Raises NotPlainError if their depths differ."""
    numbers = np.array([root], np.int64)
    for _ in range(MAX_DEPTH):
        pages.check_numbers(numbers)
        # Check only the first page of a level: pages of another kind are refused when they are decoded.
        if pages.page(int(numbers[0]))[0] == LEAF:
            return numbers
        numbers = np.concatenate([_children(pages.page(number)) for number in numbers.tolist()])
    raise NotPlainError


def _children(raw: bytes) -> Numbers:
    """Return the children of an interior page."""
    page = np.frombuffer(raw + bytes(PADDING), np.uint8)
    counts = cell_counts(page[: len(raw)].reshape(1, -1), INTERIOR)
    cells = np.ndarray(int(counts[0]), ">u2", page, HEADER_SIZE[INTERIOR]).astype(np.int64)
    check_cell_places(cells, counts, INTERIOR, len(raw))
    if after_varints(page, cells + 4).max() > len(raw):
        raise NotPlainError
    numbers = page[np.append(cells, LAST_CHILD)[:, None] + np.arange(4)]
    return numbers.view(">u4").ravel().astype(np.int64)


def leaves_of_rows(pages: Pages, leaves: Numbers, rows: tuple[int, int]) -> tuple[Numbers, range]:
    """Return the leaves that hold the row ids [first, stop), and the row ids that they hold.

    Raises NotPlainError if no leaf holds them. Where row ids are missing, the leaves hold fewer rows than row ids.
    """

    def edge(number: int, last: bool) -> int:
        return _row_id(pages.page(number), last)

    numbers = leaves.tolist()
    low = max(bisect_right(numbers, rows[0], key=lambda number: edge(number, False)) - 1, 0)
    high = bisect_left(numbers, rows[1], key=lambda number: edge(number, False))
    if high <= low:
        raise NotPlainError
    return leaves[low:high], range(edge(numbers[low], False), edge(numbers[high - 1], True) + 1)


def _row_id(page: bytes, last: bool) -> int:
    """Return the row id of the first or the last row of a leaf."""
    count = int.from_bytes(page[3:5], "big")
    pointer = HEADER_SIZE[LEAF] + 2 * (max(count, 1) - 1 if last else 0)
    at = int.from_bytes(page[pointer : pointer + 2], "big")
    if page[0] != LEAF or not 0 < at < len(page) - MAX_VARINT_BYTES:
        raise NotPlainError
    while page[at] > 127:
        at += 1
        if at > len(page) - MAX_VARINT_BYTES:
            raise NotPlainError
    return _first_varint(page[at + 1 : at + 1 + MAX_VARINT_BYTES])


def after_varints(flat: Bytes, at: Numbers) -> Numbers:
    """Return the places after varints: up to nine bytes, the last without its high bit."""
    at = at.copy()
    going = flat[at] > 127
    for _ in range(MAX_VARINT_BYTES - 1):
        at += going
        if not going.any():
            break
        going &= flat[at] > 127
    return at + 1
