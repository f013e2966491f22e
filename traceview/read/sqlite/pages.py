"""The pages of an open database file: the checks that SQLite makes of b-tree pages, and the leaf pages of a table.

Sections 1.3, 1.4 and 1.6 of the file format (decoder.py). `schema_pages` makes no checks: it sizes the list of tables
before SQLite parses it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

INTERIOR, LEAF = 5, 13
HEADER_SIZE = {INTERIOR: 12, LEAF: 8}  # bytes of a page before its cell pointers
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
            waiting += [int.from_bytes(page[at : at + 4], "big") for at in (*cells, first + 8)]
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


class Leaves(NamedTuple):
    """The leaf pages of a table in row order, and the first row of each if no rowid is missing.

    The last of `edges` is the number of rows: it has one entry more than `pages`.
    """

    pages: Numbers
    edges: Numbers


def leaf_pages(pages: Pages, root: int) -> Leaves:
    """Return the leaves of a table. Raises NotPlainError if they have different depths or implausible rowids."""
    numbers, largest = np.array([root], np.int64), np.array([(1 << 63) - 1], np.int64)
    for _ in range(MAX_DEPTH):
        pages.check_numbers(numbers)
        # Check only the first page of a level: pages of another kind are refused when they are decoded.
        if pages.page(int(numbers[0]))[0] == LEAF:
            edges = _rowid_edges(pages, numbers, largest)
            return Leaves(numbers, edges - edges[0])
        nodes = [children(pages.page(number)) for number in numbers.tolist()]
        keys = [np.append(keys, above) for (_, keys), above in zip(nodes, largest.tolist(), strict=True)]
        numbers, largest = np.concatenate([below for below, _ in nodes]), np.concatenate(keys)
    raise NotPlainError


def children(raw: bytes) -> tuple[Numbers, Numbers]:
    """Return the children of an interior page, and the largest rowid below each child except the last."""
    page = np.frombuffer(raw + bytes(PADDING), np.uint8)
    counts = cell_counts(page[: len(raw)].reshape(1, -1), INTERIOR)
    pointers = page[12 : 12 + 2 * int(counts[0])].astype(np.int64)
    cells = pointers[0::2] << 8 | pointers[1::2]
    check_cell_places(cells, counts, INTERIOR, len(raw))
    four = page[np.append(cells, 8)[:, None] + np.arange(4)].astype(np.int64)
    keys, ends = _varints(page, cells + 4)
    if ends.max() > len(raw):
        raise NotPlainError
    return four[:, 0] << 24 | four[:, 1] << 16 | four[:, 2] << 8 | four[:, 3], keys


def _rowid_edges(pages: Pages, leaves: Numbers, largest: Numbers) -> Numbers:
    """Return the rowid before the first row, and the largest rowid of each leaf: they ascend."""
    before = _rowid(pages.page(int(leaves[0])), 0) - 1
    last_page = pages.page(int(leaves[-1]))
    last = _rowid(last_page, int.from_bytes(last_page[3:5], "big") - 1)
    edges = np.concatenate([np.array([before], np.int64), largest[:-1], np.array([last], np.int64)])
    if (np.diff(edges) <= 0).any() or edges[-1] - before > len(leaves) * pages.size // MIN_CELL_BYTES:
        raise NotPlainError
    return edges


def _rowid(page: bytes, index: int) -> int:
    """Return the rowid of a leaf's cell."""
    if page[0] != LEAF or not 0 <= index <= len(page) // 2 - 5:
        raise NotPlainError
    at = page[8 + 2 * index] << 8 | page[9 + 2 * index]
    cell = np.frombuffer(page[at : at + 11] + bytes(11), np.uint8)
    after_size = 1 if cell[0] < 128 else 2
    return int(_varints(cell, np.array([after_size], np.int64))[0][0])


def _varints(page: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """Return the values of varints of up to eight bytes, and the end of each."""
    value = np.zeros(len(at), np.int64)
    ends = at.copy()
    unfinished = np.ones(len(at), np.bool_)
    for _ in range(MAX_VARINT_BYTES - 1):
        byte = page[ends].astype(np.int64)
        value = np.where(unfinished, value << 7 | byte & 127, value)
        ends += unfinished
        unfinished &= byte > 127
        if not unfinished.any():
            return value, ends
    raise NotPlainError
