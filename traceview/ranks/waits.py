"""When the ranks of a group arrive at each collective, and how long they wait there: all wait for the last one.

A rank arrives when its kernel starts. It waits until the last arrival, but no longer than its own kernel lasts. The
part of the wait without compute on the same GPU is at least `wait - hidden`.

Both passes unpack one rank at a time. Their results merge in any order and grouping, so reports may be measured apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.fleet import Clock, CollectiveGroup, Collectives, PackedColumn, Pair
from traceview.ranks.match import MatchedCollectives
from traceview.ranks.partials import ByKey, NumberedReports, ranks_of

ABSENT = -1
MAX_PAIRS = 1000  # the longest are kept
PRUNE_AT = 8 * MAX_PAIRS
MAX_UNPACKED = 16  # groups; neighbouring ranks share most of theirs


@dataclass(frozen=True, slots=True)
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


def measure_arrivals(
    groups: Mapping[int, MatchedCollectives], clocks: Sequence[Clock], reports: NumberedReports
) -> ByKey[Arrivals]:
    """Measure the arrivals of ranks at the collectives of each group; `clocks` has the clock of each rank."""
    total: ByKey[Arrivals] = ByKey()
    rows = rows_by_rank(groups)
    for index, rank in ranks_of(reports):
        for number, row in rows.get(index, ()):
            start, end = rank.collectives.times(groups[number].places[row], clocks[index])
            own = Arrivals(start, start, np.full(len(start), row), end, end - start)
            total[number] = total[number].merged(own) if number in total else own
    return total


def rows_by_rank(groups: Mapping[int, MatchedCollectives]) -> dict[int, list[tuple[int, int]]]:
    """Return the groups of each rank and its row in each of them."""
    rows: dict[int, list[tuple[int, int]]] = {}
    for number, group in groups.items():
        for row, rank in enumerate(group.ranks.tolist()):
            rows.setdefault(rank, []).append((number, row))
    return rows


@dataclass(frozen=True, slots=True)
class ArrivedGroup:
    """A group whose arrivals are known; columns have a value for each collective.

    `latest` is the row that arrives last, `iteration` an index into the fleet's iterations, and `figure` one into
    `figures`; both are ABSENT where there is none. `in_mean` is 1 where the iteration is steady and the last rank has
    it. `figures` has an entry for each kind that the sums count, without its waits.
    """

    group: MatchedCollectives
    first: int  # arrival at any collective
    last: PackedColumn
    latest: PackedColumn
    iteration: PackedColumn
    in_mean: PackedColumn
    figure: PackedColumn
    figures: tuple[CollectiveGroup, ...]


@dataclass(frozen=True, slots=True)
class FleetIterations:
    """The numbers of all iterations, those that are steady, and which rank (row) has which iteration (column)."""

    numbers: Times
    steady: Times
    present: NDArray[np.bool_]

    def in_mean(self) -> NDArray[np.bool_]:
        """Return which iterations count in the means of each rank."""
        return self.present & np.isin(self.numbers, self.steady)


def arrived_group(group: MatchedCollectives, arrivals: Arrivals, iterations: FleetIterations) -> ArrivedGroup:
    """Return a group with its arrivals; sums count the steady iterations, or everything if there are none."""
    numbers, steady = iterations.numbers, iterations.steady
    iteration = np.searchsorted(numbers, group.step)
    iteration[iteration == len(numbers)] = 0
    is_known = numbers[iteration] == group.step if len(numbers) else np.zeros(len(group.step), np.bool_)
    in_mean = is_known.copy()
    if len(numbers):
        in_mean &= iterations.in_mean()[group.ranks[arrivals.latest], iteration]
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
        PackedColumn.pack(in_mean.astype(np.int64)),
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


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of some ranks, and what they waited for each rank.

    `by_rank` has the sums in the rows of RANK_SUMS, with a column for each rank of the fleet. `by_figure` has the waits
    of each figure of the groups, in order. `pairs` has the fields of Pair in four rows: the longest of `pair_count`.
    """

    by_rank: NDArray[np.int64]
    by_figure: Times
    pairs: NDArray[np.int64]
    pair_count: int

    def merged(self, other: Waits) -> Waits:
        """Return the waits of the ranks of both, which have none in common."""
        return Waits(
            self.by_rank + other.by_rank,
            self.by_figure + other.by_figure,
            _keep_longest(np.concatenate([self.pairs, other.pairs], axis=1)),
            self.pair_count + other.pair_count,
        )

    def rank_sum(self, name: str) -> Times:
        """Return one of RANK_SUMS for every rank."""
        sums: Times = self.by_rank[RANK_SUMS.index(name)]
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
WAIT_SUMS = ("wait", "bare", "caused", "bare_caused")
# Sums over counted collectives, and over the steady iterations that the rank has.
RANK_SUMS = (*WAIT_SUMS, "last", "matched", *(f"mean_{name}" for name in WAIT_SUMS))


