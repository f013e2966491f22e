"""Who waited for whom, of all pairs the longest: one rank that came last after the other, never a matrix of pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.fleet import Pair

PAIRS = 1000  # the longest that are kept
PRUNED_AT = 8 * PAIRS


class Arrivals(NamedTuple):
    """One group's waits, of shape (ranks, collectives); `latest` is the row that came last to each."""

    ranks: Times
    latest: Times
    wait: NDArray[np.int64]


def longest_pairs(groups: Sequence[Arrivals], count: int) -> tuple[tuple[Pair, ...], int]:
    """Return the PAIRS longest sums of what one of `count` ranks waited for another, and how many pairs there are."""
    came_last: dict[int, list[tuple[Arrivals, Times]]] = defaultdict(list)
    for group in groups:
        for row in np.unique(group.latest):
            came_last[int(group.ranks[row])].append((group, np.flatnonzero(group.latest == row)))
    found, total = np.empty((4, 0), np.int64), 0
    for last in sorted(came_last):
        mine = _of_last(came_last[last], last, count)
        total += mine.shape[1]
        found = np.concatenate([found, _longest(mine)], axis=1)
        if found.shape[1] > PRUNED_AT:
            found = _longest(found)
    return tuple(Pair(*map(int, column)) for column in _longest(found).T), total


def _of_last(theirs: Sequence[tuple[Arrivals, Times]], last: int, count: int) -> NDArray[np.int64]:
    """Return a column for each rank that waited for `last`: the fields of Pair."""
    waited, times = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for group, columns in theirs:
        wait = group.wait[:, columns]
        waited[group.ranks] += wait.sum(axis=1)
        times[group.ranks] += np.count_nonzero(wait, axis=1)
    waiter = np.flatnonzero(waited)
    return np.stack([waiter, np.full(len(waiter), last), waited[waiter], times[waiter]])


def _longest(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    waiter, last, waited, _ = pairs
    found: NDArray[np.int64] = pairs[:, np.lexsort((last, waiter, -waited))[:PAIRS]]
    return found
