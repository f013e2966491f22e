"""Integer columns of a large SQLite table, decoded straight from its pages, as frames.

SQLite steps through a table row by row. The tables of an export hold millions of rows of plain integers, and NumPy
decodes their pages several times faster (pages.py, records.py).

The decoder relies on these parts of https://www.sqlite.org/fileformat2.html:

- 1.3, database header: page size, reserved bytes, format versions, text encoding, and the size of the file in pages.
  That size counts only while "version-valid-for" (offset 92) equals the change counter (offset 24).
- 1.4, lock-byte page: the page at byte 2^30 belongs to no table.
- 1.6, B-tree pages: each cell of an interior table page (type 5) holds a child page and the largest rowid below it; the
  last child is in the header. A leaf (type 13) holds the rows. Two bytes per cell point to the cells, in rowid order.
  A cell of a leaf is the size of its record, its rowid and the record, which lies whole on its page up to a size of
  page size - 35. Both numbers are varints: big-endian, 7 bits per byte, the ninth byte with all 8.
- 2.1, record format: the size of the header, one serial type per column, then the values. Types 0 to 6, 8 and 9 are
  NULL and integers of 0 to 8 bytes; the decoder skips floats (7), blobs and texts (from 12).
- 2.3, representation of tables: a rowid table with no key and no generated column stores its columns in their order.
- 2.6, sqlite_schema: the root page of each table.

Rule: the decoder returns the same values in the same rows as SQLite with `PRAGMA cell_size_check=ON`. It makes the
checks of pages and records that SQLite makes while it scans a table (btreeInitPage, btreeCellSizeCheck, getAndInitPage,
moveToRoot, moveToChild and OP_Column). Neither checks the free space of a page, the order of rowids or overlapping
cells. SQLite reads everything else, or names the damage: overflow pages, reserved bytes, UTF-16, WAL files, leaves at
different depths, a page that occurs twice, records with fewer columns than the table, and values that are neither
integers nor NULL.

`scripts/decoder-differential` compares the decoder with SQLite on generated and damaged databases.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.read.raw import SHAPE
from traceview.read.sqlite.pages import (
    LEAF,
    Leaves,
    NotPlainError,
    Numbers,
    Pages,
    children,
    leaf_pages,
)
from traceview.read.sqlite.records import IntegerColumn, Layout, RowGroups, decode

MIN_TABLE_BYTES = 64 << 10  # SQLite reads smaller tables as fast
PAGES_PER_CHUNK = 256  # a chunk and its columns fit into the processor's cache
REAL_TYPE = re.compile("REAL|FLOA|DOUB", re.IGNORECASE)


class DecodedTable(NamedTuple):
    """Columns in the order of a table's rows; `group_rows` has each row's row in the columns `groups`."""

    columns: dict[str, IntegerColumn]
    groups: dict[str, IntegerColumn]
    group_rows: Numbers


class TableDecoder(NamedTuple):
    """Decodes `columns` of the table at page `root`, whose records have the columns `names` in this order.

    It decodes only the different rows of the columns `grouped`, some of them more than once.
    """

    path: Path
    root: int
    names: tuple[str, ...]
    columns: tuple[str, ...]
    grouped: tuple[str, ...] = ()

    def decode(self) -> DecodedTable | None:
        """Return the decoded columns; None if SQLite must read them."""
        wanted, grouped = (sorted(map(self.names.index, columns)) for columns in (self.columns, self.grouped))
        try:
            with self.path.open("rb", buffering=0) as file:
                pages = Pages.from_header(file.fileno())
                layout = Layout.for_table(pages.size, len(self.names), max(wanted + grouped))
                decoded, groups = _decode_leaves(pages, leaf_pages(pages, self.root), layout, wanted, tuple(grouped))
        except (NotPlainError, OSError, ValueError, MemoryError):
            return None
        return DecodedTable(
            {name: decoded[self.names.index(name)] for name in self.columns},
            {name: groups.column(self.names.index(name)) for name in self.grouped},
            groups.rows,
        )


def table_decoder(
    path: Path, connection: sqlite3.Connection, table: str, columns: list[str], grouped: Sequence[str] = ()
) -> TableDecoder | None:
    """Return a decoder of integer columns of a table; None if SQLite must read them, or is as fast.

    `grouped` are further columns, with few different rows. `connection` has the same file open; the decoder does not
    keep it.
    """
    if path.stat().st_size < MIN_TABLE_BYTES or not columns:
        return None
    names = _stored_columns(connection, table, [*columns, *grouped])
    root = _root_page(connection, table)
    if names is None or root is None or _is_small(path, root):
        return None
    return TableDecoder(path, root, tuple(names), tuple(columns), tuple(grouped))


def _stored_columns(connection: sqlite3.Connection, table: str, wanted: list[str]) -> list[str] | None:
    """Return all columns in the order of a record; None if records may differ from the declared columns."""
    quoted = '"' + table.replace('"', '""') + '"'
    lines = connection.execute(f"PRAGMA main.table_xinfo({quoted})").fetchall()
    layout = [(name, kind, key, hidden) for _, name, kind, _, _, key, hidden in lines]
    # A primary key of one column may be the rowid, a generated column may not be stored, and a table without rowids
    # has an index under its own name and another layout.
    ordered = connection.execute(f"PRAGMA main.index_info({quoted})").fetchone()
    if any(hidden for *_, hidden in layout) or sum(key > 0 for _, _, key, _ in layout) == 1 or ordered:
        return None
    # A REAL column stores whole numbers as integers, but SQLite returns floats.
    if any(name in wanted and REAL_TYPE.search(kind) for name, kind, _, _ in layout):
        return None
    return [name for name, *_ in layout]


def _root_page(connection: sqlite3.Connection, table: str) -> int | None:
    """Return a table's root page; None if sqlite_schema does not hold an integer."""
    query = "SELECT rootpage FROM main.sqlite_master WHERE type = 'table' AND name = ?"
    entries = connection.execute(query, (table,)).fetchall()
    return entries[0][0] if len(entries) == 1 and isinstance(entries[0][0], int) else None


