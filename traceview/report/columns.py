"""A buffer of columns of whole numbers, as a page stores them."""

from __future__ import annotations

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.frozen import dataclass

Packed = list[int]  # [offset in bytes, bytes of each number]


@dataclass(slots=True)
class Columns:
    """A buffer of columns. Each column stores all lowest bytes, then all second bytes, and so on.

    Bytes of the same order are alike, so this layout packs smaller and faster than whole numbers.
    """

    _parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, values: NDArray[np.integer]) -> Packed:
        """Append whole numbers from 0 to 2^53 with the bytes that the largest needs; return their place."""
        top = int(values.max()) if len(values) else 0
        count = max(1, -(-top.bit_length() // 8))
        place = self.size
        width = 1 << (count - 1).bit_length()
        bytes_of = np.ascontiguousarray(values, f"<u{width}").view(np.uint8).reshape(-1, width)
        self._parts.extend(bytes_of[:, order].tobytes() for order in range(count))
        self.size += len(values) * count
        return [place, count]

    def add_ascending(self, values: Times) -> Packed:
        """Append ascending numbers as differences, which pack better."""
        return self.add(np.diff(values, prepend=np.int64(0)))

    def add_steps(self, values: NDArray[np.integer]) -> Packed:
        """Append numbers in any order as signed differences."""
        return self.add_signed(np.diff(values, prepend=np.int64(0)))

    def add_signed(self, values: Times) -> Packed:
        """Append signed numbers in zigzag form: 0 -1 1 -2 2 become 0 1 2 3 4."""
        return self.add((values << 1) ^ (values >> 63))

    def raw(self) -> bytes:
        """Return the buffer."""
        return b"".join(self._parts)
