"""When the ranks of a group arrive at each collective, and how long they wait there: all wait for the last one.

A rank arrives when its kernel starts. It waits until the last arrival, but no longer than its own kernel lasts. The
part of the wait without compute on the same GPU is at least `wait - hidden`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.fleet import CollectiveGroup, Pair
from traceview.model.frozen import dataclass
from traceview.ranks.match import MatchedCollectives

ABSENT = -1
MAX_PAIRS = 1000  # the longest are kept


@dataclass(frozen=True, slots=True)
class ArrivedGroup:
    """A group on the common clock, and its arrivals; columns have a value for each collective.

    `latest` is the row of the rank that arrives last, the lowest of several. `iteration` is an index into the fleet's
    iterations, and `figure` one into `figures`; both are ABSENT where there is none. `in_mean` is true where the
    iteration is steady and the last rank has it. `figures` has an entry for each kind that the sums count, without its
    waits.
    """

    group: MatchedCollectives
    last: Times
    latest: Times
    iteration: Times
    in_mean: NDArray[np.bool_]
    figure: Times
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


def measure_arrivals(group: MatchedCollectives, iterations: FleetIterations) -> ArrivedGroup:
    """Return a group with its arrivals; sums count the steady iterations, or everything if there are none."""
    numbers, steady = iterations.numbers, iterations.steady
    latest, last = group.start.argmax(axis=0), group.start.max(axis=0)
    iteration = np.searchsorted(numbers, group.step)
    iteration[iteration == len(numbers)] = 0
    is_known = numbers[iteration] == group.step if len(numbers) else np.zeros(len(group.step), np.bool_)
    in_mean = is_known.copy()
    if len(numbers):
        in_mean &= iterations.in_mean()[group.ranks[latest], iteration]
    counted = np.isin(group.step, steady) if len(steady) else np.ones(len(group.step), np.bool_)
    figure = np.full(len(group.step), ABSENT)
    figures = []
    for code, kind in enumerate(np.unique(group.kind[counted])):
        at = np.flatnonzero(counted & (group.kind == kind))
        figure[at] = code
        figures.append(_kind_figures(group.select(columns=at), str(kind), latest[at]))
    return ArrivedGroup(group, last, latest, np.where(is_known, iteration, ABSENT), in_mean, figure, tuple(figures))


def _kind_figures(group: MatchedCollectives, kind: str, latest: Times) -> CollectiveGroup:
    """Return the figures of collectives of one kind, without waits; `latest` is that of ArrivedGroup."""
    skew = np.sort(np.ptp(group.start, axis=0))
    last_counts = np.bincount(latest, minlength=len(group.ranks))
    return CollectiveGroup(
        name=group.name,
        how=group.how,
        kind=kind,
        ranks=tuple(group.ranks.tolist()),
        count=len(skew),
        skew_median=int(np.median(skew)),
        skew_p95=int(skew[(len(skew) - 1) * 95 // 100]),
        transfer=int(np.median((group.end - group.start).min(axis=0))),
        waited=0,
        last=int(group.ranks[last_counts.argmax()]),
        last_count=int(last_counts.max()),
    )


# What a rank waited and caused others to wait; bare: a lower bound of the part without compute beside it.
WAIT_SUMS = ("wait", "bare", "caused", "bare_caused")
CAUSED = {"wait": "caused", "bare": "bare_caused"}
# Sums over counted collectives, and over the steady iterations that the rank has.
RANK_SUMS = (*WAIT_SUMS, "last", "matched", *(f"mean_{name}" for name in WAIT_SUMS))


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of all ranks.

    `sums` has the names RANK_SUMS, with a value for each rank. `by_iteration` has a row for each rank and a column for
    each iteration. `figures` are those of all groups, with their waits.
    """

    sums: Mapping[str, Times]
    by_iteration: NDArray[np.int64]
    figures: tuple[CollectiveGroup, ...]
    pairs: tuple[Pair, ...]  # the MAX_PAIRS longest
    pair_count: int


def measure_waits(groups: Sequence[ArrivedGroup], iterations: FleetIterations) -> Waits:
    """Add up the waits of all ranks in all groups; `iterations` has a row for each rank of the fleet."""
    in_mean = iterations.in_mean()
    ranks, figures = len(in_mean), []
    sums = {name: np.zeros(ranks, np.int64) for name in RANK_SUMS}
    by_iteration = np.zeros(in_mean.shape, np.int64)
    pairs = np.zeros((2, ranks, ranks), np.int64)  # how long, and how often, one rank waits for another
    for each in groups:
        group = each.group
        wait = np.minimum(each.last - group.start, group.end - group.start)
        bare = np.maximum(wait - group.hidden, 0)
        counted, last = each.figure != ABSENT, group.ranks[each.latest]
        iteration = _Buckets.of_keys(each.iteration, each.iteration != ABSENT)
        last_in_mean, any_last = _Buckets.of_keys(last, each.in_mean), _Buckets.of_keys(last, counted)
        for name, values in (("wait", wait), ("bare", bare)):
            of_last, counts = any_last.sums(values), in_mean[np.ix_(group.ranks, iteration.keys)]
            sums[name][group.ranks] += of_last.sum(axis=1)
            sums[CAUSED[name]][any_last.keys] += of_last.sum(axis=0)
            sums[f"mean_{name}"][group.ranks] += (iteration.sums(values) * counts).sum(axis=1)
            sums[f"mean_{CAUSED[name]}"][last_in_mean.keys] += last_in_mean.sums(values).sum(axis=0)
        sums["matched"][group.ranks] += np.count_nonzero(counted)
        sums["last"] += np.bincount(last[counted], minlength=ranks)
        by_iteration[np.ix_(group.ranks, iteration.keys)] += iteration.sums(wait)
        for total, values in zip(pairs, (wait, wait > 0), strict=True):
            total[np.ix_(group.ranks, any_last.keys)] += any_last.sums(values)
        waited = [int(wait[:, each.figure == code].sum()) for code in range(len(each.figures))]
        figures += [replace(figure, waited=ns) for figure, ns in zip(each.figures, waited, strict=True)]
    return Waits(sums, by_iteration, tuple(figures), _longest_pairs(*pairs), int(np.count_nonzero(pairs[0])))


@dataclass(frozen=True, slots=True)
class _Buckets:
    """The places of collectives with a key: in the order of the keys, where each key begins, and the keys."""

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

    def sums(self, values: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the sum of the values of each key in each row."""
        return np.add.reduceat(values[:, self.order], self.begin, axis=1, dtype=np.int64)


def _longest_pairs(waited: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[Pair, ...]:
    """Return the MAX_PAIRS longest total waits of one rank (row) for another (column)."""
    waiter, last = np.nonzero(waited)
    longest = np.lexsort((last, waiter, -waited[waiter, last]))[:MAX_PAIRS]
    places = zip(waiter[longest].tolist(), last[longest].tolist(), strict=True)
    return tuple(Pair(row, column, int(waited[row, column]), int(counts[row, column])) for row, column in places)
