"""Integer columns of a large SQLite table, decoded straight from its pages, as frames.

SQLite steps through a table row by row. The tables of an export hold millions of rows of plain integers, and NumPy
decodes their pages several times faster (pages.py). Few headers of records differ, and records with equal headers have
the same columns at the same places: the decoder reads each header once, and then the values of one column of all
records at a time.

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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import DTypeLike, NDArray

from traceview.intervals import first_equal_rows, number_distinct, row_hashes
from traceview.read.raw import NARROW, SHAPE
from traceview.read.sqlite.pages import (
    LEAF,
    MAX_VARINT_BYTES,
    Bytes,
    NotPlainError,
    Numbers,
    Pages,
    after_varints,
    cell_counts,
    check_cell_places,
    leaf_pages,
    leaves_of_rows,
)

Item = TypeVar("Item", bound=np.generic)
ROOM = 1.1  # room for rows, relative to a table whose chunks are all like the first
WIDTH_MARGIN = 8  # bytes by which records may be wider than those before them

# Body size of each serial type; -1 where the decoder cannot skip it.
_SIZES = np.full(256, -1, np.int64)
_SIZES[:10] = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_SIZES[12:128] = (np.arange(12, 128) - 12) // 2
_IS_INTEGER = np.zeros(256, np.bool_)
_IS_INTEGER[[0, 1, 2, 3, 4, 5, 6, 8, 9]] = True
_NULL, _ONE = 0, 9
# A mask of the first n bytes of eight that were read as a little-endian number.
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64).view(np.int64)
_HIGH_BITS = np.int64(0x8080808080808080 - (1 << 64))


class TooWideError(NotPlainError):
    """A record is wider than the bytes that were copied of it."""


class IntegerColumn:
    """A decoded column: one number while all its values are equal, then an array with room for the whole table.

    The array has the type `kind` while the values fit, then 64 bits.
    """

    def __init__(self, kind: DTypeLike = np.int64) -> None:
        self.count, self._constant, self._kind = 0, 0, np.dtype(kind)
        self._values: NDArray[np.integer[Any]] | None = None
        self._nulls: list[tuple[int, NDArray[np.bool_]]] = []  # the first of some rows, and which of them are null

    def add(self, values: Numbers, share: float, null: NDArray[np.bool_] | None = None) -> None:
        """Append values; `share` is the part of the table that the column then has."""
        first, self.count = self.count, self.count + len(values)
        if null is not None:
            self._nulls.append((first, null))
        fitting: NDArray[np.integer[Any]] = values.astype(self._kind, copy=False)
        if fitting is not values and (fitting != values).any():
            fitting, self._kind = values, values.dtype
            self._values = None if self._values is None else self._values.astype(np.int64)
        if not first:
            self._constant = int(values[0])
        if self._values is None and (values == self._constant).all():
            return
        if self._values is None or self.count > len(self._values):
            grown = np.empty(int(ROOM * self.count / share) + 1, self._kind)
            grown[:first] = self._constant if self._values is None else self._values[:first]
            self._values = grown
        self._values[first : self.count] = fitting

    def literal(self) -> pl.Expr | None:
        """Return the value of all rows; None if they differ."""
        nulls = sum(int(marks.sum()) for _, marks in self._nulls)
        if self._values is not None or nulls not in (0, self.count):
            return None
        return pl.lit(None if nulls else self._constant, pl.Int64)

    def series(self) -> pl.Series:
        """Return the values."""
        values = np.full(self.count, self._constant) if self._values is None else self._values
        series = pl.Series(values[: self.count])
        if not self._nulls:
            return series
        null = np.zeros(self.count, np.bool_)
        for first, marks in self._nulls:
            null[first : first + len(marks)] = marks
        return series.set(pl.Series(null), None)


def take_frame(columns: dict[int, IntegerColumn], names: Sequence[str]) -> pl.DataFrame:
    """Return columns as a frame, and empty them; `names` are those of all columns of the table.

    A literal stands for all rows of a column whose values are equal.
    """
    places = list(columns)
    literals = {names[at]: literal for at in places[1:] if (literal := columns[at].literal()) is not None}
    series = {names[at]: columns.pop(at).series() for at in places if names[at] not in literals}
    return pl.DataFrame(series).with_columns(**literals).select(names[at] for at in places)


class DecodedTable(NamedTuple):
    """The columns of a table by number: `columns`, and `groups` with the different rows of others.

    `group_rows` has each row's row in `groups`.
    """

    columns: dict[int, IntegerColumn]
    groups: dict[int, IntegerColumn]
    group_rows: IntegerColumn


class Layout(NamedTuple):
    """The size of a page, and how many bytes of each record are copied.

    `width` is the largest distance from a record's first byte to the end of the last wanted column, plus the eight
    bytes that are read there; a multiple of 8.
    """

    page: int
    width: int

    @classmethod
    def for_table(cls, page: int, columns: int, last: int) -> Layout:
        """Return the layout of a table with this number of columns, of which those up to `last` are read."""
        return cls(page, _whole_words(2 + MAX_VARINT_BYTES + 1 + columns + 8 * (last + 1) + 8))

    def narrowed(self, end: int) -> Layout:
        """Return a layout that copies less, for records whose last wanted column ends near `end`."""
        return Layout(self.page, min(self.width, _whole_words(end + 8 + WIDTH_MARGIN)))


def _whole_words(size: int) -> int:
    return (size + 7) // 8 * 8


def decode(block: Bytes, layout: Layout, into: DecodedTable, share: float) -> int:
    """Decode leaf pages into a table; `share` is the part of its pages that is decoded with these.

    Returns the largest distance from a record's first byte to the end of the last wanted column. `block` holds complete
    pages and `layout.width` bytes more. Raises NotPlainError if a record is not plain, and
    TooWideError, before anything is decoded, if one is too wide for the layout.
    """
    records, sizes = _records(block, layout)
    headers = _Headers.from_records(records, sizes, (*into.columns, *into.groups))
    for at, column in into.columns.items():
        headers.put(records, at, column, share)
    if into.groups:
        before = next(iter(into.groups.values())).count
        first, rows = number_distinct(first_equal_rows(headers.hashes(records, into.groups)))
        into.group_rows.add(rows + before, share)
        different = headers._replace(members=headers.members[first])
        for at, column in into.groups.items():
            different.put(records[first], at, column, share)
    return headers.end


def _records(block: Bytes, layout: Layout) -> tuple[Bytes, Numbers]:
    """Return the records, one a row, from their headers on, and the sizes that their cells state."""
    size, width = layout.page, layout.width
    pages = block[: len(block) - width].reshape(-1, size)
    counts = cell_counts(pages, LEAF)
    most = int(counts.max())
    cell = np.ndarray((len(pages), most), ">u2", block, 8, (size, 2)).astype(np.int64)
    cell = cell.ravel() if (counts == most).all() else cell[np.arange(most) < counts[:, None]]
    check_cell_places(cell, counts, LEAF, size)
    at = cell + np.repeat(np.arange(len(pages)) * size, counts)
    sizes, header = _record_sizes(block, at)
    # A cell ends on its page, and a record of at most page size - 35 bytes has no overflow page (section 1.6).
    if sizes.min() < 1 or (sizes + header > np.minimum(size - cell, size - 35)).any():
        raise NotPlainError
    records = np.ndarray(len(block) - width, f"V{width}", block, strides=(1,))[at + header]
    return records.view(np.uint8).reshape(len(at), width), sizes


def _record_sizes(block: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """Return the size of each cell's record, and the bytes before it: the varints of its size and of its rowid.

    The cells of a chunk usually have varints of the same lengths; then there is one number of bytes.
    """
    words = np.ndarray(len(block) - 7, "<i8", block, strides=(1,))[at]
    two = words >> 7 & 1
    if (two & words >> 15).any():
        raise NotPlainError
    first = after_varints(block, at[:1] + 1 + two[:1]) - at[:1]
    same = first[0] <= 8 and not ((words ^ words[0]) & _HIGH_BITS).any()
    header = first if same else after_varints(block, at + 1 + two) - at
    return np.where(two == 1, (words & 127) << 7 | words >> 8 & 127, words & 127), header


class _Headers(NamedTuple):
    """The different headers of records, one per row: serial types and places of the columns up to the last wanted.

    The last of a header's `places` is the end of its last wanted column. `members` is the header of each record.
    """

    kinds: NDArray[np.uint8]
    places: Numbers
    members: NDArray[np.intp]

    @classmethod
    def from_records(cls, records: Bytes, stated: Numbers, wanted: Collection[int]) -> _Headers:
        last = max(wanted)
        first, members = _different_headers(records, wanted)
        heads = records[first, : last + 2]
        header_size, kinds = heads[:, :1].astype(np.int64), heads[:, 1:]
        sizes = _SIZES[kinds]
        # A record may lack columns that were added to the table later: SQLite knows their defaults.
        if header_size.min() < last + 2 or header_size.max() > 127 or sizes.min() < 0:
            raise NotPlainError
        headers = cls(kinds, np.cumsum(np.concatenate([header_size, sizes], axis=1), axis=1), members)
        more = stated - headers.by_record(headers.places[:, -1])
        # SQLite calls a record malformed if anything follows its last column.
        is_complete = headers.by_record(header_size[:, 0] == last + 2)
        if more.min() < 0 or (is_complete & (more > 0)).any():
            raise NotPlainError
        if headers.end + 8 > records.shape[1]:
            raise TooWideError
        return headers

    @property
    def end(self) -> int:
        """The largest end of a last wanted column."""
        return int(self.places[:, -1].max())

    def by_record(self, values: NDArray[Item]) -> NDArray[Item]:
        """Return the value of each record's header; one value if there is one header."""
        return values if len(values) == 1 else values[self.members]

    def hashes(self, records: Bytes, columns: Collection[int]) -> NDArray[np.uint64]:
        """Return a hash of each record's bytes from the first to the last of some columns, and of its header."""
        start = self.places[:, min(columns)]
        length = self.places[:, max(columns) + 1] - start
        eight = np.ndarray(records.size - 7, "<i8", records, strides=(1,))
        at = np.arange(0, records.size, records.shape[1]) + self.by_record(start)
        words = [self.members]
        for offset in range(0, int(length.max()), 8):
            masks = _FIRST_BYTES[np.clip(length - offset, 0, 8)]
            # Nothing is wanted of this word where the mask is 0: read another one, which is surely there.
            words.append(eight[at + self.by_record(np.where(masks == 0, 0, offset))] & self.by_record(masks))
        return row_hashes(words)

    def put(self, records: Bytes, at: int, into: IntegerColumn, share: float) -> None:
        """Decode column `at` of all records."""
        kinds, places = self.kinds[:, at], self.places[:, at]
        if not _IS_INTEGER[kinds].all():
            raise NotPlainError
        count, width = records.shape
        is_null = kinds == _NULL
        first, bits = int(places.min()), 8 * _SIZES[kinds]
        before = 8 * (places - first)
        # Read eight bytes from the value's first byte on, big-endian; shifts drop the bytes before and after the value.
        if (before + bits <= 64).all():
            values = np.ndarray(count, ">i8", records, first, (width,)).astype(np.int64)
        else:
            eight = np.ndarray(records.size - 7, ">i8", records, strides=(1,))
            values = eight[np.arange(0, records.size, width) + self.by_record(places)].astype(np.int64)
            before[:] = 0
        if before.any() or not bits.all():
            values <<= self.by_record(np.where(bits > 0, before, 64))
        values >>= self.by_record(64 - bits)
        if (kinds == _ONE).any():
            values += self.by_record(kinds == _ONE)
        into.add(values, share, np.broadcast_to(self.by_record(is_null), count) if is_null.any() else None)