class WaitSums:
    """Sums the waits of one rank after the other."""

    def __init__(self, groups: Sequence[ArrivedGroup], iterations: FleetIterations) -> None:
        """`iterations` has a row for each rank of the fleet."""
        self._groups = groups
        self._in_mean = iterations.in_mean()
        self._rows = rows_by_rank({number: group.group for number, group in enumerate(groups)})
        self._first_figure = np.cumsum([0, *(len(group.figures) for group in groups)])
        self._sums = {name: np.zeros(len(self._in_mean), np.int64) for name in RANK_SUMS}
        self._by_figure = np.zeros(self._first_figure[-1], np.int64)
        self._pairs: NDArray[np.int64] = np.empty((4, 0), np.int64)
        self._pair_count = 0
        self._unpacked = lru_cache(MAX_UNPACKED)(self._unpack)

    def total(self) -> Waits:
        """Return the waits of the ranks so far."""
        by_rank = np.stack([self._sums[name] for name in RANK_SUMS])
        return Waits(by_rank, self._by_figure, _keep_longest(self._pairs), self._pair_count)

    def add(self, rank: int, collectives: Collectives, clock: Clock) -> Times:
        """Add the waits of one rank; return those in each iteration."""
        by_iteration = np.zeros(self._in_mean.shape[1], np.int64)
        waited = np.zeros((2, len(self._in_mean)), np.int64)  # for each other rank: the time, and the number of waits
        for number, row in self._rows.get(rank, ()):
            waited += self._add_group(rank, collectives, clock, number, row, by_iteration)
        waiters = _pairs_of(rank, waited)
        self._pair_count += waiters.shape[1]
        self._pairs = np.concatenate([self._pairs, waiters], axis=1)
        if self._pairs.shape[1] > PRUNE_AT:
            self._pairs = _keep_longest(self._pairs)
        return by_iteration

    def _add_group(
        self, rank: int, collectives: Collectives, clock: Clock, number: int, row: int, by_iteration: Times
    ) -> NDArray[np.int64]:
        """Add the waits of one rank in one group; return the time and the number of its waits for every rank."""
        places, sums, in_mean = self._groups[number].group.places[row], self._sums, self._in_mean[rank]
        group = self._unpacked(number)
        start, end = collectives.times(places, clock)
        wait = np.minimum(group.last - start, end - start)
        bare = np.maximum(wait - collectives.hidden(places), 0)
        waited = np.zeros((2, len(self._in_mean)), np.int64)
        for name, caused, values in (("mean_wait", "mean_caused", wait), ("mean_bare", "mean_bare_caused", bare)):
            each = group.by_iteration.sums(values)
            sums[name][rank] += each[in_mean[group.by_iteration.keys]].sum()
            group.by_last_in_mean.add(values, sums[caused])
        group.by_iteration.add(wait, by_iteration)
        group.by_figure.add(wait, self._by_figure)
        group.by_last.add(wait, waited[0])
        group.by_last.add(wait > 0, waited[1])
        group.by_last.add(bare, sums["bare_caused"])
        sums["wait"][rank] += waited[0].sum()
        sums["bare"][rank] += group.by_last.sums(bare).sum()
        sums["matched"][rank] += len(group.by_last.order)
        sums["last"][rank] += group.last_counts[row]
        sums["caused"] += waited[0]
        return waited

    def _unpack(self, number: int) -> _UnpackedGroup:
        arrived = self._groups[number]
        latest, iteration, figure = arrived.latest.values(), arrived.iteration.values(), arrived.figure.values()
        last, counted = arrived.group.ranks[latest], figure != ABSENT
        return _UnpackedGroup(
            arrived.last.values(),
            np.bincount(latest[counted], minlength=len(arrived.group.ranks)),
            _Buckets.of_keys(iteration, iteration != ABSENT),
            _Buckets.of_keys(last, arrived.in_mean.values() == 1),
            _Buckets.of_keys(last, counted),
            _Buckets.of_keys(figure + self._first_figure[number], counted),
        )


@dataclass(frozen=True, slots=True)
class _Buckets:
    """The places of values with a key: in the order of the keys, where each key begins, and the keys."""

    order: Times
    begin: Times
    keys: Times

    @classmethod
    def of_keys(cls, keys: Times, counts: NDArray[np.bool_]) -> _Buckets:
        """Return the places where `counts` is true."""
        places = np.flatnonzero(counts)
        order = places[np.argsort(keys[places], kind="stable")]
        distinct, begin = np.unique(keys[order], return_index=True)
        return cls(order, begin, distinct)

    def sums(self, values: Times | NDArray[np.bool_]) -> Times:
        """Return the sum of the values of each key."""
        return np.add.reduceat(values[self.order], self.begin, dtype=np.int64)

    def add(self, values: Times | NDArray[np.bool_], totals: Times) -> None:
        """Add the sum of the values of each key to its total."""
        totals[self.keys] += self.sums(values)


@dataclass(frozen=True, slots=True)
class _UnpackedGroup:
    """The arrivals of a group, and how often each row is last; the buckets have what counts in each sum."""

    last: Times
    last_counts: Times
    by_iteration: _Buckets
    by_last_in_mean: _Buckets
    by_last: _Buckets
    by_figure: _Buckets


def _pairs_of(waiter: int, waited: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a column with the fields of Pair for each rank that `waiter` waited for."""
    last = np.flatnonzero(waited[0])
    return np.stack([np.full(len(last), waiter), last, waited[0, last], waited[1, last]])


def _keep_longest(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    waiter, last, waited, _ = pairs
    longest: NDArray[np.int64] = pairs[:, np.lexsort((last, waiter, -waited))[:MAX_PAIRS]]
    return longest
