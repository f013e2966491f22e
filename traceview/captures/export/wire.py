"""Protobuf's wire format, encoded a column at a time.

Messages of the same shape become a matrix of bytes with one message in each row. All varints of a column have the width
of the largest one (protobuf accepts padded varints). The messages of a matrix are therefore equally long, and no Python
code loops over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

VARINT, BYTES = 0, 2
Column = NDArray[np.uint8]  # (messages, bytes)
Chunk = bytes | Column  # the same bytes in every message, or a column


def number(value: int) -> bytes:
    """Return a varint; a negative number is encoded as its 64-bit two's complement, as in protobuf."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def key(field: int, kind: int) -> bytes:
    """Return the key of a field: its number and wire type."""
    return number(field << 3 | kind)


def uint(field: int, value: int) -> bytes:
    """Return a varint field."""
    return key(field, VARINT) + number(value)


def text(field: int, value: str) -> bytes:
    """Return a string field."""
    data = value.encode("utf-8", "replace")
    return key(field, BYTES) + number(len(data)) + data


def message(field: int, *chunks: bytes) -> bytes:
    """Return a field that is a message."""
    data = b"".join(chunks)
    return key(field, BYTES) + number(len(data)) + data


def varints(values: NDArray[np.integer[Any]]) -> Column:
    """Return the varints of a column, all of one width."""
    left = values.astype(np.int64).view(np.uint64)
    width = max(1, -(-int(left.max(initial=0)).bit_length() // 7))
    out = np.empty((len(left), width), np.uint8)
    for index in range(width):
        out[:, index] = left & np.uint64(0x7F)
        left = left >> np.uint64(7)
    out[:, :-1] |= 0x80
    return out


def uints(field: int, values: NDArray[np.integer[Any]]) -> list[Chunk]:
    """Return a varint field with a value for each message."""
    return [key(field, VARINT), varints(values)]


def messages(field: int, chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return a field that is a message with these chunks."""
    return [key(field, BYTES) + number(width(chunks)), *chunks]


def width(chunks: Sequence[Chunk]) -> int:
    """Return the number of bytes of the chunks in each message."""
    return sum(len(chunk) if isinstance(chunk, bytes) else chunk.shape[1] for chunk in chunks)


def matrix(count: int, chunks: Sequence[Chunk]) -> Column:
    """Return the matrix of `count` messages with these chunks."""
    out = np.empty((count, width(chunks)), np.uint8)
    at = 0
    for chunk in chunks:
        data = np.frombuffer(chunk, np.uint8) if isinstance(chunk, bytes) else chunk
        out[:, at : at + data.shape[-1]] = data
        at += data.shape[-1]
    return out


def interleaved(count: int, groups: Sequence[tuple[NDArray[np.int64], Column]]) -> NDArray[np.uint8]:
    """Merge matrices of several widths into one byte array.

    Each group is (rows, matrix): the indices of its messages among the `count` messages, and their bytes.
    """
    if len(groups) == 1:
        return groups[0][1].reshape(-1)
    widths = np.zeros(count, np.int64)
    for rows, column in groups:
        widths[rows] = column.shape[1]
    begins = np.cumsum(widths) - widths
    out = np.empty(int(widths.sum()), np.uint8)
    for rows, column in groups:
        as_one = np.dtype((np.void, column.shape[1]))
        # A view of `out` with a message at every byte offset, so that each message is copied in one step.
        places = np.ndarray(len(out) - column.shape[1] + 1, as_one, out, strides=(1,))
        places[begins[rows]] = column.view(as_one).reshape(-1)
    return out


def encoded(frame: pl.DataFrame, alike: Sequence[pl.Expr], encode: Callable[[pl.DataFrame], list[Chunk]]) -> bytes:
    """Return the messages of a frame's rows, in order; `encode` gets rows with equal values of `alike` together."""
    shape = frame.select(pl.struct(*alike).rank("dense")).to_series().to_numpy()
    groups = []
    for value in np.unique(shape):
        rows = np.flatnonzero(shape == value)
        same = frame[rows]
        groups.append((rows, matrix(len(rows), encode(same))))
    return interleaved(len(frame), groups).tobytes()
