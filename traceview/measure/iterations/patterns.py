"""Patterns of launches that recur at regular distances, and how similar the parts between them are.

A pattern is 1, 2, 4 or 8 consecutive launches. One that occurs once in every iteration, for example the optimizer's
first kernel, cuts the sequence into iterations, however many launches each has. Such a pattern is an anchor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times, index_ranges

LENGTHS = (1, 2, 4, 8)  # launches in a pattern
# Number of kinds of launches -> length of the patterns by which repetitions are compared. With few kinds, all
# sequences of short patterns are similar.
CONTENT = {2: 8, 7: 4}
MIN_CONTENT = 2
MIN_REPEATS = 3
MAX_ANCHORS = 32
MIN_SPACED_SHARE = 0.15  # share of the sequence that lies between anchors at about their median distance
SPACING = 4  # distances within 1/4 of the median are regular
DISTANCE_STEP = 1.05  # one anchor is kept of several whose median distances differ by less
SKETCH = 16  # random codes
MAX_COUNTS = 1 << 22  # parts times patterns
FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
SHIFT, BITS = np.uint64(29), np.uint64(48)

Patterns = NDArray[np.uint16]


def pattern_hashes(symbol: NDArray[np.int64]) -> Mapping[int, Patterns]:
    """Return, for each of LENGTHS, a 16-bit hash of the pattern that begins at each place."""
    hashes = {1: _mix_bits(symbol.astype(np.uint64) * FIRST + FIRST)}
    for length in LENGTHS[1:]:
        later = hashes[length // 2][length // 2 :]
        if len(later) == 0:
            break
        hashes[length] = _mix_bits(hashes[length // 2][: len(later)] * FIRST + _mix_bits(later))
    return {length: (values >> BITS).astype(np.uint16) for length, values in hashes.items()}


def _mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed: NDArray[np.uint64] = (values ^ (values >> SHIFT)) * SECOND
    return mixed


@dataclass(frozen=True, slots=True)
class Anchor:
    """A pattern that recurs at regular distances: its length, its hash and where it begins.

    `steadier` is a pattern that covers less of the sequence at this distance, but occurs less often elsewhere, such as
    a kernel that only the iterations launch.
    """

    length: int
    pattern: int
    places: Times
    distance: int  # the median
    steadier: Anchor | None = None


def regular_anchors(hashes: Mapping[int, Patterns]) -> Iterator[Anchor]:
    """Yield for each distance the pattern that covers most of the sequence at this distance, shortest pattern first."""
    columns = [_regular_patterns(values, length) for length, values in hashes.items()]
    length, pattern, distance, share, steady = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    steps = np.round(np.log(distance) / np.log(DISTANCE_STEP)).astype(np.int64)

    def anchor(row: int, steadier: Anchor | None = None) -> Anchor:
        places = np.flatnonzero(hashes[int(length[row])] == pattern[row])
        return Anchor(int(length[row]), int(pattern[row]), places, int(distance[row]), steadier)

    widest = _best_rows(share, length, steps)
    steadiest = dict(zip(steps[widest].tolist(), widest.tolist(), strict=True))
    steadiest |= {int(steps[row]): row for row in _best_rows(share * steady, length, steps).tolist()}
    for row in widest.tolist():
        other = steadiest[int(steps[row])]
        yield anchor(row, None if other == row else anchor(other))


def _best_rows(worth: NDArray[np.float64], length: Times, steps: Times) -> Times:
    """Return the best pattern of each step of distance, the best ones first."""
    # Prefer a short pattern unless a longer one covers 5% more, because every inserted launch breaks a long one.
    order = np.lexsort((length, -np.floor(worth * 20)))
    best: Times = order[np.sort(np.unique(steps[order], return_index=True)[1])[:MAX_ANCHORS]]
    return best


def _regular_patterns(
    values: Patterns, length: int
) -> tuple[Times, Times, Times, NDArray[np.float64], NDArray[np.float64]]:
    """Return length, hash, median distance, covered share and share of regular distances of the regular patterns."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    same = ordered[1:] == ordered[:-1]
    # Sort by pattern, then by distance, so that the medians can be picked.
    keys = np.sort((ordered[1:][same].astype(np.int64) << 40) | np.diff(order)[same])
    pattern, distance = keys >> 40, keys & ((1 << 40) - 1)
    first = np.flatnonzero(np.diff(pattern, prepend=-1))
    count = np.diff(first, append=len(pattern))
    median = distance[first + (count - 1) // 2]
    regular = np.abs(distance - np.repeat(median, count)) * SPACING <= np.repeat(median, count)
    covered, steady = (
        np.add.reduceat(each, first) if len(first) else first
        for each in (np.where(regular, distance, 0), regular.astype(np.int64))
    )
    share = covered / max(len(values), 1)
    chosen = (count >= MIN_REPEATS - 1) & (share >= MIN_SPACED_SHARE)
    lengths = np.full(np.count_nonzero(chosen), length)
    return lengths, pattern[first][chosen], median[chosen], share[chosen], (steady / count)[chosen]


def content_length(hashes: Mapping[int, Patterns]) -> int:
    """Return the length, in launches, of the patterns by which long repetitions are compared."""
    kinds = np.count_nonzero(np.bincount(hashes[1]))
    return next((length for most, length in CONTENT.items() if kinds <= most), MIN_CONTENT)


@dataclass(frozen=True, slots=True)
class Contents:
    """What each part of a sequence contains, as sums of random codes, one code for each pattern.

    The mean square of the difference of two sums estimates how many patterns the parts do not share. It counts a
    pattern that occurs k times more as k * k; `shared` counts it as k.
    """

    running: NDArray[np.int32]
    values: Patterns

    @classmethod
    def from_hashes(cls, hashes: Mapping[int, Patterns], length: int) -> Contents:
        """Add up the codes of the patterns of `length` launches."""
        values = hashes[min(length, max(hashes))]
        bits = _mix_bits(np.arange(1 << 16, dtype=np.uint64) * FIRST)[:, None] >> np.arange(
            BITS, BITS + SKETCH, dtype=np.uint64
        )
        codes = (bits & np.uint64(1)).astype(np.int32) * 2 - 1
        running = np.zeros((len(hashes[1]) + 1, SKETCH), np.int32)
        np.cumsum(codes[values], axis=0, out=running[1 : len(values) + 1])
        running[len(values) + 1 :] = running[len(values)]
        return cls(running, values)

    def similarity(self, first: Times, last: Times) -> NDArray[np.float64]:
        """Return how similar each part [first, last) is to the typical part: 1 if both have the same patterns."""
        sums = (self.running[last] - self.running[first]).astype(np.float64)
        length = last - first
        differing = ((sums - np.median(sums, axis=0)) ** 2).mean(axis=1)
        similarity: NDArray[np.float64] = 1 - np.minimum(1, differing / np.maximum(length + np.median(length), 1))
        return similarity

    def shared(self, first: Times, last: Times) -> NDArray[np.float64] | None:
        """Return the share of patterns that each part [first, last) has in common with the typical part.

        None if the parts are so many, and of so many patterns, that counting takes long.
        """
        last = np.minimum(last, len(self.values))
        kinds, code = np.unique(self.values, return_inverse=True)
        if len(first) * len(kinds) > MAX_COUNTS:
            return None
        rows = np.repeat(np.arange(len(first)), last - first) * len(kinds) + code[index_ranges(first, last - first)]
        counts = np.bincount(rows, minlength=len(first) * len(kinds)).reshape(len(first), -1)
        differing = np.abs(counts - np.median(counts, axis=0)).sum(axis=1)
        length = last - first
        shared: NDArray[np.float64] = 1 - np.minimum(1, differing / np.maximum(length + np.median(length), 1))
        return shared