def _is_small(path: Path, root: int) -> bool:
    """Return whether SQLite is as fast, by the root page and its first child; True if one of them is damaged."""
    try:
        with path.open("rb", buffering=0) as file:
            pages = Pages.from_header(file.fileno())
            top = pages.page(root)
            if top[0] == LEAF:
                return pages.size < MIN_TABLE_BYTES
            below, _ = children(top)
            return pages.page(int(below[0]))[0] == LEAF and len(below) * pages.size < MIN_TABLE_BYTES
    except (NotPlainError, OSError, ValueError):
        return True


def _decode_leaves(
    pages: Pages, leaves: Leaves, layout: Layout, wanted: list[int], grouped: tuple[int, ...]
) -> tuple[dict[int, IntegerColumn], RowGroups]:
    edges = leaves.edges
    rows = int(edges[-1])
    groups = RowGroups(grouped, np.empty(rows if grouped else 0, np.int64))
    columns = {place: IntegerColumn(np.empty(rows, np.int64)) for place in wanted}
    narrow = layout

    def decode_chunk(first: int) -> slice:
        nonlocal narrow
        start = int(edges[first])
        block = pages.block(leaves.pages[first : first + PAGES_PER_CHUNK], layout.width)
        try:
            count, end = decode(block[: len(block) - layout.width + narrow.width], narrow, columns, groups, start)
        except NotPlainError:
            count, end = decode(block, layout, columns, groups, start)
        narrow = layout.narrowed(end)
        return slice(start, start + count)

    parts = [decode_chunk(first) for first in range(0, len(leaves.pages), PAGES_PER_CHUNK)]
    # A chunk with more rows than rowids was partly overwritten by the next chunk.
    if any(part.stop > int(edge) for part, edge in zip(parts, edges[PAGES_PER_CHUNK::PAGES_PER_CHUNK], strict=False)):
        raise NotPlainError
    merged = _merge_adjacent(parts)
    groups.rows = IntegerColumn(groups.rows).join_parts(merged).values if grouped else groups.rows
    return {place: columns.pop(place).join_parts(merged) for place in wanted}, groups


def _merge_adjacent(parts: list[slice]) -> list[slice]:
    """Return one slice if each part begins at the end of the part before."""
    if all(after.start == before.stop for before, after in pairwise(parts)):
        return [slice(parts[0].start, parts[-1].stop)]
    return parts


class DecodedFrames(NamedTuple):
    """A table's integer columns, nulls kept. The column SHAPE, if there is one, has each row's row in `groups`."""

    columns: pl.DataFrame
    groups: pl.DataFrame | None


def decoded_frames(decoder: TableDecoder) -> DecodedFrames | None:
    """Return a table's integer columns; None if SQLite must read them."""
    decoded = decoder.decode()
    if decoded is None:
        return None
    frame = pl.DataFrame([_series(name, column) for name, column in decoded.columns.items()])
    if not decoded.groups:
        return DecodedFrames(frame, None)
    groups = pl.DataFrame([_series(name, column) for name, column in decoded.groups.items()])
    return DecodedFrames(frame.with_columns(pl.Series(SHAPE, decoded.group_rows)), groups)


def _series(name: str, column: IntegerColumn) -> pl.Series:
    series = pl.Series(name, column.values)
    return series if column.null is None or not column.null.any() else series.set(pl.Series(column.null), None)
