"""Measures how long ranks wait for each other: in a collective, all ranks wait for the last one to arrive.

A rank arrives when its kernel starts. It waits until the last arrival, but no longer than its own kernel lasts. The
part of the wait without compute on the same GPU is at least `wait - hidden`.

Both passes unpack one rank at a time. Their results merge in any order and grouping, so ranks may be measured apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.match import MatchedCollectives
from traceview.frozen import frozen
from traceview.intervals import Times
from traceview.model.collectives import PackedColumn
from traceview.model.fleet import CollectiveGroup, Pair

MAX_PAIRS = 1000  # the longest are kept
PRUNE_AT = 8 * MAX_PAIRS
ABSENT = -1


@frozen
class Arrivals:
    """When some ranks of a group arrive at each collective and leave it, on the common clock.

    `latest` is the row of the rank that arrives last, the lowest of several. `shortest` is the shortest kernel.
    """

    first: Times
    last: Times
    latest: Times
    first_end: Times
    shortest: Times

    def merged(self, other: Arrivals) -> Arrivals:
        """Return the arrivals of the ranks of both."""
        is_later = (other.last > self.last) | ((other.last == self.last) & (other.latest < self.latest))
        return Arrivals(
            np.minimum(self.first, other.first),
            np.maximum(self.last, other.last),
            np.where(is_later, other.latest, self.latest),
            np.minimum(self.first_end, other.first_end),
            np.minimum(self.shortest, other.shortest),
        )


def measure_arrivals(group: MatchedCollectives, rows: Iterable[int]) -> Arrivals:
    """Measure the arrivals of the ranks in some rows of a group, whose times are on one clock."""
    return reduce(Arrivals.merged, (_rank_arrivals(row, *group.members[row].times()) for row in rows))


def _rank_arrivals(row: int, start: Times, end: Times) -> Arrivals:
    return Arrivals(start, start, np.full(len(start), row), end, end - start)


@frozen
class ArrivedGroup:
    """A group whose arrivals are known; columns have a value for each collective.

    `latest` is the row that arrives last, `iteration` an index into the fleet's iterations, and `figure` one into
    `figures`; both are ABSENT where there is none. `figures` has an entry for each kind that the sums count, without
    its waits.
    """

    group: MatchedCollectives
    first: int  # arrival at any collective
    last: PackedColumn
    latest: PackedColumn
    iteration: PackedColumn
    figure: PackedColumn
    figures: tuple[CollectiveGroup, ...]


def arrived_group(group: MatchedCollectives, arrivals: Arrivals, numbers: Times, steady: Times) -> ArrivedGroup:
    """Return a group with its arrivals; sums count the iterations in `steady`, or everything if it is empty."""
    iteration = np.searchsorted(numbers, group.step)
    iteration[iteration == len(numbers)] = 0
    is_known = numbers[iteration] == group.step if len(numbers) else np.zeros(len(group.step), np.bool_)
    counted = np.isin(group.step, steady) if len(steady) else np.ones(len(group.step), np.bool_)
    kinds = np.array(group.kind)
    figure = np.full(len(kinds), ABSENT)
    figures = []
    for code, kind in enumerate(np.unique(kinds[counted])):
        at = np.flatnonzero(counted & (kinds == kind))
        figure[at] = code
        figures.append(_kind_figures(group, str(kind), arrivals, at))
    return ArrivedGroup(
        group,
        int(arrivals.first.min()),
        PackedColumn.pack(arrivals.last),
        PackedColumn.pack(arrivals.latest),
        PackedColumn.pack(np.where(is_known, iteration, ABSENT)),
        PackedColumn.pack(figure),
        tuple(figures),
    )


def _kind_figures(group: MatchedCollectives, kind: str, arrivals: Arrivals, at: Times) -> CollectiveGroup:
    """Return the figures of the collectives of one kind, at the places `at`, without waits."""
    skew = np.sort(arrivals.last[at] - arrivals.first[at])
    last_counts = np.bincount(arrivals.latest[at], minlength=len(group.ranks))
    return CollectiveGroup(
        name=group.name,
        how=group.how,
        kind=kind,
        ranks=tuple(int(rank) for rank in group.ranks),
        count=len(at),
        skew_median=int(np.median(skew)),
        skew_p95=int(skew[(len(skew) - 1) * 95 // 100]),
        transfer=int(np.median(arrivals.shortest[at])),
        waited=0,
        last=int(group.ranks[last_counts.argmax()]),
        last_count=int(last_counts.max()),
    )


@frozen
class Waits:
    """The waits of some ranks, and what they waited for each rank.

    `by_rank` has the sums of counted collectives in the rows of RANK_SUMS, with a column for each rank of the fleet.
    `by_iteration` has the shape (ITERATION_SUMS, ranks, iterations) and counts all collectives. `by_figure` has the
    waits of each figure of the groups, in order. `pairs` has the fields of Pair in four rows: the longest of
    `pair_count`.
    """

    by_rank: NDArray[np.int64]
    by_iteration: NDArray[np.int64]
    by_figure: Times
    pairs: NDArray[np.int64]
    pair_count: int

    def merged(self, other: Waits) -> Waits:
        """Return the waits of the ranks of both, which have none in common."""
        return Waits(
            self.by_rank + other.by_rank,
            self.by_iteration + other.by_iteration,
            self.by_figure + other.by_figure,
            _keep_longest(np.concatenate([self.pairs, other.pairs], axis=1)),
            self.pair_count + other.pair_count,
        )

    def rank_sum(self, name: str) -> Times:
        """Return one of RANK_SUMS for every rank."""
        sums: Times = self.by_rank[RANK_SUMS.index(name)]
        return sums

    def iteration_sum(self, name: str) -> NDArray[np.int64]:
        """Return one of ITERATION_SUMS, of shape (ranks, iterations)."""
        sums: NDArray[np.int64] = self.by_iteration[ITERATION_SUMS.index(name)]
        return sums

    def longest_pairs(self) -> tuple[Pair, ...]:
        """Return the MAX_PAIRS longest total waits of one rank for another."""
        return tuple(Pair(*map(int, column)) for column in _keep_longest(self.pairs).T)

    def group_figures(self, groups: Sequence[ArrivedGroup]) -> tuple[CollectiveGroup, ...]:
        """Return the figures of all groups with their waits."""
        figures = [figure for group in groups for figure in group.figures]
        return tuple(
            replace(figure, waited=waited) for figure, waited in zip(figures, self.by_figure.tolist(), strict=True)
        )


# What a rank waited and caused others to wait; bare: a lower bound of the part without compute beside it.
ITERATION_SUMS = ("wait", "bare", "caused", "bare_caused")
RANK_SUMS = (*ITERATION_SUMS, "last", "matched")


def measure_waits(groups: Sequence[ArrivedGroup], ranks: Iterable[int], count: int, iterations: int) -> Waits:
    """Measure the waits of some of `count` ranks in all their groups."""
    rows: dict[int, list[tuple[int, int]]] = {}
    for index, group in enumerate(groups):
        for row, rank in enumerate(group.group.ranks.tolist()):
            rows.setdefault(rank, []).append((index, row))
    first_figure = np.cumsum([0, *(len(group.figures) for group in groups)])
    total = Waits(
        np.zeros((len(RANK_SUMS), count), np.int64),
        np.zeros((len(ITERATION_SUMS), count, iterations), np.int64),
        np.zeros(first_figure[-1], np.int64),
        np.empty((4, 0), np.int64),
        0,
    )
    pairs, pair_count = total.pairs, 0
    for rank in ranks:
        waited = np.zeros((2, count), np.int64)  # for each other rank: the time, and the number of waits
        for index, row in rows.get(rank, ()):
            figures = total.by_figure[first_figure[index] : first_figure[index + 1]]
            waited += _add_rank_waits(total, figures, groups[index], rank, row)
        waiters = _pairs_of(rank, waited)
        pair_count += waiters.shape[1]
        pairs = np.concatenate([pairs, waiters], axis=1)
        if pairs.shape[1] > PRUNE_AT:
            pairs = _keep_longest(pairs)
    return replace(total, pairs=pairs, pair_count=pair_count)


def _add_rank_waits(total: Waits, by_figure: Times, arrived: ArrivedGroup, rank: int, row: int) -> NDArray[np.int64]:
    """Add the waits of one rank in one group; return the time and the number of its waits for every rank."""
    member = arrived.group.members[row]
    start, end = member.times()
    wait = np.minimum(arrived.last.values() - start, end - start)
    bare = np.maximum(wait - member.hidden(), 0)
    latest, column, figure = arrived.latest.values(), arrived.iteration.values(), arrived.figure.values()
    last = arrived.group.ranks[latest]
    known = column != ABSENT
    at = column[known]
    for name, values in (("wait", wait), ("bare", bare)):
        np.add.at(total.iteration_sum(name)[rank], at, values[known])
    for name, values in (("caused", wait), ("bare_caused", bare)):
        np.add.at(total.iteration_sum(name), (last[known], at), values[known])
    counted = figure != ABSENT
    wait, bare, last = wait[counted], bare[counted], last[counted]
    np.add.at(by_figure, figure[counted], wait)
    waited = np.zeros((2, total.by_rank.shape[1]), np.int64)
    np.add.at(waited[0], last, wait)
    np.add.at(waited[1], last, wait > 0)
    total.rank_sum("wait")[rank] += wait.sum()
    total.rank_sum("bare")[rank] += bare.sum()
    total.rank_sum("matched")[rank] += len(wait)
    total.rank_sum("last")[rank] += np.count_nonzero(latest[counted] == row)
    total.rank_sum("caused")[:] += waited[0]
    np.add.at(total.rank_sum("bare_caused"), last, bare)
    return waited


def _pairs_of(waiter: int, waited: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a column with the fields of Pair for each rank that `waiter` waited for."""
    last = np.flatnonzero(waited[0])
    return np.stack([np.full(len(last), waiter), last, waited[0, last], waited[1, last]])


def _keep_longest(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    waiter, last, waited, _ = pairs
    longest: NDArray[np.int64] = pairs[:, np.lexsort((last, waiter, -waited))[:MAX_PAIRS]]
    return longest
