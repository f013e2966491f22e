"""Integer columns of a large SQLite table, decoded straight from its pages, as frames: of all rows, or in parts.

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

`store_parts` writes a compact copy of the rows, for a file that is read several times and does not fit into memory. It
stores each column as the differences between its rows, in the narrowest type.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, distinct_rows
from traceview.read.raw import SHAPE
from traceview.read.sqlite.pages import (
    ALL_ROWS,
    LEAF,
    Leaves,
    NotPlainError,
    Numbers,
    Pages,
    RowIds,
    children,
    leaf_pages,
    rowid_edges,
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

    def decode(self, rows: RowIds = ALL_ROWS) -> DecodedTable | None:
        """Return the decoded columns; None if SQLite must read them.

        `rows` are all rows, or some of `row_ranges`: only the pages that hold them are read.
        """
        wanted, grouped = (sorted(map(self.names.index, columns)) for columns in (self.columns, self.grouped))
        try:
            with self.path.open("rb", buffering=0) as file:
                pages = Pages.from_header(file.fileno())
                layout = Layout.for_table(pages.size, len(self.names), max(wanted + grouped))
                decoded, groups = _decode_leaves(
                    pages, leaf_pages(pages, self.root, rows), layout, wanted, tuple(grouped)
                )
        except (NotPlainError, OSError, ValueError, MemoryError):
            return None
        return DecodedTable(
            {name: decoded[self.names.index(name)] for name in self.columns},
            {name: groups.column(self.names.index(name)) for name in self.grouped},
            groups.rows,
        )

    def row_ranges(self, pages_each: int) -> list[RowIds] | None:
        """Return adjoining ranges of all row ids that lie on this many pages each; None if SQLite must read them."""
        try:
            with self.path.open("rb", buffering=0) as file:
                edges = rowid_edges(Pages.from_header(file.fileno()), self.root)
        except (NotPlainError, OSError, ValueError, MemoryError):
            return None
        borders = [*edges[:-1:pages_each].tolist(), int(edges[-1])]
        return [RowIds(*pair) for pair in pairwise(borders)]


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


PAGES_PER_PART = 256


class DecodedFrames(NamedTuple):
    """A table's integer columns, nulls kept. The column SHAPE, if there is one, has each row's row in `groups`."""

    columns: pl.DataFrame
    groups: pl.DataFrame | None


def decoded_frames(decoder: TableDecoder, rows: RowIds = ALL_ROWS) -> DecodedFrames | None:
    """Return a table's integer columns; None if SQLite must read them."""
    decoded = decoder.decode(rows)
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


class PartedTable(NamedTuple):
    """A table that is read in parts: adjoining ranges of row ids, each on the same number of pages."""

    decoder: TableDecoder
    parts: tuple[RowIds, ...]

    @classmethod
    def build(cls, decoder: TableDecoder, pages_per_part: int) -> PartedTable | None:
        """Find the parts of a table; None if SQLite must read it."""
        parts = decoder.row_ranges(pages_per_part)
        return None if parts is None else cls(decoder, tuple(parts))

    def with_columns(self, columns: Sequence[str]) -> PartedTable:
        """Return the table with only these of its columns."""
        return self._replace(decoder=self.decoder._replace(columns=tuple(columns), grouped=()))

    def no_rows(self, *, grouped: bool = True) -> pl.DataFrame:
        """Return a frame without rows, and with the table's columns: as in the table, or as `read` returns them."""
        shapes = self.decoder.grouped if grouped else (SHAPE,) * bool(self.decoder.grouped)
        return pl.DataFrame(schema=dict.fromkeys((*self.decoder.columns, *shapes), pl.Int64))

    def read(self, first: int, stop: int) -> DecodedFrames:
        """Read the parts from `first` to before `stop`. Raises PartError if a page differs from what build saw."""
        frames = decoded_frames(self.decoder, RowIds(self.parts[first].after, self.parts[stop - 1].last))
        if frames is None:
            raise PartError
        return frames


class PartError(Exception):
    """SQLite must read this table, which cannot be read in parts."""


LIMITS = {kind: np.iinfo(kind) for kind in ("i1", "i2", "i4")}


class StoredColumn(NamedTuple):
    """A part of a column: the type of the differences between its rows, None if they are all 0, and its first value."""

    kind: str | None
    first: int
    has_nulls: bool


class StoredPart(NamedTuple):
    """A part: its file and offset there, its number of rows, and its columns. `group` is the number of its StoredGroup.

    A column with nulls has a byte for each row, 1 for null, and 0 in place of nulls. The differences follow.
    """

    file: str
    offset: int
    rows: int
    columns: tuple[StoredColumn, ...]
    group: int = 0


