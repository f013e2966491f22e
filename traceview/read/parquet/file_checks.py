"""Checks of Parquet files and Arrow streams before polars reads them, and their decoded sizes.

Polars takes the number of values of a Parquet page as unsigned. A flipped bit can make it negative: polars then asks
for more memory than any machine has, which kills the process without a message. Only the footer and the page headers
are read.

Each message of an Arrow stream has a FlatBuffers table (github.com/apache/arrow, format/Message.fbs). A compressed
buffer begins with its decoded length in 8 bytes. Only record and dictionary batches have buffers.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO, Any

MAGIC = b"PAR1"
MAX_DEPTH = 16  # nested structures; a footer has six
HEADER_SIZES = (1 << 12, 1 << 20)  # bytes to try for a page header: statistics may contain long texts
# Fields of parquet.thrift.
ROW_GROUPS, COLUMNS, META = 4, 1, 3
PATH, VALUES, PACKED, DATA_AT, DICTIONARY_AT = 3, 5, 7, 9, 11
UNPACKED_SIZE, PACKED_SIZE, KINDS = 2, 3, (5, 7, 8)  # a page's sizes; headers of data, dictionary and data of version 2
DICTIONARY = 7
ENCODING = {5: 2, 8: 4}  # the field with the encoding of the values, for data pages of versions 1 and 2
SHARED_PREFIXES = 7  # DELTA_BYTE_ARRAY: each value may begin with all of the value before
VALUE_BYTES = 8  # size of a decoded number, and smallest size of a text


def check_pages(path: Path) -> dict[str, int]:
    """Return how many bytes each column decodes to, not counting repeated values of its dictionary.

    Raises ValueError if a page header is impossible, OSError if the file cannot be read.
    """
    decoded: dict[str, int] = {}
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(size - 8, 0))
        end = file.read(8)
        length = int.from_bytes(end[:4], "little")
        if end[4:] != MAGIC or length > size - 12:
            raise ValueError("no footer")
        file.seek(size - 8 - length)
        footer = _CompactReader(file.read(length)).structure()
        for group in _structures(footer, ROW_GROUPS):
            for column in _structures(group, COLUMNS):
                name, count = _check_column(file, column.get(META), size)
                decoded[name] = decoded.get(name, 0) + count
    return decoded


def _structures(structure: dict[int, Any], field: int) -> list[dict[int, Any]]:
    items = structure.get(field, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError("no list of structures")
    return items


def _check_column(file: IO[bytes], meta: object, size: int) -> tuple[str, int]:
    """Return the column's name, and how many bytes this part of it decodes to."""
    if not isinstance(meta, dict):
        raise ValueError("a column without its description")
    starts = [_unsigned_field(meta, field) for field in (DICTIONARY_AT, DATA_AT) if meta.get(field)]
    at, values = min(starts, default=0), _unsigned_field(meta, VALUES)
    end = at + _unsigned_field(meta, PACKED)
    if not (starts or values == 0) or end > size:
        raise ValueError("a column outside its file")
    decoded = 0
    while at < end:
        length, count = _check_page(file, at, end, values)
        at, decoded = at + length, decoded + count
    path = meta.get(PATH)
    name = path[0].decode("utf-8", "replace") if isinstance(path, list) and path and isinstance(path[0], bytes) else ""
    return name, max(decoded, VALUE_BYTES * values)


def _check_page(file: IO[bytes], at: int, end: int, values: int) -> tuple[int, int]:
    """Return the size of a page with its header, and its decoded size."""
    page, length = _header(file, at, end)
    kind = next((kind for kind in KINDS if isinstance(page.get(kind), dict)), None)
    packed, unpacked = _unsigned_field(page, PACKED_SIZE), _unsigned_field(page, UNPACKED_SIZE)
    if length + packed > end - at:
        raise ValueError("a page longer than its column")
    if kind is not None and _unsigned_field(page[kind], 1) > (unpacked if kind == DICTIONARY else values):
        raise ValueError("a page of more values than its column")
    times = 1
    if kind in ENCODING and page[kind].get(ENCODING[kind]) == SHARED_PREFIXES:
        times = max(_unsigned_field(page[kind], 1), 1)
    return length + packed, unpacked * times


def _header(file: IO[bytes], at: int, end: int) -> tuple[dict[int, Any], int]:
    for size in HEADER_SIZES:
        file.seek(at)
        reader = _CompactReader(file.read(min(size, end - at)))
        try:
            return reader.structure(), reader.at
        except EOFError:
            continue
    raise ValueError("a page header without its end")


