"""Splits matched collectives into the groups of ranks that ran them together, and ranks into sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from traceview.fleet.match import MatchedCollectives
from traceview.fleet.partials import ByKey, FleetReports, NumberedReports, ranks_of
from traceview.intervals import Times
from traceview.model.collectives import PackedColumn

# One rank sends or receives: it does not wait for the others, and they do not end together.
ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")
MAX_IMPOSSIBLE_SHARE = 100  # a group may have one impossible collective in this many
MIN_COLLECTIVES_FOR_CLOCKS = 4  # fewer collectives do not compare the clocks of two reports
# The ends of one collective on two H200 with a common clock differ by less than this (docs/fleet.md "Clocks").
MAX_END_DIFFERENCE_NS = 50_000
TRANSFER_SHARE = 20  # a twentieth of the transfer is the tolerance, if that is longer


def split_by_common_ends(
    matched: MatchedCollectives, reports: FleetReports, labels: Sequence[str], notes: list[str]
) -> Iterator[MatchedCollectives]:
    """Yield the parts of a match whose ranks end together, without rooted collectives.

    A match by communicator is one group. In a match by order, such as one of several tensor-parallel groups, ranks
    belong together if the difference of their ends is constant; ranks of one report share a clock, so it is near 0.
    """
    unrooted = np.flatnonzero([kind not in ROOTED for kind in matched.kind])
    if len(unrooted) < len(matched.kind):
        count = len(matched.kind) - len(unrooted)
        notes.append(f"{matched.name}: {count} rooted collectives left out, because they do not show waits")
    if len(unrooted) == 0:
        return
    if len(unrooted) < len(matched.kind):
        matched = matched.select_collectives(unrooted)
    if matched.how == "communicator":
        yield matched
        return
    if len(matched.step) < MIN_COLLECTIVES_FOR_CLOCKS and len(np.unique(reports.report_of[matched.ranks])) > 1:
        notes.append(f"{matched.name}: left out, because {len(matched.step)} are too few to compare clocks")
        return
    for rows in _rows_with_common_ends(matched, reports):
        if len(rows) > 1:
            yield matched.select_ranks(rows)
        else:
            label = labels[int(matched.ranks[rows[0]])]
            notes.append(f"{matched.name}: {label} left out, because it does not end together with any other rank")


def _rows_with_common_ends(matched: MatchedCollectives, reports: FleetReports) -> list[Times]:
    """Return groups of rows that end together, each with the first row that is not yet in a group."""
    left = np.arange(len(matched.ranks))
    tolerance = 0
    groups: list[Times] = []
    while len(left):
        first = int(matched.ranks[left[0]])
        reference = reports.measure(partial(ends_of, matched.places_of(left[:1])), [first])[first]
        work = partial(_compare_ends, matched.places_of(left), reference)
        ends = reports.measure(work, matched.ranks[left])
        if not groups:
            tolerance = max(MAX_END_DIFFERENCE_NS, int(np.median(ends.shortest)) // TRANSFER_SHARE)
        same_clock = reports.report_of[matched.ranks[left]] == reports.report_of[first]
        joined = np.array(
            [
                _end_together(*ends.spread[rank], tolerance, same)
                for rank, same in zip(matched.ranks[left].tolist(), same_clock.tolist(), strict=True)
            ]
        )
        groups.append(left[joined])
        left = left[~joined]
    return groups


def ends_of(places: Mapping[int, PackedColumn], reports: NumberedReports) -> ByKey[Times]:
    """Return the ends of the collectives at these places of each rank, on its own clock."""
    return ByKey(
        {index: rank.collectives.times(places[index])[1] for index, rank in ranks_of(reports) if index in places}
    )


@dataclass(frozen=True, slots=True)
class _ComparedEnds:
    """The shortest kernel of each collective, and how each rank's ends differ from a reference.

    `spread` has the median of the differences of each rank, and the median absolute deviation from it.
    """

    shortest: Times
    spread: ByKey[tuple[float, float]]

    def merged(self, other: _ComparedEnds) -> _ComparedEnds:
        """Return the comparison of the ranks of both."""
        return _ComparedEnds(np.minimum(self.shortest, other.shortest), self.spread.merged(other.spread))


def _compare_ends(places: Mapping[int, PackedColumn], reference: Times, reports: NumberedReports) -> _ComparedEnds:
    """Compare the ends of the ranks with places."""
    shortest = np.full(len(reference), np.iinfo(np.int64).max)
    spread: ByKey[tuple[float, float]] = ByKey()
    for index, rank in ranks_of(reports):
        if index in places:
            start, end = rank.collectives.times(places[index])
            np.minimum(shortest, end - start, out=shortest)
            difference = end - reference
            median = np.median(difference)
            spread[index] = float(median), float(np.median(np.abs(difference - median)))
    return _ComparedEnds(shortest, spread)


def _end_together(median: float, spread: float, tolerance: int, same_clock: bool) -> bool:
    """Return whether two ranks whose ends differ by this belong together."""
    return spread <= tolerance and (not same_clock or abs(median) <= tolerance)


def rank_sets(groups: Sequence[MatchedCollectives], count: int) -> Times:
    """Return the number of each rank's set, from 0. Ranks of a set share collectives, directly or through others.

    With fewer than two such sets, all ranks are one set: ranks without matched collectives belong to the same run.
    With more, it is unknown to which run they belong, so they form a set of their own.
    """
    sets = np.arange(count, dtype=np.int64)
    for group in groups:
        joined = np.isin(sets, sets[group.ranks])
        sets[joined] = sets[group.ranks].min()
    firsts, sizes = np.unique(sets, return_counts=True)
    if np.count_nonzero(sizes > 1) < 2:
        return np.zeros(count, np.int64)
    sets[np.isin(sets, firsts[sizes == 1])] = count
    numbers: Times = np.unique(sets, return_inverse=True)[1].astype(np.int64)
    return numbers


def set_notes(sets: Times) -> Iterator[str]:
    """Yield a note if there are several sets."""
    if (count := len(np.unique(sets))) > 1:
        yield (
            f"the ranks form {count:,} sets without common collectives, like different runs; each rank is compared "
            "within its own set"
        )
