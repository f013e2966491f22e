"""Whole integer columns of a large SQLite table, decoded straight from the mapped file.

SQLite steps through a table row by row; nsys tables hold millions of rows of plain integers, so their
leaf pages are decoded here column by column (https://www.sqlite.org/fileformat2.html, sections
1.6 and 2.1). Whatever is not plain (overflow, another encoding, text in an integer column, a damaged
page) is answered with None, and the caller asks SQLite itself.
"""

from __future__ import annotations

import mmap
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

SMALL = 4 << 20  # below this size SQLite is as fast
PAGES_AT_ONCE = 1024  # a chunk and its columns stay in the processor's cache
WORKERS = 2  # NumPy lets go of the interpreter while it gathers
LEAF, INTERIOR = 13, 5
REAL = re.compile("REAL|FLOA|DOUB", re.IGNORECASE)
MAX_DEPTH = 20

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

# Body size and right shift for each serial type; -1 where the type cannot be skipped or decoded.
_SIZES = np.full(256, -1, np.int64)
_SIZES[:10] = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_SIZES[12:128] = (np.arange(12, 128) - 12) // 2
_SHIFTS = np.zeros(256, np.int64)
_SHIFTS[:10] = (63, 56, 48, 40, 32, 16, 0, 0, 63, 63)
_IS_INTEGER = np.zeros(256, np.bool_)
_IS_INTEGER[[0, 1, 2, 3, 4, 5, 6, 8, 9]] = True


class NotPlainError(Exception):
    """The table needs SQLite itself."""


class _Cells(NamedTuple):
    """Leaf cells of some pages: where each record's header starts, its size, and where the record ends."""

    block: Bytes
    header: Numbers
    header_size: Numbers
    end: Numbers


@dataclass(frozen=True, slots=True)
class _Column:
    """A whole column under construction; threads write to parts of it that do not overlap."""

    values: Numbers
    null: NDArray[np.bool_]

    @classmethod
    def empty(cls, rows: int) -> _Column:
        return cls(np.empty(rows, np.int64), np.zeros(rows, np.bool_))

    def put(self, first: int, eight: NDArray[np.int64], at: Numbers, kind: Bytes) -> None:
        if not _IS_INTEGER[kind].all() or (len(at) and at.max() >= len(eight)):
            raise NotPlainError
        place = slice(first, first + len(at))
        values = eight[at].astype(np.int64) >> _SHIFTS[kind]
        short = (kind == 0) | (kind > 7)  # nothing is stored for null, 0 and 1
        if short.any():
            values = np.where(short, kind == 9, values)
            self.null[place] = kind == 0
        self.values[place] = values

    def series(self) -> pl.Series:
        series = pl.Series(self.values)
        return series.set(pl.Series(self.null), None) if self.null.any() else series


def read_integers(path: Path, connection: sqlite3.Connection, table: str, columns: list[str]) -> pl.DataFrame | None:
    """Return integer columns of a table in the order of its rows, nulls kept; None where SQLite must do it."""
    if path.stat().st_size < SMALL or not columns:
        return None
    names = _plain_columns(connection, table, columns)
    if names is None:
        return None
    query = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?"
    root = connection.execute(query, (table,)).fetchone()[0]
    wanted = sorted(names.index(column) for column in columns)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            found = _decode_all(np.frombuffer(mapped, np.uint8), root, wanted)
    except (NotPlainError, BufferError, ValueError):
        return None
    return pl.DataFrame({names[column]: found[column].series() for column in wanted}).select(columns)


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


