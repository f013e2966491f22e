"""Marks as packed columns, not as objects: a page of a million marks stays small and opens at once."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times

try:
    from isal import isal_zlib as packer  # the same format in a fifth of the time
except ImportError:  # it is made for 64-bit x86 and ARM alone
    import zlib as packer  # type: ignore[no-redef]

Packed = list[int]  # [offset in bytes, bytes of each number]
LEVEL = 2  # of either


@dataclass(slots=True)
class Columns:
    """One buffer of columns; of each column first all lowest bytes, then all second bytes, and so on.

    Bytes of one order look like each other, so this packs smaller and faster than number after number.
    """

    _parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, values: NDArray[np.integer]) -> Packed:
        """Append whole numbers from 0 to 2^53, in as many bytes as the largest needs; return where they lie."""
        top = int(values.max()) if len(values) else 0
        count = max(1, -(-top.bit_length() // 8))
        place = self.size
        width = 1 << (count - 1).bit_length()
        bytes_of = np.ascontiguousarray(values, f"<u{width}").view(np.uint8).reshape(-1, width)
        self._parts.extend(bytes_of[:, order].tobytes() for order in range(count))
        self.size += len(values) * count
        return [place, count]

    def add_ascending(self, values: Times) -> Packed:
        """Append ascending numbers as the steps between them, which pack better."""
        return self.add(np.diff(values, prepend=np.int64(0)))

    def add_steps(self, values: NDArray[np.integer]) -> Packed:
        """Append numbers in any order as the steps between them, 0 -1 1 -2 2 written as 0 1 2 3 4."""
        return self.add_signed(np.diff(values, prepend=np.int64(0)))

    def add_signed(self, values: Times) -> Packed:
        """Append numbers of either sign, 0 -1 1 -2 2 written as 0 1 2 3 4."""
        return self.add((values << 1) ^ (values >> 63))

    def raw(self) -> bytes:
        """Return the buffer as it is."""
        return b"".join(self._parts)

    def packed(self) -> str:
        """Return the buffer, deflated, as base64."""
        return pack(self.raw())


def pack(data: bytes, level: int = LEVEL) -> str:
    """Deflate and return as base64; the page inflates it with the browser's own DecompressionStream."""
    return base64.b64encode(packer.compress(data, level)).decode("ascii")
