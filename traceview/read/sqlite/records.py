"""Decodes the records of leaf pages column by column (sections 1.6 and 2.1 of the file format).

Few headers differ, and records with equal headers have the same columns at the same places: the decoder reads each
header once, and then the values of one column of all records at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import first_equal_rows, number_distinct, row_hashes
from traceview.read.sqlite.pages import (
    LEAF,
    MAX_VARINT_BYTES,
    Bytes,
    NotPlainError,
    Numbers,
    cell_counts,
    check_cell_places,
)

Item = TypeVar("Item", bound=np.generic)


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


@dataclass(slots=True)
class RowGroups:
    """Columns with few different rows, which are decoded once for each chunk of records that holds them.

    `places` are the numbers of the columns. `values` has the decoded rows of these columns; there are `count`. `rows`
    has the number of each record's row.
    """

    places: tuple[int, ...]
    rows: Numbers
    values: list[dict[int, IntegerColumn]] = field(default_factory=list)
    count: int = 0

    def add(self, values: dict[int, IntegerColumn], group: Numbers, rows: slice) -> None:
        """Add the different rows of a chunk; `group` has for each of its records, in `rows`, the row in `values`."""
        self.rows[rows] = group
        self.rows[rows] += self.count
        self.values.append(values)
        self.count += len(next(iter(values.values())).values)

    def column(self, place: int) -> IntegerColumn:
        """Return one of the columns, over all chunks."""
        parts = [values[place] for values in self.values]
        null = np.concatenate([part.null_flags() for part in parts]) if any(p.null is not None for p in parts) else None
        return IntegerColumn(np.concatenate([part.values for part in parts]), null)


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


class _Records(NamedTuple):
    """`bytes` has one record per row, from its header on; `sizes` are the numbers of bytes that their cells state."""

    bytes: Bytes
    sizes: Numbers


def _whole_words(size: int) -> int:
    return (size + 7) // 8 * 8


def decode(
    block: Bytes, layout: Layout, columns: Mapping[int, IntegerColumn], groups: RowGroups, first: int
) -> tuple[int, int]:
    """Decode leaf pages into rows `first`, `first + 1`, ... of the columns, and add what they hold to `groups`.

    Returns the number of rows, and the largest distance from a record's first byte to the end of the last wanted
    column. `block` holds complete pages and `layout.width` bytes more. Raises NotPlainError if a record is not plain,
    or too wide for the layout.
    """
    records = _records(block, layout)
    count = len(records.sizes)
    if count > len(next(iter(columns.values())).values) - first:
        raise NotPlainError
    headers = _Headers.from_records(records, (*columns, *groups.places))
    rows = slice(first, first + count)
    for column, into in columns.items():
        headers.put(records.bytes, column, into, rows)
    if groups.places:
        first_of_group, group = number_distinct(first_equal_rows(headers.hashes(records.bytes, groups.places)))
        values = {column: IntegerColumn(np.empty(len(first_of_group), np.int64)) for column in groups.places}
        different = headers._replace(members=headers.members[first_of_group])
        for column, into in values.items():
            different.put(records.bytes[first_of_group], column, into, slice(None))
        groups.add(values, group, rows)
    return count, headers.end


def _records(block: Bytes, layout: Layout) -> _Records:
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
    return _Records(records.view(np.uint8).reshape(len(at), width), sizes)


def _record_sizes(block: Bytes, at: Numbers) -> tuple[Numbers, Numbers | int]:
    """Return the size of each cell's record, and the bytes before it: the varints of its size and of its rowid."""
    words = np.ndarray(len(block) - 7, "<i8", block, strides=(1,))[at]
    lengths = words & _HIGH_BITS
    start = block[at[0] : at[0] + 2 + MAX_VARINT_BYTES].tobytes()
    payload = _varint_end(start, 0, 2)
    header = _varint_end(start, payload, MAX_VARINT_BYTES)
    # The cells of a chunk usually have varints of the same lengths.
    if header <= 8 and (lengths == lengths[0]).all():
        return (words & 127 if payload == 1 else (words & 127) << 7 | words >> 8 & 127), header
    size, two = words & 127, words >> 7 & 1
    if (two & words >> 15).any():
        raise NotPlainError
    size = np.where(two == 1, size << 7 | words >> 8 & 127, size)
    return size, _after_varint(block, at + 1 + two) - at


