"""Whole integer columns of a large SQLite table, decoded straight from its leaf pages.

SQLite steps through a table row by row; nsys tables hold millions of rows of plain integers, so their
pages are read and decoded here (https://www.sqlite.org/fileformat2.html, sections 1.6 and 2.1; the records
themselves in records.py). Whatever is not plain (overflow, another encoding, text in an integer column, a
damaged page) is answered with None, and the caller asks SQLite itself.
"""

from __future__ import annotations

import os
import re
import sqlite3
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from traceview.read.records import LEAF, Bytes, Column, Layout, NotPlainError, Numbers, decode

SMALL = 64 << 10  # bytes of a table's pages: below this SQLite is as fast
PAGES_AT_ONCE = 256  # a chunk and its columns stay in the processor's cache
INTERIOR = 5
REAL = re.compile("REAL|FLOA|DOUB", re.IGNORECASE)
MAX_DEPTH = 20
LEAST_CELL = 5  # bytes that a row takes on its page

Columns = dict[str, Column]


@dataclass(frozen=True, slots=True)
class Plan:
    """Integer columns of one table that may be decoded here: `wanted` are the places of `columns` in a record."""

    path: Path
    root: int
    names: tuple[str, ...]  # of all columns, in the order of a record
    columns: tuple[str, ...]


def plan(path: Path, connection: sqlite3.Connection, table: str, columns: list[str]) -> Plan | None:
    """Return how integer columns of a table are decoded; None where SQLite must do it."""
    if path.stat().st_size < SMALL or not columns:
        return None
    names = _plain_columns(connection, table, columns)
    if names is None:
        return None
    query = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?"
    root = connection.execute(query, (table,)).fetchone()[0]
    if _is_small(path, root):
        return None
    return Plan(path, root, tuple(names), tuple(columns))


def _is_small(path: Path, root: int) -> bool:
    """Tell by a table's first page, and where that leads to, whether SQLite is as fast; also where it is damaged."""
    try:
        with path.open("rb", buffering=0) as file:
            pages = _Pages.of(file.fileno())
            top = pages.one(root)
            if top[0] == LEAF:
                return pages.size < SMALL
            below, _ = _children(top)
            return pages.one(int(below[0]))[0] == LEAF and len(below) * pages.size < SMALL
    except (NotPlainError, OSError, ValueError):
        return True


def decoded(of: Plan) -> Columns | None:
    """Return the columns in the order of the table's rows; None where SQLite must do it after all."""
    wanted = sorted(of.names.index(column) for column in of.columns)
    try:
        with of.path.open("rb", buffering=0) as file:
            pages = _Pages.of(file.fileno())
            layout = Layout.of(pages.size, len(of.names), wanted[-1])
            found = _decode_all(pages, of.root, layout, wanted)
    except (NotPlainError, OSError, ValueError, MemoryError):
        return None
    return {name: found[of.names.index(name)] for name in of.columns}


def _plain_columns(connection: sqlite3.Connection, table: str, wanted: list[str]) -> list[str] | None:
    """Return all columns in the order of a record; None where a record is not just its columns as they are."""
    layout = connection.execute("SELECT name, type, pk, hidden FROM pragma_table_xinfo(?)", (table,)).fetchall()
    # A primary key may be the row number or the order of the table, and a generated column may not be stored.
    if any(key or hidden for _, _, key, hidden in layout):
        return None
    # A REAL column stores whole numbers as integers, although they are none.
    if any(name in wanted and REAL.search(kind) for name, kind, _, _ in layout):
        return None
    return [name for name, *_ in layout]


@dataclass(frozen=True, slots=True)
class _Pages:
    """The pages of an open file, numbered from 1. Read, not mapped: a file cut off meanwhile is no crash."""

    file: int
    size: int
    count: int

    @classmethod
    def of(cls, file: int) -> _Pages:
        head = os.pread(file, 100, 0)
        if len(head) < 100:
            raise NotPlainError
        size = int.from_bytes(head[16:18], "big")
        size = 65536 if size == 1 else size
        reserved, encoding = head[20], int.from_bytes(head[56:60], "big")
        if size < 512 or reserved or encoding != 1 or head[18] != 1:
            raise NotPlainError
        return cls(file, size, os.fstat(file).st_size // size)

    def one(self, number: int) -> bytes:
        page = os.pread(self.file, self.size, (number - 1) * self.size)
        if len(page) < self.size:
            raise NotPlainError
        return page

    def several(self, numbers: Numbers, room: int) -> Bytes:
        """Return these pages one after the other, and `room` bytes more."""
        block = np.empty(len(numbers) * self.size + room, np.uint8)
        block[-room:] = 0
        breaks = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1) != 1).tolist()
        for first, last in pairwise(breaks):
            piece = block[first * self.size : last * self.size].data
            if os.preadv(self.file, [piece], (int(numbers[first]) - 1) * self.size) < len(piece):
                raise NotPlainError
        return block


