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
from pathlib import Path
from typing import NamedTuple

import polars as pl

from traceview.read.raw import SHAPE
from traceview.read.sqlite.pages import NotPlainError, Numbers, Pages, leaf_pages, leaves_of_rows
from traceview.read.sqlite.records import DecodedTable, IntegerColumn, Layout, TooWideError, decode

MIN_TABLE_BYTES = 64 << 10  # SQLite reads smaller tables as fast
PAGES_PER_CHUNK = 256  # a chunk and its columns fit into the processor's cache
REAL_TYPE = re.compile("REAL|FLOA|DOUB", re.IGNORECASE)


class DecodedFrames(NamedTuple):
    """A table's integer columns, nulls kept, in the order of its rows.

    The column SHAPE, if there is one, has each row's row in `groups`.
    """

    columns: pl.DataFrame
    groups: pl.DataFrame | None


class TableDecoder(NamedTuple):
    """Decodes `columns` of the table at page `root`, whose records have the columns `names` in this order.

    It decodes only the different rows of the columns `grouped`, some of them more than once. `rows` are the row ids
    [first, stop) to decode; None for all.
    """

    path: Path
    root: int
    names: tuple[str, ...]
    columns: tuple[str, ...]
    grouped: tuple[str, ...] = ()
    rows: tuple[int, int] | None = None

    def decode(self) -> DecodedFrames | None:
        """Return the decoded columns; None if SQLite must read them, or is as fast."""
        wanted, grouped = ([self.names.index(name) for name in names] for names in (self.columns, self.grouped))
        try:
            with self.path.open("rb", buffering=0) as file:
                pages = Pages.from_header(file.fileno())
                leaves = leaf_pages(pages, self.root)
                if len(leaves) * pages.size < MIN_TABLE_BYTES:
                    return None
                held = None
                if self.rows is not None:
                    leaves, held = leaves_of_rows(pages, leaves, self.rows)
                layout = Layout.for_table(pages.size, len(self.names), max(wanted + grouped))
                columns, groups = ({at: IntegerColumn() for at in places} for places in (wanted, grouped))
                table = DecodedTable(columns, groups, IntegerColumn())
                _decode_leaves(pages, leaves, layout, table)
        except (NotPlainError, OSError, ValueError, MemoryError):
            return None
        frame = pl.DataFrame([columns.pop(at).series(self.names[at]) for at in wanted])  # no column exists twice
        different = None
        if grouped:
            frame = frame.with_columns(table.group_rows.series(SHAPE))
            different = pl.DataFrame([groups[at].series(self.names[at]) for at in grouped])
        if self.rows is not None and held is not None:
            if len(held) != len(frame):  # row ids are missing
                return None
            frame = frame.slice(self.rows[0] - held.start, self.rows[1] - self.rows[0])
        return DecodedFrames(frame, different)


def table_decoder(
    path: Path,
    connection: sqlite3.Connection,
    table: str,
    columns: list[str],
    grouped: Sequence[str] = (),
    rows: tuple[int, int] | None = None,
) -> TableDecoder | None:
    """Return a decoder of integer columns of a table; None if SQLite must read them.

    `grouped` are further columns, with few different rows, and `rows` those of TableDecoder. `connection` has the same
    file open; the decoder does not keep it.
    """
    names = _stored_columns(connection, table, [*columns, *grouped])
    query = "SELECT rootpage FROM main.sqlite_master WHERE type = 'table' AND name = ?"
    roots = [root for (root,) in connection.execute(query, (table,)).fetchall()]
    if not columns or names is None or len(roots) != 1 or not isinstance(roots[0], int):
        return None
    return TableDecoder(path, roots[0], tuple(names), tuple(columns), tuple(grouped), rows)


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


def _decode_leaves(pages: Pages, leaves: Numbers, layout: Layout, into: DecodedTable) -> None:
    narrow = layout
    for first in range(0, len(leaves), PAGES_PER_CHUNK):
        share = min(1.0, (first + PAGES_PER_CHUNK) / len(leaves))
        block = pages.block(leaves[first : first + PAGES_PER_CHUNK], layout.width)
        try:
            end = decode(block[: len(block) - layout.width + narrow.width], narrow, into, share)
        except TooWideError:
            end = decode(block, layout, into, share)
        narrow = layout.narrowed(end)