def _different_headers(records: Bytes, wanted: Collection[int]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return a record with each of the different headers, and for each record the position of its header among them."""
    header = range(-1, max(wanted) + 1)  # the header's size, and its columns up to the last wanted
    padding = bytes(-len(header) % 8)
    # Skipped columns hold 0 and 1 (types 8 and 9) in any mixture. All types 2n and 2n + 1 from 8 on have one size.
    skipped = bytes(at >= 0 and at not in wanted for at in header)
    masks = (np.frombuffer(each + padding, np.int64) for each in (b"\xff" * len(header), skipped))
    words = records.view(np.int64)
    keys = [words[:, at] & bits & ~(words[:, at] >> 3 & odd) for at, (bits, odd) in enumerate(zip(*masks, strict=True))]
    if not any((key != key[0]).any() for key in keys):
        return np.zeros(1, np.intp), np.zeros(len(records), np.intp)
    equal = first_equal_rows(row_hashes(keys))
    if any((key[equal] != key).any() for key in keys):
        raise NotPlainError  # a collision of hashes
    return number_distinct(equal)


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
    [first, stop) to decode; None for all. `narrow` has the types of columns whose values have fewer bits.
    """

    path: Path
    root: int
    names: tuple[str, ...]
    columns: tuple[str, ...]
    grouped: tuple[str, ...] = ()
    rows: tuple[int, int] | None = None
    narrow: Mapping[str, DTypeLike] = {}

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
                columns = {at: IntegerColumn(self.narrow.get(self.names[at], np.int64)) for at in wanted}
                groups = {at: IntegerColumn() for at in grouped}
                group_rows = IntegerColumn(np.uint32)
                _decode_leaves(pages, leaves, layout, DecodedTable(columns, groups, group_rows))
        except (NotPlainError, OSError, ValueError, MemoryError):
            return None
        frame, different = take_frame(columns, self.names), None
        if grouped:
            frame, different = frame.with_columns(group_rows.series().alias(SHAPE)), take_frame(groups, self.names)
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
    return TableDecoder(path, roots[0], tuple(names), tuple(columns), tuple(grouped), rows, NARROW.get(table, {}))


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
