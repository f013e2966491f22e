"""Measures how long ranks wait for each other: in a collective, all ranks wait for the last one to arrive.

A rank waits until the last arrival (arrivals.py), but no longer than its own kernel lasts. The part of the wait without
compute on the same GPU is at least `wait - hidden`.

Both passes unpack one rank at a time. Their results merge in any order and grouping, so reports may be measured apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.arrivals import ABSENT, ArrivedGroup, FleetIterations, rows_by_rank
from traceview.intervals import Times
from traceview.model.collectives import Clock, Collectives
from traceview.model.fleet import CollectiveGroup, Pair

MAX_PAIRS = 1000  # the longest are kept
PRUNE_AT = 8 * MAX_PAIRS
MAX_UNPACKED = 16  # groups; neighbouring ranks share most of theirs


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