class _Headers(NamedTuple):
    """The different headers of records, one per row: serial types and places of the columns up to the last wanted.

    The last of a header's `places` is the end of its last wanted column. `members` is the header of each record.
    """

    kinds: NDArray[np.uint8]
    places: Numbers
    members: NDArray[np.intp]

    @classmethod
    def from_records(cls, records: _Records, wanted: Collection[int]) -> _Headers:
        last = max(wanted)
        first, members = _different_headers(records.bytes, wanted)
        heads = records.bytes[first, : last + 2]
        header_size, kinds = heads[:, :1].astype(np.int64), heads[:, 1:]
        sizes = _SIZES[kinds]
        # A record may lack columns that were added to the table later: SQLite knows their defaults.
        if header_size.min() < last + 2 or header_size.max() > 127 or sizes.min() < 0:
            raise NotPlainError
        headers = cls(kinds, np.cumsum(np.concatenate([header_size, sizes], axis=1), axis=1), members)
        left_over = records.sizes - headers.by_record(headers.places[:, -1])
        # SQLite calls a record malformed if anything follows its last column.
        is_complete = headers.by_record(header_size[:, 0] == last + 2)
        if left_over.min() < 0 or (is_complete & (left_over > 0)).any():
            raise NotPlainError
        if headers.end + 8 > records.bytes.shape[1]:
            raise NotPlainError
        return headers

    @property
    def end(self) -> int:
        """The largest end of a last wanted column."""
        return int(self.places[:, -1].max())

    def by_record(self, values: NDArray[Item]) -> NDArray[Item]:
        """Return the value of each record's header; one value if there is one header."""
        return values if len(values) == 1 else values[self.members]

    def put(self, records: Bytes, column: int, into: IntegerColumn, rows: slice) -> None:
        """Decode a column of all records into rows of a column."""
        is_null = self._put_values(records, column, into.values[rows])
        if is_null is not None:
            into.null_flags()[rows] = is_null

    def hashes(self, records: Bytes, columns: Collection[int]) -> NDArray[np.uint64]:
        """Return a hash of each record's bytes from the first to the last of some columns, and of its header."""
        width = records.shape[1]
        start = self.places[:, min(columns)]
        length = self.places[:, max(columns) + 1] - start
        eight = np.ndarray(records.size - 7, "<i8", records, strides=(1,))
        at = np.arange(0, records.size, width) + self.by_record(start)
        words = [self.members]
        for offset in range(0, int(length.max()), 8):
            masks = _FIRST_BYTES[np.clip(length - offset, 0, 8)]
            # Nothing is wanted of this word where the mask is 0: read another one, which is surely there.
            words.append(eight[at + self.by_record(np.where(masks == 0, 0, offset))] & self.by_record(masks))
        return row_hashes(words)

    def _put_values(self, records: Bytes, column: int, into: Numbers) -> NDArray[np.bool_] | None:
        """Decode a column of all records, and return which values are null; None if no value is."""
        kinds, places = self.kinds[:, column], self.places[:, column]
        if not _IS_INTEGER[kinds].all():
            raise NotPlainError
        count, width = records.shape
        first, bits = int(places.min()), 8 * _SIZES[kinds]
        # Read eight bytes from the value's first byte on, big-endian; shifts drop the bytes before and after the value.
        if (kinds == kinds[0]).all() and (places == first).all():
            into[:] = np.ndarray(count, ">i8", records, first, (width,)) if bits[0] else int(kinds[0] == _ONE)
            into >>= 64 - bits[0] if bits[0] else 0
            return np.array([True]) if kinds[0] == _NULL else None
        before = 8 * (places - first)
        if (before + bits <= 64).all():
            into[:] = np.ndarray(count, ">i8", records, first, (width,))
        else:
            eight = np.ndarray(records.size - 7, ">i8", records, strides=(1,))
            into[:] = eight[np.arange(0, records.size, width) + self.by_record(places)]
            before[:] = 0
        into <<= self.by_record(np.where(bits > 0, before, 64))
        into >>= self.by_record(64 - bits)
        into += self.by_record(kinds == _ONE)
        is_null = kinds == _NULL
        return self.by_record(is_null) if is_null.any() else None


def _different_headers(records: Bytes, wanted: Collection[int]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return a record with each of the different headers, and for each record the position of its header among them."""
    header = range(-1, max(wanted) + 1)  # the header's size, and its columns up to the last wanted
    padding = bytes(-len(header) % 8)
    # Skipped columns hold 0 and 1 (types 8 and 9) in any mixture. All types 2n and 2n + 1 from 8 on have one size.
    skipped = [at >= 0 and at not in wanted for at in header]
    mask = bytes(254 if skip and kind >= 8 else 255 for skip, kind in zip(skipped, records[0].tobytes(), strict=False))
    words = records.view(np.int64)
    if not any(
        ((words[:, at] ^ words[0, at]) & bits).any() for at, bits in enumerate(np.frombuffer(mask + padding, np.int64))
    ):
        return np.zeros(1, np.intp), np.zeros(len(records), np.intp)
    mask, low = b"\xff" * len(header) + padding, bytes(skipped) + padding
    keys = [
        words[:, at] & bits & ~(words[:, at] >> 3 & odd)
        for at, (bits, odd) in enumerate(zip(np.frombuffer(mask, np.int64), np.frombuffer(low, np.int64), strict=True))
    ]
    equal = first_equal_rows(row_hashes(keys))
    if any((key[equal] != key).any() for key in keys):
        raise NotPlainError  # a collision of hashes
    return number_distinct(equal)


def _varint_end(record: bytes, at: int, longest: int) -> int:
    for end in range(at, at + longest):
        if record[end] < 128 or end - at == MAX_VARINT_BYTES - 1:
            return end + 1
    raise NotPlainError


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