class _Leaves(NamedTuple):
    """A table's leaf pages, in the order of their rows: numbers, and the last row number that each may hold."""

    pages: Numbers
    last: Numbers


def _decode_all(pages: _Pages, root: int, layout: Layout, wanted: list[int]) -> dict[int, Column]:
    leaves = _leaves(pages, root)
    # Row numbers ascend by one unless rows were deleted, so they say where each page's rows go.
    before = _row_number(pages.one(int(leaves.pages[0])), 0) - 1
    edges = np.concatenate([np.array([before], np.int64), leaves.last]) - before
    if (np.diff(edges) <= 0).any() or edges[-1] > len(leaves.pages) * pages.size // LEAST_CELL:
        raise NotPlainError
    rows = int(edges[-1])
    found = {column: Column(np.empty(rows, np.int64)) for column in wanted}

    narrow = layout

    def decode_chunk(first: int) -> slice:
        nonlocal narrow
        chunk = slice(first, first + PAGES_AT_ONCE)
        start = int(edges[first])
        block = pages.several(leaves.pages[chunk], layout.width)
        try:
            count, end = decode(block[: len(block) - layout.width + narrow.width], narrow, found, start)
        except NotPlainError:
            count, end = decode(block, layout, found, start)
        narrow = layout.narrowed(end)
        return slice(start, start + count)

    parts = [decode_chunk(first) for first in range(0, len(leaves.pages), PAGES_AT_ONCE)]
    if any(part.stop > int(edge) for part, edge in zip(parts, edges[PAGES_AT_ONCE::PAGES_AT_ONCE], strict=False)):
        raise NotPlainError
    return {column: found.pop(column).whole(_merged(parts)) for column in wanted}


def _merged(parts: list[slice]) -> list[slice]:
    """Return one slice where they follow each other without a break."""
    if all(after.start == before.stop for before, after in pairwise(parts)):
        return [slice(parts[0].start, parts[-1].stop)]
    return parts


def _leaves(pages: _Pages, root: int) -> _Leaves:
    level = _Leaves(np.array([root], np.int64), np.array([-1], np.int64))
    for _ in range(MAX_DEPTH):
        numbers = level.pages
        if numbers.min() < 2 or numbers.max() > pages.count or _some_twice(numbers):
            raise NotPlainError
        # All leaves are equally deep; a page that is not what the first of its level is, is refused when decoded.
        if pages.one(int(numbers[0]))[0] == LEAF:
            return _Leaves(numbers, np.append(level.last[:-1], _last_row(pages.one(int(numbers[-1])))))
        children = [_children(pages.one(number)) for number in numbers.tolist()]
        last = [np.append(keys, above) for (_, keys), above in zip(children, level.last.tolist(), strict=True)]
        level = _Leaves(np.concatenate([numbers for numbers, _ in children]), np.concatenate(last))
    raise NotPlainError


def _some_twice(numbers: Numbers) -> bool:
    # Pages most often ascend, and an order is looked through in a tenth of the time.
    return not (numbers[1:] > numbers[:-1]).all() and len(np.unique(numbers)) < len(numbers)


def _children(raw: bytes) -> tuple[Numbers, Numbers]:
    """Return an interior page's children, and the largest row number of each but the last."""
    page = np.frombuffer(raw + bytes(16), np.uint8)
    if page[0] != INTERIOR:
        raise NotPlainError
    count = int(page[3]) << 8 | int(page[4])
    if 12 + 2 * count > len(raw):
        raise NotPlainError
    pointers = page[12 : 12 + 2 * count].astype(np.int64)
    cells = pointers[0::2] << 8 | pointers[1::2]
    if count and cells.max() > len(raw) - 5:
        raise NotPlainError
    at = np.append(cells, 8)[:, None] + np.arange(4)
    four = page[at].astype(np.int64)
    return four[:, 0] << 24 | four[:, 1] << 16 | four[:, 2] << 8 | four[:, 3], _varints(page, cells + 4)


def _varints(page: Bytes, at: Numbers) -> Numbers:
    """Decode varints of up to eight bytes."""
    value = np.zeros(len(at), np.int64)
    going = np.ones(len(at), np.bool_)
    for place in range(8):
        byte = page[at + place].astype(np.int64)
        value = np.where(going, value << 7 | byte & 127, value)
        going &= byte > 127
        if not going.any():
            return value
    raise NotPlainError


def _row_number(page: bytes, index: int) -> int:
    """Return the row number of one cell of a leaf page."""
    if page[0] != LEAF or not 0 <= index <= len(page) // 2 - 5:
        raise NotPlainError
    at = page[8 + 2 * index] << 8 | page[9 + 2 * index]
    cell = np.frombuffer(page[at : at + 11] + bytes(11), np.uint8)
    after_payload = 1 if cell[0] < 128 else 2
    return int(_varints(cell, np.array([after_payload], np.int64))[0])


def _last_row(page: bytes) -> int:
    return _row_number(page, (page[3] << 8 | page[4]) - 1)
