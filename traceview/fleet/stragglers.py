"""Which ranks hold the others up, by what, at what price, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import numpy as np

from traceview.fleet.heat import ABSENT, less_others_of
from traceview.fleet.remedies import MORE, REMEDIES, TURNS, UNKNOWN
from traceview.intervals import Times
from traceview.model.analysis import CAUSES
from traceview.model.fleet import Advice, CollectiveGroup, Rank, Straggler

KERNELS = "kernels"


def _cause(place: int) -> Callable[[Rank], int]:
    return lambda rank: rank.causes[place]


# What a rank's own time is made of, and how many kernels it ran.
PARTS: Mapping[str, Callable[[Rank], int]] = {
    "compute": lambda rank: rank.compute,
    "copies": lambda rank: rank.copies,
    **{cause: _cause(place) for place, cause in enumerate(CAUSES)},
    KERNELS: lambda rank: rank.kernels,
}
MANY = 50  # one kernel more in so many is more work
LEAST_WAIT = 0.03  # of a rank's time: less is no advice


def stragglers_of(
    ranks: Sequence[Rank], groups: Sequence[CollectiveGroup], margin: float
) -> tuple[Straggler, ...]:
    """Return the ranks whose lag exceeds `margin` of a typical own time and their own noise, dearest first."""
    late = [
        index
        for index, rank in enumerate(ranks)
        if rank.lag is not None and rank.noise is not None and rank.lag > max(margin * (rank.typical or 0), rank.noise)
    ]
    parts = {name: _beside(ranks, of) for name, of in PARTS.items()} if late else {}
    found = [_straggler(ranks, groups, index, parts) for index in late]
    return tuple(sorted(found, key=lambda one: (-one.cost, -one.lag, one.rank)))


def _beside(ranks: Sequence[Rank], of: Callable[[Rank], int]) -> Times:
    """Return a figure of every rank less the median of the others of its set that have iterations."""
    values = np.array([of(rank) if rank.iterations else ABSENT for rank in ranks], np.int64)
    apart = less_others_of(values, np.array([rank.set for rank in ranks], np.int64))
    found: Times = np.nan_to_num(apart).round().astype(np.int64)
    return found


def _straggler(
    ranks: Sequence[Rank], groups: Sequence[CollectiveGroup], index: int, parts: Mapping[str, Times]
) -> Straggler:
    rank = ranks[index]
    assert rank.lag is not None
    part = max((name for name in parts if name != KERNELS), key=lambda name: int(parts[name][index]))
    waiting = set(chain.from_iterable(group.ranks for group in groups if index in group.ranks)) - {index}
    return Straggler(
        rank=index,
        lag=rank.lag,
        share=rank.lag / rank.typical if rank.typical else 0.0,
        part=part,
        part_lag=int(parts[part][index]),
        more_kernels=int(parts[KERNELS][index]),
        cost=rank.bare_caused,
        cost_each=rank.bare_caused // max(len(waiting), 1),
        waiting=len(waiting),
    )


def advice_of(ranks: Sequence[Rank], stragglers: Sequence[Straggler]) -> tuple[Advice, ...]:
    """Return what to change first: a set's stragglers of one cause together, then waits that no straggler explains."""
    alike: dict[tuple[int, str], list[Straggler]] = {}
    for one in stragglers:
        alike.setdefault((ranks[one.rank].set, one.part), []).append(one)
    found = [_of_part(ranks, those) for those in alike.values()]
    rest = sum(rank.bare_wait for rank in ranks) - sum(one.cost for one in stragglers)
    whole = sum(rank.wall for rank in ranks if rank.matched)
    if rest > LEAST_WAIT * whole:
        found.append(_of_turns(ranks, {one.rank for one in stragglers}, rest, whole))
    return tuple(sorted(found, key=lambda one: -one.cost))


def _of_part(ranks: Sequence[Rank], those: Sequence[Straggler]) -> Advice:
    first = those[0]
    part = first.part
    where = {"compute": "compute", "copies": "copies that nothing hides"}.get(part, f"idle ({part})")
    kernels = ranks[first.rank].kernels
    extra = part == "compute" and first.more_kernels * MANY > kernels
    more = (
        f" {first.more_kernels:,} of its {kernels:,} kernels an iteration are more than the others'." if extra else ""
    )
    cost = sum(one.cost for one in those)
    together = [rank for rank in ranks if rank.set == ranks[first.rank].set and rank.matched]
    waiting = first.waiting if len(those) == 1 else len(together)
    return Advice(
        title=(
            f"{ranks[first.rank].label}{_more(len(those))} takes {100 * first.share:.1f}% more time of its own "
            f"than the others, most of it {where}"
        ),
        text=REMEDIES[MORE if extra else part] + more,
        cost=cost,
        each=cost // max(waiting, 1),
        waiting=waiting,
        wall=_wall(together),
        rank=first.rank,
    )


def _wall(ranks: Sequence[Rank]) -> int:
    return int(np.median([rank.wall for rank in ranks])) if ranks else 0


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""


def _of_turns(ranks: Sequence[Rank], known: set[int], rest: int, whole: int) -> Advice:
    together = [one for one in ranks if one.matched]
    candidates = [index for index in range(len(ranks)) if index not in known] or list(range(len(ranks)))
    index = max(candidates, key=lambda one: (ranks[one].last_count, -one))
    rank = ranks[index]
    steady = any(rank.lag is not None for rank in ranks)
    which = "Besides, ranks" if known else "Ranks"
    words = TURNS if steady else UNKNOWN
    return Advice(
        title=f"{which} wait in collectives for {100 * rest / whole:.1f}% of their time, without one slower throughout",
        text=f"{rank.label} came last most often: {rank.last_count:,} of {rank.matched:,}. {words}",
        cost=rest,
        each=rest // len(together),
        waiting=len(together),
        wall=_wall(together),
        rank=index,
    )
