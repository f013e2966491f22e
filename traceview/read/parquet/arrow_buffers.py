"""Sums the decoded size of an Arrow stream from its metadata, before polars allocates the buffers.

Each message has a FlatBuffers table (github.com/apache/arrow, format/Message.fbs). A compressed buffer begins with its
decoded length in 8 bytes. Only record and dictionary batches have buffers.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO

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
