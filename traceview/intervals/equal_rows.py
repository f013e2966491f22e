"""Which rows of integer columns are equal, by 64-bit hashes and without a sort."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceview.intervals.arrays import blocks

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, as in Fibonacci hashing
SLOT_BITS = 16  # a table of this many slots stays in the processor's cache

Positions = NDArray[np.intp]


def row_hashes(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row; equal rows have equal hashes."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for block in blocks(len(hashes)):
        part = hashes[block]
        for column in columns:
            part += column[block].view(np.uint64)
            part *= MULTIPLIER
            part ^= part >> np.uint64(29)
    return hashes


def first_equal_rows(hashes: NDArray[np.uint64]) -> Positions:
    """Return for each row the first row with the same hash. A few thousand different rows are fastest."""
    equal = np.empty(len(hashes), np.intp)
    rest = np.arange(len(hashes))
    for shift in range(64 - SLOT_BITS, -1, -SLOT_BITS):
        some = hashes[rest]
        slot = (some >> np.uint64(shift) & np.uint64((1 << SLOT_BITS) - 1)).astype(np.uint16)
        table = np.empty(1 << SLOT_BITS, np.intp)
        table[slot[::-1]] = rest[::-1]  # the first row of a slot is written last
        equal[rest] = table[slot]
        # Rows with one hash are in one slot: either all of them have their first row, or none.
        rest = rest[hashes[equal[rest]] != some]
        if len(rest) == 0:
            return equal
    _, first, members = np.unique(hashes[rest], return_index=True, return_inverse=True)
    equal[rest] = rest[first][members]
    return equal


def number_distinct(equal: Positions) -> tuple[Positions, Positions]:
    """Return the rows that are the first of their kind, and for each row the position of its kind among them."""
    first = np.flatnonzero(equal == np.arange(len(equal)))
    number = np.empty(len(equal), np.intp)
    number[first] = np.arange(len(first))
    return first, number[equal]