class StoredTable(NamedTuple):
    """A table whose parts were copied to `folder`; it is read as a PartedTable is.

    `groups` are those of all parts, each once, and `group_rows` has their rows for each StoredGroup.
    """

    folder: Path
    columns: tuple[str, ...]
    parts: tuple[StoredPart, ...]
    groups: pl.DataFrame | None
    group_rows: tuple[Times, ...]

    @classmethod
    def join(cls, folder: Path, table: PartedTable, stored: Sequence[StoredGroup]) -> StoredTable:
        """Return the table of StoredGroups that follow each other."""
        parts = [part._replace(group=number) for number, group in enumerate(stored) for part in group.parts]
        columns = tuple(table.no_rows(grouped=False).columns)
        frames = [group.groups for group in stored if group.groups is not None]
        if not frames:
            return cls(folder, columns, tuple(parts), None, ())
        distinct, rows = distinct_rows(frames)
        return cls(folder, columns, tuple(parts), distinct, tuple(rows))

    def no_rows(self) -> pl.DataFrame:
        """Return a frame with the table's columns and without rows."""
        return pl.DataFrame(schema=dict.fromkeys(self.columns, pl.Int64))

    def read(self, first: int, stop: int) -> DecodedFrames:
        """Read the parts from `first` to before `stop`."""
        parts = self.parts[first:stop]
        edges = np.cumsum([0, *(part.rows for part in parts)]).tolist()
        values = {name: np.empty(edges[-1], np.int64) for name in self.columns}
        nulls: dict[str, NDArray[np.bool_]] = {}
        for file, adjoining in itertools.groupby(zip(parts, edges, strict=False), key=lambda part: part[0].file):
            with (self.folder / file).open("rb", buffering=0) as content:
                for part, begin in adjoining:
                    rows = slice(begin, begin + part.rows)
                    content.seek(part.offset)
                    for name, column in zip(self.columns, part.columns, strict=True):
                        if column.has_nulls:
                            null = nulls.setdefault(name, np.zeros(edges[-1], np.bool_))
                            null[rows] = np.fromfile(content, np.bool_, part.rows)
                        own = values[name][rows]
                        if column.kind is None:
                            own[:] = column.first
                        else:
                            np.cumsum(np.fromfile(content, column.kind, part.rows), out=own)
                            own += column.first
                        if name == SHAPE:
                            own[:] = self.group_rows[part.group][own]
        frame = pl.DataFrame(values)
        missing = [frame[name].set(pl.Series(null), None) for name, null in nulls.items()]
        return DecodedFrames(frame.with_columns(missing), self.groups)


class StoredGroup(NamedTuple):
    """Adjoining parts, and the groups that their column SHAPE refers to."""

    parts: list[StoredPart]
    groups: pl.DataFrame | None


def store_parts(path: Path, frames: DecodedFrames, edges: Times) -> StoredGroup:
    """Write adjoining parts to a new file; part i begins at row `edges[i]`."""
    rows = [slice(*pair) for pair in pairwise([*edges.tolist(), len(frames.columns)])]
    columns = [list(_packed_parts(column, rows)) for column in frames.columns]
    parts: list[StoredPart] = []
    with path.open("wb", buffering=0) as file:
        for own, packed in zip(rows, zip(*columns, strict=True), strict=True):
            stored, content = zip(*packed, strict=True)
            parts.append(StoredPart(path.name, file.tell(), own.stop - own.start, stored))
            file.write(b"".join(content))
    return StoredGroup(parts, frames.groups)


def _packed_parts(column: pl.Series, parts: Sequence[slice]) -> Iterator[tuple[StoredColumn, bytes]]:
    """Yield how each part of a column is stored, and its bytes."""
    nulls = column.is_null().to_numpy() if column.null_count() else None
    values = (column if nulls is None else column.fill_null(0)).to_numpy()
    steps = np.zeros_like(values)
    np.subtract(values[1:], values[:-1], out=steps[1:])
    for rows in parts:
        own, mask = steps[rows], b"" if nulls is None else nulls[rows].tobytes()
        own[:1] = 0
        low, high = own.min(initial=0), own.max(initial=0)
        kind = next((kind for kind, range_ in LIMITS.items() if range_.min <= low and high <= range_.max), "i8")
        first = int(values[rows.start]) if len(own) else 0
        if low == high:
            yield StoredColumn(None, first, nulls is not None), mask
        else:
            yield StoredColumn(kind, first, nulls is not None), mask + own.astype(kind).tobytes()
