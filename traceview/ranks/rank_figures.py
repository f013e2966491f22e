"""Figures of each rank in each iteration, lags behind the other ranks, and one row per rank.

From the rows follow the ranks that hold the others up, with their cause and cost, and advice for each kind of program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.analysis import CAUSES
from traceview.model.catalogue import read_toml
from traceview.model.fleet import Advice, CollectiveGroup, Heat, Rank, RankResult, Straggler
from traceview.model.frozen import dataclass
from traceview.model.program import Program
from traceview.model.units import share
from traceview.ranks.collectives import EMPTY
from traceview.ranks.iterations import time_parts
from traceview.ranks.waits import ABSENT, WAIT_SUMS, FleetIterations

MAX_ITERATIONS = 4000  # distinct iterations of all ranks together
MIN_ITERATIONS = 3  # a rank with fewer is not judged
STANDARD_ERROR = 1.2533 * 1.4826  # standard error of a median over the median absolute deviation, if scatter is normal


@dataclass(frozen=True, slots=True)
class Lags:
    """How each rank's own time differs from the others of its set: medians over steady iterations, in ns.

    `noise` is three times the standard error of `lag`, from the median absolute deviation. Both are None with fewer
    than MIN_ITERATIONS iterations. `typical` is the median own time of an iteration of each rank's set, or None;
    `overall` is that of all ranks.
    """

    lag: Sequence[int | None]
    noise: Sequence[int | None]
    typical: Sequence[int | None]
    overall: int | None


def fleet_iterations(ranks: Sequence[RankResult]) -> FleetIterations:
    """Return the iterations of all ranks; those that are warm-up on no rank are steady."""
    stepped = [rank.steps for rank in ranks if rank.steps is not None]
    if not stepped:
        return FleetIterations(EMPTY, EMPTY, np.zeros((len(ranks), 0), np.bool_))
    numbers = np.unique(np.concatenate([steps.number for steps in stepped]))[:MAX_ITERATIONS]
    warm_up = np.unique(np.concatenate([steps.number[: steps.skipped] for steps in stepped]))
    present = np.zeros((len(ranks), len(numbers)), np.bool_)
    for row, rank in enumerate(ranks):
        if rank.steps is not None:
            present[row] = np.isin(numbers, rank.steps.number)
    return FleetIterations(numbers, numbers[~np.isin(numbers, warm_up)], present)


def build_heat(ranks: Sequence[RankResult], iterations: FleetIterations, waited: NDArray[np.int64]) -> Heat | None:
    """Return the figures of each rank in each iteration, or None if no rank has iterations.

    `waited` has the waits of each rank in each iteration.
    """
    numbers = iterations.numbers
    if len(numbers) == 0:
        return None
    wall, own, compute, wait = np.full((4, len(ranks), len(numbers)), ABSENT, np.int64)
    for row, rank in enumerate(ranks):
        if (steps := rank.steps) is not None:
            column = np.searchsorted(numbers, steps.number)
            known = column < len(numbers)
            column = column[known]
            wall[row, column] = steps.wall[known]
            own[row, column] = (steps.wall - steps.exposed_communication)[known]
            compute[row, column] = steps.compute[known]
            wait[row, column] = waited[row, column]
    return Heat(numbers, np.isin(numbers, iterations.steady).astype(np.int64), wall, own, compute, wait)


def measure_lags(heat: Heat | None, sets: Times) -> Lags:
    """Compare each rank's own time with the median own time of the other ranks of its set, iteration by iteration."""
    own = np.empty((len(sets), 0), np.int64) if heat is None else heat.own[:, heat.steady == 1]
    differences = np.array([difference_within_sets(column, sets) for column in own.T]).reshape(-1, len(sets)).T
    lag, noise = zip(*(_lag_and_noise(row[~np.isnan(row)]) for row in differences), strict=True)
    typical = {number: _median_present(own[sets == number]) for number in set(sets.tolist())}
    return Lags(lag, noise, [typical[number] for number in sets.tolist()], _median_present(own))


