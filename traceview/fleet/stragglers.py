"""Finds the ranks that hold the others up, with their cause and cost, and advises each kind of program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np

from traceview.fleet.rank_figures import difference_within_sets
from traceview.fleet.waits import ABSENT
from traceview.intervals import Times
from traceview.model.analysis import CAUSES
from traceview.model.catalogue import read_toml
from traceview.model.fleet import Advice, CollectiveGroup, Rank, Straggler
from traceview.model.program import Program
from traceview.model.units import share

REMEDIES = Path(__file__).with_name("remedies.toml")
KERNELS = "kernels"
EXTRA_KERNEL_SHARE = 50  # one kernel in this many beyond the others' count is extra work
MIN_WAIT_FRACTION = 0.03  # part of the ranks' time; a shorter wait gives no advice


def _cause_getter(place: int) -> Callable[[Rank], int]:
    return lambda rank: rank.causes[place]


# The parts of a rank's own time, and its number of kernels.
PARTS: Mapping[str, Callable[[Rank], int]] = {
    "compute": lambda rank: rank.compute,
    "copies": lambda rank: rank.copies,
    **{cause: _cause_getter(place) for place, cause in enumerate(CAUSES)},
    KERNELS: lambda rank: rank.kernels,
}


def find_stragglers(ranks: Sequence[Rank], groups: Sequence[CollectiveGroup], margin: float) -> tuple[Straggler, ...]:
    """Return the ranks whose lag exceeds both their noise and `margin` times a typical own time, costliest first."""
    late = [
        index
        for index, rank in enumerate(ranks)
        if rank.lag is not None and rank.noise is not None and rank.lag > max(margin * (rank.typical or 0), rank.noise)
    ]
    differences = {name: _difference_of(ranks, figure) for name, figure in PARTS.items()} if late else {}
    stragglers = [_build_straggler(ranks, groups, index, differences) for index in late]
    return tuple(sorted(stragglers, key=lambda straggler: (-straggler.cost, -straggler.lag, straggler.rank)))


def _difference_of(ranks: Sequence[Rank], figure: Callable[[Rank], int]) -> Times:
    """Return a figure of every rank minus the median of the others of its set that have iterations."""
    values = np.array([figure(rank) if rank.iterations else ABSENT for rank in ranks], np.int64)
    difference = difference_within_sets(values, np.array([rank.set for rank in ranks], np.int64))
    rounded: Times = np.nan_to_num(difference).round().astype(np.int64)
    return rounded


def _build_straggler(
    ranks: Sequence[Rank], groups: Sequence[CollectiveGroup], index: int, differences: Mapping[str, Times]
) -> Straggler:
    rank = ranks[index]
    assert rank.lag is not None
    part = max((name for name in differences if name != KERNELS), key=lambda name: int(differences[name][index]))
    waiting = set(chain.from_iterable(group.ranks for group in groups if index in group.ranks)) - {index}
    return Straggler(
        rank=index,
        lag=rank.lag,
        share=rank.lag / rank.typical if rank.typical else 0.0,
        part=part,
        part_lag=int(differences[part][index]),
        more_kernels=int(differences[KERNELS][index]),
        cost=rank.bare_caused,
        cost_each=rank.bare_caused // max(len(waiting), 1),
        waiting=len(waiting),
    )


def build_advice(
    ranks: Sequence[Rank], stragglers: Sequence[Straggler], programs: Sequence[Program]
) -> tuple[Advice, ...]:
    """Return one advice per set and cause of stragglers, and one for waits that no straggler explains.

    `programs` are the kinds of program of the ranks.
    """
    by_cause: dict[tuple[int, str], list[Straggler]] = {}
    for straggler in stragglers:
        by_cause.setdefault((ranks[straggler.rank].set, straggler.part), []).append(straggler)
    advice = [_straggler_advice(ranks, group, programs) for group in by_cause.values()]
    unexplained = sum(rank.bare_wait for rank in ranks) - sum(straggler.cost for straggler in stragglers)
    wall = sum(rank.wall for rank in ranks if rank.matched)
    if unexplained > MIN_WAIT_FRACTION * wall:
        straggling = {straggler.rank for straggler in stragglers}
        advice.append(_unexplained_wait_advice(ranks, straggling, programs, unexplained))
    return tuple(sorted(advice, key=lambda item: -item.cost))


def _straggler_advice(ranks: Sequence[Rank], stragglers: Sequence[Straggler], programs: Sequence[Program]) -> Advice:
    first = stragglers[0]
    part = first.part
    where = {"compute": "compute", "copies": "exposed copies"}.get(part, f"idle ({part})")
    kernels = ranks[first.rank].kernels
    has_extra = part == "compute" and first.more_kernels * EXTRA_KERNEL_SHARE > kernels
    extra = f" It runs {first.more_kernels:,} more kernels per iteration than the others, of {kernels:,}."
    cost = sum(straggler.cost for straggler in stragglers)
    together = [rank for rank in ranks if rank.set == ranks[first.rank].set and rank.matched]
    waiting = first.waiting if len(stragglers) == 1 else len(together)
    more = f" (and {len(stragglers) - 1} more)" if len(stragglers) > 1 else ""
    return Advice(
        title=(
            f"{ranks[first.rank].label}{more}: own time is {share(first.share)} longer than the others', mostly {where}"
        ),
        text=remedies(programs[first.rank])["more_kernels" if has_extra else part] + (extra if has_extra else ""),
        cost=cost,
        each=cost // max(waiting, 1),
        waiting=waiting,
        wall=_median_wall(together),
        rank=first.rank,
    )


def _median_wall(ranks: Sequence[Rank]) -> int:
    return int(np.median([rank.wall for rank in ranks])) if ranks else 0


def _unexplained_wait_advice(
    ranks: Sequence[Rank], straggling: set[int], programs: Sequence[Program], wait: int
) -> Advice:
    together = [rank for rank in ranks if rank.matched]
    wall = sum(rank.wall for rank in together)
    candidates = [index for index in range(len(ranks)) if index not in straggling] or list(range(len(ranks)))
    index = max(candidates, key=lambda candidate: (ranks[candidate].last_count, -candidate))
    rank = ranks[index]
    judged = any(rank.lag is not None for rank in ranks)
    subject = "Besides, ranks" if straggling else "Ranks"
    remedy = remedies(programs[index])["changing_ranks" if judged else "no_iterations"]
    return Advice(
        title=f"{subject} wait in collectives for {share(wait, wall)} of their time, but no rank is always slower",
        text=f"{rank.label} arrived last most often: {rank.last_count:,} of {rank.matched:,}. {remedy}",
        cost=wait,
        each=wait // len(together),
        waiting=len(together),
        wall=_median_wall(together),
        rank=index,
    )


def remedies(program: Program) -> Mapping[str, str]:
    """Return the remedies for a kind of program, by their names in remedies.toml."""
    uses_mpi = "mpi" in (program.kind, *program.frameworks)
    return _remedies("pytorch" if program.kind == "pytorch" else "mpi" if uses_mpi else "cuda")


@cache
def _remedies(kind: str) -> Mapping[str, str]:
    catalogue = read_toml(REMEDIES)
    return {name: " ".join(text.split()) for name, text in (catalogue["cuda"] | catalogue[kind]).items()}
