"""Decodes the records of leaf pages column by column (sections 1.6 and 2.1 of the file format).

Most records of a table have the same header, that is, the same serial type for each column. They are decoded together,
as a matrix with one record per row, in which each column starts at the same place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from traceview.read.sqlite_pages.pages import (
    LEAF,
    MAX_VARINT_BYTES,
    Bytes,
    NotPlainError,
    Numbers,
    cell_counts,
    check_cell_places,
)

MAX_SHAPES = 12  # different headers per chunk; records with other headers are decoded value by value
WIDTH_MARGIN = 8  # bytes by which records may be wider than those before them

Rows = slice | Numbers
Item = TypeVar("Item", bound=np.generic)

# Body size and right shift for each serial type; -1 where the type cannot be skipped or decoded.
_SIZES = np.full(256, -1, np.int64)
_SIZES[:10] = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_SIZES[12:128] = (np.arange(12, 128) - 12) // 2
_SHIFTS = np.zeros(256, np.int64)
_SHIFTS[:10] = (63, 56, 48, 40, 32, 16, 0, 0, 63, 63)
_IS_INTEGER = np.zeros(256, np.bool_)
_IS_INTEGER[[0, 1, 2, 3, 4, 5, 6, 8, 9]] = True
_NULL, _ZERO, _ONE = 0, 8, 9


@dataclass(slots=True)
class IntegerColumn:
    """A decoded integer column; `null` marks its nulls, and is None while there are none."""

    values: Numbers
    null: NDArray[np.bool_] | None = None

    def null_flags(self) -> NDArray[np.bool_]:
        """Return the writable null marks, created on first use."""
        if self.null is None:
            self.null = np.zeros(len(self.values), np.bool_)
        return self.null

    def join_parts(self, parts: list[slice]) -> IntegerColumn:
        """Return ascending parts of the column as one column."""
        null = None if self.null is None else _join_parts(self.null, parts)
        return IntegerColumn(_join_parts(self.values, parts), null)


def _join_parts(values: NDArray[Item], parts: list[slice]) -> NDArray[Item]:
    return values[parts[0]] if len(parts) == 1 else np.concatenate([values[part] for part in parts])


@dataclass(frozen=True, slots=True)
class Layout:
    """The size of a page, and how many bytes of each cell are copied.

    `width` is the largest distance from a cell's first byte to the end of the last wanted column, plus the
    eight bytes that are read there; a multiple of 8.
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


class _Cells(NamedTuple):
    """`bytes` has one record per row, from its cell's first byte on; `left` is the longest that each cell may be.

    A cell ends on its page, and a record of at most page size - 35 bytes has no overflow page (section 1.6).
    """

    bytes: Bytes
    left: Numbers

    def select(self, rows: Numbers) -> _Cells:
        return _Cells(self.bytes[rows], self.left[rows])


def _whole_words(size: int) -> int:
    return (size + 7) // 8 * 8