def _unsigned_field(structure: dict[int, Any], field: int) -> int:
    value = structure.get(field, 0)
    if type(value) is not int or value < 0:
        raise ValueError("a negative number, or not an integer")
    return value


class _CompactReader:
    """Reads Thrift's compact protocol: structures as dicts by field. Raises EOFError if the bytes end too soon."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def structure(self, depth: int = 0) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise ValueError("structures nested too deep")
        fields: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._unsigned())
        if kind in (9, 10):
            return self._list(depth)
        if kind == 12:
            return self.structure(depth + 1)
        raise ValueError("an unknown type")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = self._unsigned() if head >> 4 == 15 else head >> 4
        if count > len(self.raw):
            raise ValueError("a list longer than its bytes")
        return [self._value(head & 15, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, count: int) -> bytes:
        value = self.raw[self.at : self.at + count]
        if len(value) < count:
            raise EOFError
        self.at += count
        return value

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)


CONTINUATION = b"\xff\xff\xff\xff"
MAX_METADATA = 16 << 20  # bytes of one message's metadata
DICTIONARY_BATCH, RECORD_BATCH = 2, 3  # MessageHeader
# Numbers of fields in their tables.
KIND, HEADER, BODY_LENGTH = 1, 2, 3
DATA = 1
BUFFERS, COMPRESSION = 2, 3


def decoded_size(path: Path) -> int:
    """Return the size of a stream's buffers after decompression.

    Raises ValueError if the stream is damaged, OSError if it cannot be read.
    """
    total = 0
    end = path.stat().st_size
    with path.open("rb") as file:
        try:
            while metadata := _metadata(file):
                message = _FlatTable.root(metadata)
                begin, length = file.tell(), message.number(BODY_LENGTH, "q")
                if not 0 <= length <= end - begin:
                    raise ValueError("a message longer than its file")
                kind = message.number(KIND, "B")
                header = message.table(HEADER)
                batch = header.table(DATA) if header and kind == DICTIONARY_BATCH else header
                if batch and kind in (DICTIONARY_BATCH, RECORD_BATCH):
                    total += _buffers_size(file, batch, begin, length)
                file.seek(begin + length)
        except struct.error:
            raise ValueError("truncated metadata") from None
    return total


def _metadata(file: IO[bytes]) -> bytes:
    """Return the metadata of the next message; empty at the end of the stream."""
    head = file.read(4)
    if head == CONTINUATION:  # absent before Arrow 0.15
        head = file.read(4)
    length = int.from_bytes(head, "little")
    if length > MAX_METADATA:
        raise ValueError("metadata of more than 16 MB")
    return file.read(length)


def _buffers_size(file: IO[bytes], batch: _FlatTable, begin: int, body: int) -> int:
    total = 0
    packed = batch.at(COMPRESSION) is not None
    for at, length in batch.pairs(BUFFERS):
        if at < 0 or length < 0 or at + length > body:
            raise ValueError("a buffer outside its message")
        decoded = length
        if packed and length:
            file.seek(begin + at)
            (decoded,) = struct.unpack("<q", file.read(8))
            decoded = length if decoded == -1 else decoded  # -1: this buffer is not compressed
        if decoded < 0:
            raise ValueError("a buffer of negative size")
        total += decoded
    return total


class _FlatTable:
    """A FlatBuffers table at a place in its bytes. Raises struct.error if the bytes end too soon."""

    def __init__(self, raw: bytes, place: int) -> None:
        self.raw, self.place = raw, place

    @classmethod
    def root(cls, raw: bytes) -> _FlatTable:
        return cls(raw, _unpack("I", raw, 0))

    def at(self, field: int) -> int | None:
        """Return the place of a field; None if it is absent."""
        layout = self.place - _unpack("i", self.raw, self.place)
        if 4 + 2 * field >= _unpack("H", self.raw, layout):
            return None
        offset = _unpack("H", self.raw, layout + 4 + 2 * field)
        return self.place + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        at = self.at(field)
        return 0 if at is None else _unpack(kind, self.raw, at)

    def table(self, field: int) -> _FlatTable | None:
        at = self.at(field)
        return None if at is None else _FlatTable(self.raw, at + _unpack("I", self.raw, at))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Return a vector of structs of two 64-bit integers."""
        at = self.at(field)
        if at is None:
            return []
        at += _unpack("I", self.raw, at)
        count = _unpack("I", self.raw, at)
        return list(struct.iter_unpack("<qq", self.raw[at + 4 : at + 4 + 16 * count]))


def _unpack(kind: str, raw: bytes, at: int) -> int:
    if at < 0:
        raise struct.error("before the beginning")
    return int(struct.unpack_from(f"<{kind}", raw, at)[0])
