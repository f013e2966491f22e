"""Who waited for whom: on one collective all wait for the last to arrive.

A rank arrives when its kernel starts. It waits from then to the last arrival, but no longer than its own kernel
lasts. Of that wait, what was not hidden behind compute of the same GPU is at least `wait - hidden`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.match import Matched
from traceview.fleet.pairs import Arrivals, longest_pairs
from traceview.intervals import Times
from traceview.model.fleet import CollectiveGroup, Pair


@dataclass(frozen=True, slots=True)
class Waits:
    """Sums for every rank over the collectives that count, and `each` group of them for what is asked by iteration."""

    waited: Times
    exposed: Times
    caused: Times
    caused_exposed: Times
    last: Times
    matched: Times
    pairs: tuple[Pair, ...]
    pair_count: int
    groups: tuple[CollectiveGroup, ...]
    each: tuple[Each, ...]


class Each(NamedTuple):
    """The waits of one group, of shape (ranks, collectives); `latest` is the row that came last to each."""

    ranks: Times
    step: Times
    latest: Times
    wait: NDArray[np.int64]
    bare: NDArray[np.int64]  # at least so much of it had no compute beside it


def measure_waits(groups: Sequence[Matched], count: int, steady: Times) -> Waits:
    """Measure the waits of `count` ranks; the times of all groups are on one clock.

    Sums are those of the iterations in `steady`, or of all where there is none; `each` holds all.
    """
    sums = {
        name: np.zeros(count, np.int64) for name in ("waited", "exposed", "caused", "caused_exposed", "last", "matched")
    }
    made: list[CollectiveGroup] = []
    each = []
    arrivals = []
    for group in groups:
        each.append(_waits(group))
        places = np.flatnonzero(np.isin(group.step, steady)) if len(steady) else np.arange(len(group.step))
        if len(places) == 0:
            continue
        _, _, latest, wait, bare = _only(each[-1], places)
        sums["waited"][group.ranks] += wait.sum(axis=1)
        sums["exposed"][group.ranks] += bare.sum(axis=1)
        sums["matched"][group.ranks] += len(places)
        np.add.at(sums["caused"], group.ranks[latest], wait.sum(axis=0))
        np.add.at(sums["caused_exposed"], group.ranks[latest], bare.sum(axis=0))
        np.add.at(sums["last"], group.ranks[latest], 1)
        arrivals.append(Arrivals(group.ranks, latest, wait))
        made.extend(_summary(group, places, latest, wait))
    pairs, pair_count = longest_pairs(arrivals, count)
    return Waits(
        **sums,
        pairs=pairs,
        pair_count=pair_count,
        groups=tuple(made),
        each=tuple(each),
    )


def _waits(group: Matched) -> Each:
    wait = np.minimum(group.start.max(axis=0) - group.start, group.end - group.start)
    return Each(group.ranks, group.step, group.start.argmax(axis=0), wait, np.maximum(wait - group.hidden, 0))


def _only(each: Each, places: Times) -> Each:
    """Return some collectives; `places` ascend. All of them are not copied."""
    if len(places) == len(each.step):
        return each
    return Each(each.ranks, each.step[places], each.latest[places], each.wait[:, places], each.bare[:, places])


def _summary(group: Matched, places: Times, latest: Times, wait: NDArray[np.int64]) -> list[CollectiveGroup]:
    """Return the figures of each kind of the collectives at `places`, of which `latest` and `wait` are."""
    kinds = np.array(group.kind)[places]
    found = []
    for kind in np.unique(kinds):
        at = np.flatnonzero(kinds == kind)
        found.append(_of_kind(group, str(kind), places[at], latest[at], wait[:, at]))
    return found


def _of_kind(group: Matched, kind: str, at: Times, latest: Times, wait: NDArray[np.int64]) -> CollectiveGroup:
    """Return the figures of the collectives at `at`, of which `latest` and `wait` are."""
    start = group.start[:, at]
    skew = np.sort(start.max(axis=0) - start.min(axis=0))
    often = np.bincount(latest, minlength=len(group.ranks))
    return CollectiveGroup(
        name=group.name,
        how=group.how,
        kind=kind,
        ranks=tuple(int(rank) for rank in group.ranks),
        count=len(at),
        skew_median=int(np.median(skew)),
        skew_p95=int(skew[(len(skew) - 1) * 95 // 100]),
        transfer=int(np.median((group.end[:, at] - start).min(axis=0))),
        waited=int(wait.sum()),
        last=int(group.ranks[often.argmax()]),
        last_count=int(often.max()),
    )


@dataclass(frozen=True, slots=True)
class ByStep:
    """The same by iteration, of shape (ranks, iterations): waits, and what the others waited for each rank."""

    wait: NDArray[np.int64]
    bare: NDArray[np.int64]
    caused: NDArray[np.int64]
    caused_bare: NDArray[np.int64]


def by_step(waits: Waits, numbers: Times, count: int) -> ByStep:
    """Add up waits by the iteration that launched the collective; `numbers` ascend, others are left out."""
    total = ByStep(*(np.zeros((count, len(numbers)), np.int64) for _ in range(4)))
    for each in waits.each:
        place = np.searchsorted(numbers, each.step)
        known = place < len(numbers)
        known[known] = numbers[place[known]] == each.step[known]
        at = place[known]
        for into, values in ((total.wait, each.wait), (total.bare, each.bare)):
            np.add.at(into, (each.ranks[:, None], at[None, :]), values[:, known])
        last = each.ranks[each.latest[known]]
        np.add.at(total.caused, (last, at), each.wait[:, known].sum(axis=0))
        np.add.at(total.caused_bare, (last, at), each.bare[:, known].sum(axis=0))
    return total
