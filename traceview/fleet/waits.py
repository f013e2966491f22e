"""Measures how long ranks wait for each other: in a collective, all ranks wait for the last one to arrive.

A rank arrives when its kernel starts. It waits until the last arrival, but no longer than its own kernel lasts. The
part of the wait without compute on the same GPU is at least `wait - hidden`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.match import MatchedCollectives
from traceview.frozen import frozen
from traceview.intervals import Times
from traceview.model.fleet import CollectiveGroup, Pair

MAX_PAIRS = 1000  # the longest are kept
PRUNE_AT = 8 * MAX_PAIRS


class GroupWaits(NamedTuple):
    """The waits of one group, of shape (ranks, collectives); `latest` is the row that arrives last."""

    ranks: Times
    step: Times
    latest: Times
    wait: NDArray[np.int64]
    bare: NDArray[np.int64]  # lower bound of the wait without compute beside it

    def select_collectives(self, places: Times) -> GroupWaits:
        """Return some collectives; `places` ascend. Selecting all does not copy."""
        if len(places) == len(self.step):
            return self
        return GroupWaits(
            self.ranks, self.step[places], self.latest[places], self.wait[:, places], self.bare[:, places]
        )


@frozen
class Waits:
    """Sums per rank over the counted collectives; `each` has all collectives, for sums by iteration."""

    waited: Times
    exposed: Times
    caused: Times
    caused_exposed: Times
    last: Times
    matched: Times
    pairs: tuple[Pair, ...]
    pair_count: int
    groups: tuple[CollectiveGroup, ...]
    each: tuple[GroupWaits, ...]


def measure_waits(groups: Sequence[MatchedCollectives], count: int, steady: Times) -> Waits:
    """Measure the waits of `count` ranks; all times are on one clock.

    Sums cover the iterations in `steady`, or everything if it is empty.
    """
    sums = {
        name: np.zeros(count, np.int64) for name in ("waited", "exposed", "caused", "caused_exposed", "last", "matched")
    }
    figures: list[CollectiveGroup] = []
    each = []
    counted = []
    for group in groups:
        each.append(_group_waits(group))
        places = np.flatnonzero(np.isin(group.step, steady)) if len(steady) else np.arange(len(group.step))
        if len(places) == 0:
            continue
        waits = each[-1].select_collectives(places)
        sums["waited"][group.ranks] += waits.wait.sum(axis=1)
        sums["exposed"][group.ranks] += waits.bare.sum(axis=1)
        sums["matched"][group.ranks] += len(places)
        np.add.at(sums["caused"], group.ranks[waits.latest], waits.wait.sum(axis=0))
        np.add.at(sums["caused_exposed"], group.ranks[waits.latest], waits.bare.sum(axis=0))
        np.add.at(sums["last"], group.ranks[waits.latest], 1)
        counted.append(waits)
        figures.extend(_figures_by_kind(group, places, waits))
    pairs, pair_count = longest_pairs(counted, count)
    return Waits(**sums, pairs=pairs, pair_count=pair_count, groups=tuple(figures), each=tuple(each))


def _group_waits(group: MatchedCollectives) -> GroupWaits:
    wait = np.minimum(group.start.max(axis=0) - group.start, group.end - group.start)
    return GroupWaits(group.ranks, group.step, group.start.argmax(axis=0), wait, np.maximum(wait - group.hidden, 0))


def _figures_by_kind(group: MatchedCollectives, places: Times, waits: GroupWaits) -> list[CollectiveGroup]:
    """Return the figures of each kind among the collectives at `places`, whose waits are `waits`."""
    kinds = np.array(group.kind)[places]
    figures = []
    for kind in np.unique(kinds):
        at = np.flatnonzero(kinds == kind)
        figures.append(_kind_figures(group, str(kind), places[at], waits.latest[at], waits.wait[:, at]))
    return figures


def _kind_figures(
    group: MatchedCollectives, kind: str, places: Times, latest: Times, wait: NDArray[np.int64]
) -> CollectiveGroup:
    start = group.start[:, places]
    skew = np.sort(start.max(axis=0) - start.min(axis=0))
    last_counts = np.bincount(latest, minlength=len(group.ranks))
    return CollectiveGroup(
        name=group.name,
        how=group.how,
        kind=kind,
        ranks=tuple(int(rank) for rank in group.ranks),
        count=len(places),
        skew_median=int(np.median(skew)),
        skew_p95=int(skew[(len(skew) - 1) * 95 // 100]),
        transfer=int(np.median((group.end[:, places] - start).min(axis=0))),
        waited=int(wait.sum()),
        last=int(group.ranks[last_counts.argmax()]),
        last_count=int(last_counts.max()),
    )


@frozen
class WaitsByIteration:
    """Waits, and what the others waited for each rank, of shape (ranks, iterations)."""

    wait: NDArray[np.int64]
    bare: NDArray[np.int64]
    caused: NDArray[np.int64]
    caused_bare: NDArray[np.int64]


def sum_by_iteration(waits: Waits, numbers: Times, count: int) -> WaitsByIteration:
    """Sum waits by the iteration that launched the collective; iterations outside `numbers` are left out."""
    total = WaitsByIteration(*(np.zeros((count, len(numbers)), np.int64) for _ in range(4)))
    for group in waits.each:
        column = np.searchsorted(numbers, group.step)
        known = column < len(numbers)
        known[known] = numbers[column[known]] == group.step[known]
        at = column[known]
        for into, values in ((total.wait, group.wait), (total.bare, group.bare)):
            np.add.at(into, (group.ranks[:, None], at[None, :]), values[:, known])
        last = group.ranks[group.latest[known]]
        np.add.at(total.caused, (last, at), group.wait[:, known].sum(axis=0))
        np.add.at(total.caused_bare, (last, at), group.bare[:, known].sum(axis=0))
    return total


def longest_pairs(groups: Sequence[GroupWaits], count: int) -> tuple[tuple[Pair, ...], int]:
    """Return the MAX_PAIRS longest total waits of one of `count` ranks for another, and the number of pairs.

    The pairs are computed one late rank at a time, because a matrix of all pairs would be too large.
    """
    by_last: dict[int, list[tuple[GroupWaits, Times]]] = defaultdict(list)
    for group in groups:
        for row in np.unique(group.latest):
            by_last[int(group.ranks[row])].append((group, np.flatnonzero(group.latest == row)))
    pairs, total = np.empty((4, 0), np.int64), 0
    for last in sorted(by_last):
        waiters = _waiters_for(by_last[last], last, count)
        total += waiters.shape[1]
        pairs = np.concatenate([pairs, _keep_longest(waiters)], axis=1)
        if pairs.shape[1] > PRUNE_AT:
            pairs = _keep_longest(pairs)
    return tuple(Pair(*map(int, column)) for column in _keep_longest(pairs).T), total


def _waiters_for(groups: Sequence[tuple[GroupWaits, Times]], last: int, count: int) -> NDArray[np.int64]:
    """Return a column with the fields of Pair for each rank that waited for `last`."""
    waited, times = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for group, columns in groups:
        wait = group.wait[:, columns]
        waited[group.ranks] += wait.sum(axis=1)
        times[group.ranks] += np.count_nonzero(wait, axis=1)
    waiter = np.flatnonzero(waited)
    return np.stack([waiter, np.full(len(waiter), last), waited[waiter], times[waiter]])


def _keep_longest(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    waiter, last, waited, _ = pairs
    longest: NDArray[np.int64] = pairs[:, np.lexsort((last, waiter, -waited))[:MAX_PAIRS]]
    return longest
