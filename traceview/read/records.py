"""The records of leaf pages, decoded column by column (https://www.sqlite.org/fileformat2.html, sections 1.6 and 2.1).

Most records of a table have the same header: the same serial type for each column. Those that do are decoded
together, as a matrix with one record a row, in which a column stands at one place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

LEAF = 13
SHAPES = 12  # headers told apart in one chunk; what is left after them is decoded value by value
WIDEST_ROWID = 9
SLACK = 8  # bytes by which records may be wider than those before them

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Rows = slice | Numbers
Some = TypeVar("Some", bound=np.generic)

# Body size and right shift for each serial type; -1 where the type cannot be skipped or decoded.
_SIZES = np.full(256, -1, np.int64)
_SIZES[:10] = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_SIZES[12:128] = (np.arange(12, 128) - 12) // 2
_SHIFTS = np.zeros(256, np.int64)
_SHIFTS[:10] = (63, 56, 48, 40, 32, 16, 0, 0, 63, 63)
_IS_INTEGER = np.zeros(256, np.bool_)
_IS_INTEGER[[0, 1, 2, 3, 4, 5, 6, 8, 9]] = True
_NULL, _ZERO, _ONE = 0, 8, 9


class NotPlainError(Exception):
    """The table needs SQLite itself."""


@dataclass(slots=True)
class Column:
    """A whole column under construction; `null` says which of its values are none, and is None before there is one."""

    values: Numbers
    null: NDArray[np.bool_] | None = None

    def nulls(self) -> NDArray[np.bool_]:
        """Return what is written to where a value may be none."""
        if self.null is None:
            self.null = np.zeros(len(self.values), np.bool_)
        return self.null

    def whole(self, parts: list[slice]) -> Column:
        """Return the decoded parts, which ascend, as one column."""
        return Column(_joined(self.values, parts), None if self.null is None else _joined(self.null, parts))


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table lies in its file: bytes of a page, columns of a record, and the bytes of a record that are looked at.

    `width` holds the longest possible way from a cell's first byte to the end of the last column wanted, and what
    an eight-byte look at that column needs; a multiple of 8.
    """

    page: int
    width: int

    @classmethod
    def of(cls, page: int, columns: int, last: int) -> Layout:
        """Return the layout of a table of so many columns, of which those up to `last` are looked at."""
        return cls(page, _in_words(2 + WIDEST_ROWID + 1 + columns + 8 * (last + 1) + 8))

    def narrowed(self, end: int) -> Layout:
        """Return a layout for records of which the last column wanted ends about `end`: less is copied of each."""
        return Layout(self.page, min(self.width, _in_words(end + 8 + SLACK)))


class _Cells(NamedTuple):
    """One record a row of `bytes`, from its cell's first byte on; `left` is how long a cell lies whole on its page.

    A payload of a page's size less 35 and no more lies there whole (section 1.6).
    """

    bytes: Bytes
    left: Numbers

    def chosen(self, rows: Numbers) -> _Cells:
        return _Cells(self.bytes[rows], self.left[rows])


def _in_words(size: int) -> int:
    return (size + 7) // 8 * 8


def counts_of(heads: Bytes, size: int) -> Numbers:
    """Return the number of cells that each page's header states; a page is a row of at least its first 5 bytes."""
    counts = heads[:, 3].astype(np.int64) << 8 | heads[:, 4]
    if 2 * counts.max(initial=0) + 8 > size:
        raise NotPlainError
    return counts