def decode(block: Bytes, layout: Layout, columns: Mapping[int, IntegerColumn], first: int) -> tuple[int, int]:
    """Decode leaf pages into rows `first`, `first + 1`, ... of the columns.

    Returns the number of rows, and the largest distance from a cell's first byte to the end of the last wanted column.
    `block` holds complete pages and `layout.width` bytes more. Raises NotPlainError if a record is not plain, or too
    wide for the layout.
    """
    cells = _cells(block, layout)
    count = len(cells.left)
    if count > len(next(iter(columns.values())).values) - first:
        raise NotPlainError
    left = np.ones(count, np.bool_)
    common: _Shape | None = None
    end = 0
    for _ in range(MAX_SHAPES):
        rest = np.flatnonzero(left)
        if len(rest) == 0:
            return count, end
        # Take a record from the middle: times have fewer bytes at the begin of a capture.
        shape = _Shape.from_record(cells.bytes[rest[len(rest) // 2]].tobytes(), columns)
        same = shape.fits(cells.bytes)
        rows = slice(None) if same.all() else np.flatnonzero(same)
        shape.check(cells, rows)
        shape.put(cells.bytes, rows, common, columns, first)
        common = common or shape
        end = max(end, shape.end)
        left &= ~same
    rest = np.flatnonzero(left)
    _put_by_column(cells.select(rest), columns, rest + first)
    return count, layout.width


def _cells(block: Bytes, layout: Layout) -> _Cells:
    size, width = layout.page, layout.width
    pages = block[: len(block) - width].reshape(-1, size)
    counts = cell_counts(pages, LEAF)
    most = int(counts.max())
    cell = np.ndarray((len(pages), most), ">u2", block, 8, (size, 2)).astype(np.int64)
    cell = cell.ravel() if (counts == most).all() else cell[np.arange(most) < counts[:, None]]
    check_cell_places(cell, counts, LEAF, size)
    at = cell + np.repeat(np.arange(len(pages)) * size, counts)
    records = np.ndarray(len(block) - width, f"V{width}", block, strides=(1,))[at]
    return _Cells(records.view(np.uint8).reshape(len(at), width), np.minimum(size - cell, size - 35))


@dataclass(frozen=True, slots=True)
class _Shape:
    """A record header: the bits that identify it, word by word, and the places of the columns."""

    payload: int  # bytes of the varint with the payload's size
    header: int  # place of the record's header
    header_size: int
    mask: Numbers
    bits: Numbers
    kinds: bytes  # serial type of each column up to the last wanted
    places: tuple[int, ...]  # place of each column
    end: int

    @classmethod
    def from_record(cls, record: bytes, wanted: Collection[int]) -> _Shape:
        last = max(wanted)
        payload = _varint_end(record, 0, 2)
        header = _varint_end(record, payload, MAX_VARINT_BYTES)
        size = record[header]
        # A record may lack columns that were added to the table later: SQLite knows their defaults.
        if not last + 2 <= size < 128:
            raise NotPlainError
        kinds = record[header + 1 : header + 2 + last]
        places = [header + size]
        for kind in kinds:
            if _SIZES[kind] < 0:
                raise NotPlainError
            places.append(places[-1] + int(_SIZES[kind]))
        if places[-1] + 8 > len(record):
            raise NotPlainError
        # The top bits of the varints give their lengths. In the header all bits count, except that a skipped column may
        # be 0 or 1, neither of which takes bytes.
        skipped = [column not in wanted and kind in (_ZERO, _ONE) for column, kind in enumerate(kinds)]
        mask = bytes([128] * header + [255] + [254 if either else 255 for either in skipped])
        mask += bytes(-len(mask) % 8)
        words, record_words = np.frombuffer(mask, np.int64), np.frombuffer(record[: len(mask)], np.int64)
        return cls(payload, header, size, words, record_words & words, kinds, tuple(places[:-1]), places[-1])

    def fits(self, records: Bytes) -> NDArray[np.bool_]:
        words = records.view(np.int64)
        same: NDArray[np.bool_] = (words[:, 0] & self.mask[0]) == self.bits[0]
        for at in range(1, len(self.mask)):
            same &= (words[:, at] & self.mask[at]) == self.bits[at]
        return same

    def check(self, cells: _Cells, rows: Rows) -> None:
        """Raise NotPlainError for records that leave their page, or whose size differs from that of their header."""
        size = cells.bytes[rows, 0].astype(np.int64)
        if self.payload == 2:
            size = (size & 127) << 7 | cells.bytes[rows, 1]
        if (size + self.header > cells.left[rows]).any():
            raise NotPlainError
        # SQLite calls a record malformed if anything follows its last column.
        is_complete = self.header_size == len(self.kinds) + 1
        if size.min() + self.header < self.end or (is_complete and size.max() + self.header > self.end):
            raise NotPlainError

    def put(
        self, records: Bytes, rows: Rows, common: _Shape | None, columns: Mapping[int, IntegerColumn], first: int
    ) -> None:
        """Decode the records `rows`, which have this shape, into the same rows of the columns from `first` on.

        Without a `common` shape, all records are decoded as if they had this shape; with it, only the columns that
        start elsewhere in this shape. Decoding every row of a column is several times faster than decoding some rows.
        """
        count, width = records.shape
        for column, into in columns.items():
            kind, before = self.kinds[column], None if common is None else common.kinds[column]
            if not _IS_INTEGER[kind]:
                raise NotPlainError
            if common is not None and before == kind and common.places[column] == self.places[column]:
                continue
            chosen = slice(None) if common is None else rows
            values = into.values[first : first + count]
            if _NULL in (kind, before):
                into.null_flags()[first : first + count][chosen] = kind == _NULL
            if _SIZES[kind] == 0:
                values[chosen] = kind == _ONE
                continue
            # Read eight bytes from the value's first byte on, big-endian; the shift drops the bytes after the value.
            eight = np.ndarray(count, ">i8", records, self.places[column], (width,))
            if isinstance(chosen, slice):
                values[:] = eight
                if _SHIFTS[kind]:
                    values >>= _SHIFTS[kind]
            else:
                values[chosen] = eight[chosen] >> _SHIFTS[kind]


def _varint_end(record: bytes, at: int, longest: int) -> int:
    for end in range(at, at + longest):
        if record[end] < 128 or end - at == MAX_VARINT_BYTES - 1:
            return end + 1
    raise NotPlainError


def _put_by_column(cells: _Cells, columns: Mapping[int, IntegerColumn], rows: Numbers) -> None:
    """Decode records with any headers, column by column."""
    count, width = cells.bytes.shape
    if count == 0:
        return
    flat = np.concatenate([cells.bytes.reshape(-1), np.zeros(8, np.uint8)])
    eight = np.ndarray(count * width, ">i8", flat, strides=(1,))
    base = np.arange(count) * width
    ends = base + width - 8
    payload, at = _payload_size(flat, base)
    header = _after_varint(flat, at)
    header_size = flat[header].astype(np.int64)
    if (payload + header - base > cells.left).any() or (header_size > np.minimum(payload, 127)).any():
        raise NotPlainError
    at, last = header + header_size, max(columns)
    if header_size.min() < last + 2:
        raise NotPlainError
    for column in range(last + 1):
        kind = flat[header + 1 + column]
        size = _SIZES[kind]
        if size.min() < 0 or (at > ends).any():
            raise NotPlainError
        if column in columns:
            if not _IS_INTEGER[kind].all():
                raise NotPlainError
            values = eight[at] >> _SHIFTS[kind]
            columns[column].values[rows] = np.where(size == 0, kind == _ONE, values)
            if columns[column].null is not None or (kind == _NULL).any():
                columns[column].null_flags()[rows] = kind == _NULL
        at = at + size
    left_over = payload - (at - header)
    if (left_over < 0).any() or (left_over[header_size == last + 2] > 0).any():
        raise NotPlainError


def _payload_size(flat: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    first, second = flat[at].astype(np.int64), flat[at + 1].astype(np.int64)
    long = first > 127
    if (long & (second > 127)).any():
        raise NotPlainError
    return np.where(long, (first & 127) << 7 | second, first), at + 1 + long


def _after_varint(flat: Bytes, at: Numbers) -> Numbers:
    """Return the place after a varint: up to nine bytes, the last without its high bit."""
    at = at.copy()
    going = flat[at] > 127
    for _ in range(MAX_VARINT_BYTES - 1):
        at += going
        if not going.any():
            break
        going &= flat[at] > 127
    return at + 1
