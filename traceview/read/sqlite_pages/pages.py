"""The pages of an open database file, and the checks that SQLite makes of each b-tree page."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traceview.read.sqlite_pages.column import Bytes, NotPlainError, Numbers

INTERIOR, LEAF = 5, 13
HEADER_SIZE = {INTERIOR: 12, LEAF: 8}  # bytes of a page before its cell pointers
FIXED_FRACTIONS = b"\x40\x20\x20"  # bytes 21 to 23 of every database
UTF8 = 1
LOCK_BYTE = 1 << 30
SMALLEST_CELL = 6  # bytes that a cell and its pointer take at least


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages are numbered from 1. They are read, not mapped: a file that shrinks meanwhile causes no crash."""

    file: int
    size: int
    count: int

    @classmethod
    def from_header(cls, file: int) -> Pages:
        """Read the database header (section 1.3). Raises NotPlainError where it is not that of a plain export."""
        head = os.pread(file, 100, 0)
        if len(head) < 100:
            raise NotPlainError
        size = int.from_bytes(head[16:18], "big")
        size = 65536 if size == 1 else size
        write_version, read_version, reserved = head[18:21]
        encoding = int.from_bytes(head[56:60], "big")
        plain = (write_version, read_version, reserved, encoding) == (1, 1, 0, UTF8) and head[21:24] == FIXED_FRACTIONS
        if not plain or size < 512 or size & (size - 1):
            raise NotPlainError
        whole = os.fstat(file).st_size // size
        stated = int.from_bytes(head[28:32], "big") if head[24:28] == head[92:96] else 0
        # SQLite refuses pages beyond the size that the header states, even where the file is longer.
        return cls(file, size, min(whole, stated or whole))

    def check_numbers(self, numbers: Numbers) -> None:
        """Refuse page numbers that no table can have, and one that comes twice."""
        lock_page = LOCK_BYTE // self.size + 1
        if numbers.min() < 2 or numbers.max() > self.count or (numbers == lock_page).any():
            raise NotPlainError
        # Pages most often ascend; that is ten times faster to see than whether all differ.
        if not (numbers[1:] > numbers[:-1]).all() and len(np.unique(numbers)) < len(numbers):
            raise NotPlainError

    def page(self, number: int) -> bytes:
        """Read one page."""
        page = os.pread(self.file, self.size, (number - 1) * self.size)
        if len(page) < self.size:
            raise NotPlainError
        return page

    def block(self, numbers: Numbers, padding: int) -> Bytes:
        """Read these pages one after the other, and append `padding` zeros."""
        block = np.empty(len(numbers) * self.size + padding, np.uint8)
        block[-padding:] = 0
        breaks = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1) != 1).tolist()
        for first, last in pairwise(breaks):
            piece = block[first * self.size : last * self.size].data
            if os.preadv(self.file, [piece], (int(numbers[first]) - 1) * self.size) < len(piece):
                raise NotPlainError
        return block


def cell_counts(pages: Bytes, kind: int) -> Numbers:
    """Return how many cells each page has; a page is a row. Raises NotPlainError unless all are of that kind.

    A page without cells is no part of a table with rows, and SQLite refuses it.
    """
    heads = pages[:, :5].astype(np.int64)  # pages lie far apart: look at each once
    if not (heads[:, 0] == kind).all():
        raise NotPlainError
    counts = heads[:, 3] << 8 | heads[:, 4]
    if counts.min() < 1 or counts.max() > (pages.shape[1] - 8) // SMALLEST_CELL:
        raise NotPlainError
    return counts


def check_cell_places(cells: Numbers, counts: Numbers, kind: int, page_size: int) -> None:
    """Refuse cells that begin in the header or the pointers of their page, or within its last bytes.

    `cells` holds the places of the first page's cells, then those of the second, and so on.
    """
    first = HEADER_SIZE[kind] + 2 * counts
    lowest = np.minimum.reduceat(cells, np.cumsum(counts) - counts)
    if (lowest < first).any() or cells.max() > page_size - (4 if kind == LEAF else 5):
        raise NotPlainError
