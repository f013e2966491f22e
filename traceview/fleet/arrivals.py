"""When the ranks of a group arrive at each collective. A rank arrives when its kernel starts.

Arrivals of some ranks merge in any order and grouping, so reports may be measured apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.match import MatchedCollectives
from traceview.fleet.partials import ByKey, NumberedReports, ranks_of
from traceview.intervals import Times
from traceview.model.collectives import Clock, PackedColumn
from traceview.model.fleet import CollectiveGroup

ABSENT = -1


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