def _decode_all(data: Bytes, root: int, wanted: list[int]) -> dict[int, _Column]:
    head = data[:100].tobytes()
    size = int.from_bytes(head[16:18], "big")
    size = 65536 if size == 1 else size
    reserved, encoding = head[20], int.from_bytes(head[56:60], "big")
    if size < 512 or reserved or encoding != 1 or head[18] != 1:
        raise NotPlainError
    matrix = data[: len(data) // size * size].reshape(-1, size)
    leaves = _leaves(matrix, root) - 1
    counts = _counts(matrix[leaves, :8], size)
    rows = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    if rows[-1] == 0:
        raise NotPlainError
    found = {column: _Column.empty(int(rows[-1])) for column in wanted}

    def decode(first: int) -> None:
        chunk = slice(first, first + PAGES_AT_ONCE)
        _decode(_cells(matrix[leaves[chunk]], size), found, int(rows[first]))

    with ThreadPoolExecutor(WORKERS) as workers:
        for _ in workers.map(decode, range(0, len(leaves), PAGES_AT_ONCE)):
            pass
    return found


def _counts(heads: Bytes, size: int) -> Numbers:
    """Return the number of cells that each page's header states."""
    counts = heads[:, 3].astype(np.int64) << 8 | heads[:, 4]
    if 2 * counts.max(initial=0) + 8 > size:
        raise NotPlainError
    return counts


def _leaves(matrix: Bytes, root: int) -> Numbers:
    """Return the numbers of a table's leaf pages, in the order of their rows."""
    level = np.array([root], np.int64)
    for _ in range(MAX_DEPTH):
        if level.min() < 2 or level.max() > len(matrix) or len(np.unique(level)) < len(level):
            raise NotPlainError
        kinds = matrix[level - 1, 0]
        if (kinds == LEAF).all():
            return level
        if not (kinds == INTERIOR).all():
            raise NotPlainError
        level = np.concatenate([_children(matrix[number - 1]) for number in level.tolist()])
    raise NotPlainError


def _children(page: Bytes) -> Numbers:
    count = int(page[3]) << 8 | int(page[4])
    pointers = page[12 : 12 + 2 * count].astype(np.int64)
    if len(pointers) != 2 * count:
        raise NotPlainError
    cells = pointers[0::2] << 8 | pointers[1::2]
    if count and cells.max() > len(page) - 4:
        raise NotPlainError
    at = np.concatenate([cells, np.array([8], np.int64)])[:, None] + np.arange(4)
    four = page[at].astype(np.int64)
    return four[:, 0] << 24 | four[:, 1] << 16 | four[:, 2] << 8 | four[:, 3]


def _cells(pages: Bytes, size: int) -> _Cells:
    count = _counts(pages, size)
    page = np.repeat(np.arange(len(pages)), count)
    nth = np.arange(len(page)) - np.repeat(np.cumsum(count) - count, count)
    block = np.concatenate([pages.reshape(-1), np.zeros(16, np.uint8)])
    pointer = page * size + 8 + 2 * nth
    cell = block[pointer].astype(np.int64) << 8 | block[pointer + 1]
    if len(cell) and (cell.max() > size - 4 or cell.min() < 8):
        raise NotPlainError
    at = page * size + cell
    payload, at = _payload_size(block, at)
    at = _after_varint(block, at)
    end = at + payload
    header_size = block[np.minimum(at, len(block) - 1)].astype(np.int64)
    outside = (payload > size - 35) | (end > (page + 1) * size) | (header_size > np.minimum(payload, 127))
    if outside.any():
        raise NotPlainError
    return _Cells(block, at, header_size, end)


def _payload_size(block: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    first = block[at].astype(np.int64)
    long = first > 127
    if not long.any():
        return first, at + 1
    second = block[at + 1].astype(np.int64)
    if (long & (second > 127)).any():
        raise NotPlainError
    return np.where(long, (first & 127) << 7 | second, first), at + 1 + long


def _after_varint(block: Bytes, at: Numbers) -> Numbers:
    """Step over one varint: up to nine bytes, the last without its high bit."""
    at = at.copy()
    going = block[at] > 127
    for _ in range(8):
        at += going
        if not going.any():
            break
        going &= block[at] > 127
    return at + 1


def _decode(cells: _Cells, found: dict[int, _Column], first: int) -> None:
    """Decode some pages' rows into their places, which begin at `first`."""
    block, at = cells.block, cells.header + cells.header_size
    # Every byte offset seen as the start of a big-endian 8-byte integer: one gather reads any width.
    eight = np.ndarray(len(block) - 8, np.dtype(">i8"), block, strides=(1,))
    last = max(found)
    if len(at) and cells.header_size.min() < last + 2:
        raise NotPlainError
    for column in range(last + 1):
        kind = block[cells.header + 1 + column]
        size = _SIZES[kind]
        if column in found:
            found[column].put(first, eight, at, kind)
        elif len(size) and size.min() < 0:
            raise NotPlainError
        at = at + size
    if (at > cells.end).any():
        raise NotPlainError
