"""Which ranks hold the others up, by what, at what price, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceview.fleet.remedies import MORE, REMEDIES, TURNS, UNKNOWN
from traceview.model import CAUSES
from traceview.model_fleet import Advice, Rank, Straggler

MANY = 50  # one kernel more in so many is more work
LEAST_WAIT = 0.03  # of a rank's time: less is no advice


def stragglers_of(ranks: Sequence[Rank], typical: int | None, margin: float) -> tuple[Straggler, ...]:
    """Return the ranks whose lag exceeds `margin` of a typical own time and their own noise, dearest first."""
    if typical is None:
        return ()
    found = [
        _straggler(ranks, index, typical)
        for index, rank in enumerate(ranks)
        if rank.lag is not None and rank.noise is not None and rank.lag > max(margin * typical, rank.noise)
    ]
    return tuple(sorted(found, key=lambda one: (-one.cost, -one.lag, one.rank)))


def _straggler(ranks: Sequence[Rank], index: int, typical: int) -> Straggler:
    rank = ranks[index]
    assert rank.lag is not None
    others = [other for place, other in enumerate(ranks) if place != index and other.iterations]
    parts = {
        name: value - int(np.median([_parts(other)[name] for other in others])) for name, value in _parts(rank).items()
    }
    part = max(parts, key=lambda name: parts[name])
    return Straggler(
        rank=index,
        lag=rank.lag,
        share=rank.lag / typical if typical else 0.0,
        part=part,
        part_lag=parts[part],
        more_kernels=rank.kernels - int(np.median([other.kernels for other in others])),
        cost=rank.bare_caused,
        cost_each=rank.bare_caused // max(len(others), 1),
    )


def _parts(rank: Rank) -> dict[str, int]:
    """Return what a rank's own time is made of."""
    return {
        "compute": rank.compute,
        "copies": rank.copies,
        **dict(zip(CAUSES, rank.causes, strict=True)),
    }


def advice_of(ranks: Sequence[Rank], stragglers: Sequence[Straggler]) -> tuple[Advice, ...]:
    """Return what to change first: stragglers of one cause together, then waits that no straggler explains."""
    parts = dict.fromkeys(one.part for one in stragglers)
    found = [_of_part(ranks, [one for one in stragglers if one.part == part]) for part in parts]
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
    return Advice(
        title=(
            f"{ranks[first.rank].label}{_more(len(those))} takes {100 * first.share:.1f}% more time of its own "
            f"than the others, most of it {where}"
        ),
        text=REMEDIES[MORE if extra else part] + more,
        cost=sum(one.cost for one in those),
        rank=first.rank,
    )


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""


def _of_turns(ranks: Sequence[Rank], known: set[int], rest: int, whole: int) -> Advice:
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
        rank=index,
    )