def decode(block: Bytes, layout: Layout, found: Mapping[int, Column], first: int) -> tuple[int, int]:
    """Decode leaf pages into rows `first`, `first + 1`, ... of the columns.

    Returns how many, and how many bytes after its cell's first one the last column wanted ends at most. `block` holds
    whole pages and `layout.width` bytes more. Raises NotPlainError where a record is not plain, or too wide for it.
    """
    cells = _cells(block, layout)
    count = len(cells.left)
    if count > len(next(iter(found.values())).values) - first:
        raise NotPlainError
    left = np.ones(count, np.bool_)
    common: _Shape | None = None
    end = 0
    for _ in range(SHAPES):
        rest = np.flatnonzero(left)
        if len(rest) == 0:
            return count, end
        # Of a record in the middle: times grow as a capture begins, and so do the first ones' shapes.
        shape = _Shape.of(cells.bytes[rest[len(rest) // 2]].tobytes(), found)
        same = shape.fits(cells.bytes)
        rows = slice(None) if same.all() else np.flatnonzero(same)
        shape.check(cells, rows)
        shape.put(cells.bytes, rows, common, found, first)
        common = common or shape
        end = max(end, shape.end)
        left &= ~same
    rest = np.flatnonzero(left)
    _put_one_by_one(cells.chosen(rest), found, rest + first)
    return count, layout.width


def _cells(block: Bytes, layout: Layout) -> _Cells:
    size, width = layout.page, layout.width
    pages = block[: len(block) - width].reshape(-1, size)
    if not (pages[:, 0] == LEAF).all():
        raise NotPlainError
    counts = counts_of(pages, size)
    most = int(counts.max(initial=0))
    cell = np.ndarray((len(pages), most), ">u2", block, 8, (size, 2)).astype(np.int64)
    cell = cell.ravel() if (counts == most).all() else cell[np.arange(most) < counts[:, None]]
    if len(cell) and (cell.max() > size - 4 or cell.min() < 8):
        raise NotPlainError
    at = cell + np.repeat(np.arange(len(pages)) * size, counts)
    records = np.ndarray(len(block) - width, f"V{width}", block, strides=(1,))[at]
    return _Cells(records.view(np.uint8).reshape(len(at), width), np.minimum(size - cell, size - 35))


@dataclass(frozen=True, slots=True)
class _Shape:
    """What records have in common: bits that say so, word by word, and where the columns stand."""

    payload: int  # bytes of the payload's size
    header: int  # where the record's header begins
    header_size: int
    mask: Numbers
    bits: Numbers
    kinds: bytes  # the serial type of each column up to the last wanted
    places: tuple[int, ...]  # where each begins
    end: int

    @classmethod
    def of(cls, record: bytes, wanted: Collection[int]) -> _Shape:
        last = max(wanted)
        payload = _varint_end(record, 0, 2)
        header = _varint_end(record, payload, WIDEST_ROWID)
        size = record[header]
        # A record of fewer columns than the table stops short; of such a table SQLite knows the defaults.
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
        # Of the varints the bits that say how long they are, of the header all: but 0 or 1 is the same to who skips it.
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
        """Refuse records of this shape that leave their page or end before their last column, or in their header."""
        size = cells.bytes[rows, 0].astype(np.int64)
        if self.payload == 2:
            size = (size & 127) << 7 | cells.bytes[rows, 1]
        if (size + self.header > cells.left[rows]).any():
            raise NotPlainError
        # Where the last column wanted is the last one, nothing may follow it: so SQLite finds a damaged header.
        whole = self.header_size == len(self.kinds) + 1
        if size.min() + self.header < self.end or (whole and size.max() + self.header > self.end):
            raise NotPlainError

    def put(
        self, records: Bytes, rows: Rows, common: _Shape | None, found: Mapping[int, Column], first: int
    ) -> None:
        """Decode the records `rows`, which have this shape, into the same rows of the columns from `first` on.

        Without a `common` shape all records are decoded as if they had this one; with it, only the columns that
        stand elsewhere in this one. To take every row of a column is several times faster than to choose some.
        """
        count, width = records.shape
        for column, into in found.items():
            kind, before = self.kinds[column], None if common is None else common.kinds[column]
            if not _IS_INTEGER[kind]:
                raise NotPlainError
            if common is not None and before == kind and common.places[column] == self.places[column]:
                continue
            chosen = slice(None) if common is None else rows
            values = into.values[first : first + count]
            if _NULL in (kind, before):
                into.nulls()[first : first + count][chosen] = kind == _NULL
            if _SIZES[kind] == 0:
                values[chosen] = kind == _ONE
                continue
            # Eight bytes from the value's first one on, big-endian; what follows the value is shifted out.
            eight = np.ndarray(count, ">i8", records, self.places[column], (width,))
            if isinstance(chosen, slice):
                values[:] = eight
                if _SHIFTS[kind]:
                    values >>= _SHIFTS[kind]
            else:
                values[chosen] = eight[chosen] >> _SHIFTS[kind]


def _joined(whole: NDArray[Some], parts: list[slice]) -> NDArray[Some]:
    return whole[parts[0]] if len(parts) == 1 else np.concatenate([whole[part] for part in parts])


def _varint_end(record: bytes, at: int, longest: int) -> int:
    for end in range(at, at + longest):
        if record[end] < 128 or end - at == WIDEST_ROWID - 1:
            return end + 1
    raise NotPlainError


def _put_one_by_one(cells: _Cells, found: Mapping[int, Column], rows: Numbers) -> None:
    """Decode records of any headers: each steps over its own columns."""
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
    at, last = header + header_size, max(found)
    if header_size.min() < last + 2:
        raise NotPlainError
    for column in range(last + 1):
        kind = flat[header + 1 + column]
        size = _SIZES[kind]
        if size.min() < 0 or (at > ends).any():
            raise NotPlainError
        if column in found:
            if not _IS_INTEGER[kind].all():
                raise NotPlainError
            values = eight[at] >> _SHIFTS[kind]
            found[column].values[rows] = np.where(size == 0, kind == _ONE, values)
            if found[column].null is not None or (kind == _NULL).any():
                found[column].nulls()[rows] = kind == _NULL
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
    """Step over one varint: up to nine bytes, the last without its high bit."""
    at = at.copy()
    going = flat[at] > 127
    for _ in range(WIDEST_ROWID - 1):
        at += going
        if not going.any():
            break
        going &= flat[at] > 127
    return at + 1
