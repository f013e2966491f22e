"""Equal rows against a dictionary, with hashes that share slots; rows that adjoin."""

import numpy as np
import pytest

from traceview.intervals import adjoining, first_equal_rows, number_distinct, row_hashes


@pytest.mark.parametrize("high_bits", [(0, 1 << 63), (1 << 16, 1 << 18), (0, 1 << 5)])
@pytest.mark.parametrize("count", [0, 1, 5, 3000])
def test_first_row_with_the_same_hash(count: int, high_bits: tuple[int, int]) -> None:
    rng = np.random.default_rng(count)
    hashes = rng.integers(*high_bits, count).astype(np.uint64)
    hashes[count // 2 :] = rng.permutation(hashes)[: count - count // 2]
    seen: dict[int, int] = {}
    expected = [seen.setdefault(value, row) for row, value in enumerate(hashes.tolist())]
    assert first_equal_rows(hashes).tolist() == expected


def test_hashes_that_share_every_slot() -> None:
    # Both hashes have the same 16 bits in three of the four parts: only the last tells them apart.
    hashes = np.array([7, 7 + (1 << 16), 7, 9, 9 + (1 << 48), 7 + (1 << 16)], np.uint64)
    assert first_equal_rows(hashes).tolist() == [0, 1, 0, 3, 4, 1]
    # Three hashes are pairwise equal in two parts each, and no part holds all of them apart.
    parts = [(a << 48) + (b << 32) + (c << 16) + d for a, b, c, d in [(1, 1, 2, 2), (1, 2, 1, 2), (1, 1, 1, 1)]]
    assert first_equal_rows(np.array(parts * 2, np.uint64)).tolist() == [0, 1, 2, 0, 1, 2]


def test_kinds_are_numbered_by_their_first_row() -> None:
    rows = [(5, -1), (3, 2), (5, -1), (2, 3), (3, 2)]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    first, number = number_distinct(first_equal_rows(row_hashes(columns)))
    assert (first.tolist(), number.tolist()) == ([0, 1, 3], [0, 1, 0, 2, 1])


@pytest.mark.parametrize(("rows", "is_slice"), [([], False), ([3], True), ([3, 4, 5], True), ([3, 5], False)])
def test_adjoining_rows_are_a_slice(rows: list[int], is_slice: bool) -> None:
    chosen = adjoining(np.array(rows, np.int32))
    assert isinstance(chosen, slice) == is_slice and np.arange(9)[chosen].tolist() == rows