def _lag_and_noise(differences: NDArray[np.float64]) -> tuple[int, int] | tuple[None, None]:
    if len(differences) < MIN_ITERATIONS:
        return None, None
    median = float(np.median(differences))
    deviation = float(np.median(np.abs(differences - median)))
    return round(median), round(3 * STANDARD_ERROR * deviation / len(differences) ** 0.5)


def _median_present(own: Times) -> int | None:
    present = own[own != ABSENT]
    return int(np.median(present)) if len(present) else None


def difference_within_sets(values: Times, sets: Times) -> NDArray[np.float64]:
    """Return `difference_from_others` of each set."""
    difference = np.full(len(values), np.nan)
    for number in np.unique(sets):
        difference[sets == number] = difference_from_others(values[sets == number])
    return difference


def difference_from_others(values: Times) -> NDArray[np.float64]:
    """Return each value minus the median of the others, or NaN where a value is absent or has no others."""
    difference = np.full(len(values), np.nan)
    rows = np.flatnonzero(values != ABSENT)
    count = len(rows)
    if count < 2:
        return difference
    order = np.argsort(values[rows], kind="stable")
    ordered = values[rows][order].astype(np.float64)
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    # Without the value at `place`, the values behind it move one place forward.
    low, high = (count - 2) // 2, (count - 1) // 2
    median = (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2
    difference[rows] = values[rows] - median
    return difference


@dataclass(frozen=True, slots=True)
class RankTable:
    """What the fleet's row for each rank follows from; `labels`, `reports` and `sets` have a value for each rank."""

    labels: Sequence[str]
    reports: Sequence[int]  # index in `files`
    sets: Sequence[int]
    files: Sequence[str]
    nodes: Sequence[int | None]  # one for each report
    steady: Times
    sums: Mapping[str, Times]  # see Waits
    lags: Lags

    def row(self, index: int, rank: RankResult) -> Rank:
        """Return the row of a rank."""
        report = self.reports[index]
        iterations = 0 if rank.steps is None else int(np.isin(rank.steps.number, self.steady).sum())
        # Per steady iteration, or totals without such iterations.
        prefix = "mean_" if iterations else ""
        wait, bare_wait, caused, bare_caused = (
            int(self.sums[prefix + name][index]) // max(iterations, 1) for name in WAIT_SUMS
        )
        return Rank(
            label=self.labels[index],
            file=self.files[report],
            report=report,
            device=rank.device,
            gpu=rank.gpu,
            iterations=iterations,
            time=None if rank.steps is None else rank.steps.time,
            **time_parts(rank, self.steady),
            lag=self.lags.lag[index],
            noise=self.lags.noise[index],
            wait=wait,
            bare_wait=bare_wait,
            caused=caused,
            bare_caused=bare_caused,
            last_count=int(self.sums["last"][index]),
            matched=int(self.sums["matched"][index]),
            set=self.sets[index],
            typical=self.lags.typical[index],
            node=self.nodes[report],
        )


REMEDIES = Path(__file__).with_name("remedies.toml")
KERNELS = "kernels"
EXTRA_KERNEL_SHARE = 50  # one kernel in this many beyond the others' count is extra work
EXPLAINED = 0.5  # share of a lag: as large a share of extra kernels explains a host that is late
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
    # A host that is late because it launches as many more is not slow.
    share_explained = {"compute": 0.0, "host": EXPLAINED, "launch": EXPLAINED}.get(part, np.inf) * first.share
    has_extra = first.more_kernels > max(kernels / EXTRA_KERNEL_SHARE, share_explained * (kernels - first.more_kernels))
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
    texts = {name: " ".join(text.split()) for name, text in (catalogue["cuda"] | catalogue[kind]).items()}
    return {name: text.replace("{others}", catalogue["shared"]["others"]) for name, text in texts.items()}
