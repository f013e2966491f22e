"""The way from a table's root page to its leaves (section 1.6 of the file format)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from traceview.read.sqlite_pages.column import Bytes, NotPlainError, Numbers
from traceview.read.sqlite_pages.pages import INTERIOR, LEAF, SMALLEST_CELL, Pages, cell_counts, check_cell_places

MAX_DEPTH = 20  # levels; SQLite refuses more
WIDEST_VARINT = 9
PADDING = 16


class Leaves(NamedTuple):
    """The leaf pages of a table in row order, and where each one's rows begin if no rowid is missing.

    `edges` has one entry more than `pages`: the number of rows, likewise.
    """

    pages: Numbers
    edges: Numbers


def leaf_pages(pages: Pages, root: int) -> Leaves:
    """Return a table's leaves. Raises NotPlainError where they are not equally deep, or hold implausible rowids."""
    numbers, largest = np.array([root], np.int64), np.array([-1], np.int64)
    for _ in range(MAX_DEPTH):
        pages.check_numbers(numbers)
        # The first page of a level stands for the level: another kind of page is refused when it is decoded.
        if pages.page(int(numbers[0]))[0] == LEAF:
            return Leaves(numbers, _row_edges(pages, numbers, largest))
        nodes = [children(pages.page(number)) for number in numbers.tolist()]
        keys = [np.append(keys, above) for (_, keys), above in zip(nodes, largest.tolist(), strict=True)]
        numbers, largest = np.concatenate([below for below, _ in nodes]), np.concatenate(keys)
    raise NotPlainError


def children(raw: bytes) -> tuple[Numbers, Numbers]:
    """Return an interior page's children, and the largest rowid of each but the last."""
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


def _row_edges(pages: Pages, leaves: Numbers, largest: Numbers) -> Numbers:
    """Return where each leaf's rows go: rowids ascend by 1 unless rows were deleted."""
    before = _rowid(pages.page(int(leaves[0])), 0) - 1
    last_page = pages.page(int(leaves[-1]))
    last = _rowid(last_page, int.from_bytes(last_page[3:5], "big") - 1)
    edges = np.concatenate([np.array([before], np.int64), largest[:-1], np.array([last], np.int64)]) - before
    if (np.diff(edges) <= 0).any() or edges[-1] > len(leaves) * pages.size // SMALLEST_CELL:
        raise NotPlainError
    return edges


def _rowid(page: bytes, index: int) -> int:
    """Return the rowid of one cell of a leaf."""
    if page[0] != LEAF or not 0 <= index <= len(page) // 2 - 5:
        raise NotPlainError
    at = page[8 + 2 * index] << 8 | page[9 + 2 * index]
    cell = np.frombuffer(page[at : at + 11] + bytes(11), np.uint8)
    after_size = 1 if cell[0] < 128 else 2
    return int(_varints(cell, np.array([after_size], np.int64))[0][0])


def _varints(page: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """Decode varints of up to eight bytes; also return where each ends."""
    value = np.zeros(len(at), np.int64)
    ends = at.copy()
    unfinished = np.ones(len(at), np.bool_)
    for _ in range(WIDEST_VARINT - 1):
        byte = page[ends].astype(np.int64)
        value = np.where(unfinished, value << 7 | byte & 127, value)
        ends += unfinished
        unfinished &= byte > 127
        if not unfinished.any():
            return value, ends
    raise NotPlainError
