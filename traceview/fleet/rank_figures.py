"""Figures per rank, measured apart for some ranks; then lags behind the other ranks, and one row per rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.collectives import EMPTY
from traceview.fleet.iterations import merge_bins, time_parts, with_counted_iterations
from traceview.fleet.partials import ByKey, NumberedReports, ranks_of
from traceview.fleet.waits import ABSENT, WAIT_SUMS, ArrivedGroup, FleetIterations, Waits, WaitSums, rows_by_rank
from traceview.intervals import Times
from traceview.model.fleet import Clock, Heat, PackedColumn, Rank, RankResult, RankWork, Steps

HEAT_FIGURES = ("wall", "own", "compute", "wait")
MAX_ITERATIONS = 4000  # distinct iterations of all ranks together
MAX_INT32 = np.iinfo(np.int32).max
MIN_ITERATIONS = 3  # a rank with fewer is not judged
STANDARD_ERROR = 1.2533 * 1.4826  # standard error of a median over the median absolute deviation, if scatter is normal


@dataclass(frozen=True, slots=True)
class Lags:
    """How each rank's own time differs from the others of its set: medians over steady iterations, in ns.

    `noise` is three times the standard error of `lag`, from the median absolute deviation. `count` is the number of
    iterations; below MIN_ITERATIONS, a rank is not judged. `typical` is the median own time of an iteration of its
    set, or ABSENT; `overall` is that of all ranks.
    """

    lag: Times
    noise: Times
    count: Times
    typical: Times
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


@dataclass(frozen=True, slots=True)
class FigurePlan:
    """What a partial measure of the ranks' figures needs to know of all ranks.

    `clocks` has the clock of each rank. If `counted`, iterations are those of with_counted_iterations(). `shown` are
    the collectives of each group that the timeline of all ranks has, and `merged_bins` the bins of work that it merges
    into one.
    """

    groups: tuple[ArrivedGroup, ...]
    clocks: tuple[Clock, ...]
    iterations: FleetIterations
    counted: bool
    shown: tuple[Times, ...]
    merged_bins: int


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank: its time_parts(), a value for each iteration of the fleet (HEAT_FIGURES), and its part of the timeline.

    `shown` has the start and the length of the shown collectives of each group of the rank.
    """

    parts: Mapping[str, Any]
    heat: tuple[PackedColumn, ...]
    work: RankWork | None
    shown: Mapping[int, tuple[PackedColumn, PackedColumn]]


@dataclass(frozen=True, slots=True)
class RankMeasures:
    """The waits of some ranks, and a row for each of them."""

    waits: Waits
    rows: ByKey[RankRow]

    def merged(self, other: RankMeasures) -> RankMeasures:
        """Return the figures of the ranks of both."""
        return RankMeasures(self.waits.merged(other.waits), self.rows.merged(other.rows))


def measure_figures(plan: FigurePlan, reports: NumberedReports) -> RankMeasures:
    """Measure some ranks."""
    sums = WaitSums(plan.groups, plan.iterations)
    rows_of = rows_by_rank({number: group.group for number, group in enumerate(plan.groups)})
    rows: ByKey[RankRow] = ByKey()
    for index, result in ranks_of(reports):
        rank = with_counted_iterations(result) if plan.counted else result
        clock = plan.clocks[index]
        shown = {}
        for number, row in rows_of.get(index, ()):
            start, end = rank.collectives.times(plan.groups[number].group.places[row], clock)
            some = plan.shown[number]
            shown[number] = PackedColumn.pack(start[some]), PackedColumn.pack((end - start)[some])
        wait = sums.add(index, rank.collectives, clock)
        rows[index] = RankRow(
            time_parts(rank, plan.iterations.steady),
            _heat_rows(rank.steps, plan.iterations.numbers, wait),
            None if rank.work is None else merge_bins(rank.work, clock, plan.merged_bins),
            shown,
        )
    return RankMeasures(sums.total(), rows)


def _heat_rows(steps: Steps | None, numbers: Times, wait: Times) -> tuple[PackedColumn, ...]:
    """Return the values of HEAT_FIGURES in each iteration, or ABSENT."""
    rows = np.full((len(HEAT_FIGURES), len(numbers)), ABSENT, np.int64)
    if steps is not None:
        column = np.searchsorted(numbers, steps.number)
        known = column < len(numbers)
        column = column[known]
        wall, exposed = steps.figure("wall")[known], steps.figure("exposed_communication")[known]
        rows[:, column] = wall, wall - exposed, steps.figure("compute")[known], wait[column]
    return tuple(PackedColumn.pack(row) for row in rows)


def build_heat(rows: Sequence[RankRow], iterations: FleetIterations) -> Heat | None:
    """Return the matrices, in 32 bits if that is enough, or None if no rank has iterations."""
    numbers = iterations.numbers
    if len(numbers) == 0:
        return None
    matrices: dict[str, NDArray[Any]] = {name: np.empty((len(rows), len(numbers)), np.int32) for name in HEAT_FIGURES}
    for index, row in enumerate(rows):
        for name, column in zip(HEAT_FIGURES, row.heat, strict=True):
            values = column.values()
            if values.max() >= MAX_INT32:  # less by one, because the page adds one
                matrices[name] = matrices[name].astype(np.int64, copy=False)
            matrices[name][index] = values
    return Heat(steps=numbers, steady=np.isin(numbers, iterations.steady).astype(np.int64), **matrices)


def measure_lags(heat: Heat, sets: Times) -> Lags:
    """Compare each rank's own time with the median own time of the other ranks of its set, iteration by iteration."""
    own = heat.own[:, heat.steady == 1]
    difference = np.zeros(own.shape, np.float64)
    for column in range(own.shape[1]):
        difference[:, column] = difference_within_sets(own[:, column], sets)
    lag, noise, count, typical = (np.zeros(len(own), np.int64) for _ in range(4))
    for row in range(len(own)):
        values = difference[row][~np.isnan(difference[row])]
        count[row] = len(values)
        if len(values):
            median = np.median(values)
            deviation = float(np.median(np.abs(values - median)))
            lag[row] = round(float(median))
            noise[row] = round(3 * STANDARD_ERROR * deviation / len(values) ** 0.5)
    for number in np.unique(sets):
        typical_own = _median_present(own[sets == number])
        typical[sets == number] = ABSENT if typical_own is None else typical_own
    return Lags(lag, noise, count, typical, _median_present(own))


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
    waits: Waits
    heat: Heat | None
    lags: Lags | None

    def row(self, index: int, rank: RankResult, parts: Mapping[str, Any]) -> Rank:
        """Return the row of a rank; `parts` are those of time_parts()."""
        lags, heat, report = self.lags, self.heat, self.reports[index]
        steady = EMPTY if heat is None else heat.steps[heat.steady == 1]
        judged = lags if lags is not None and lags.count[index] >= MIN_ITERATIONS else None
        wait, bare_wait, caused, bare_caused = self._waits(index)
        return Rank(
            label=self.labels[index],
            file=self.files[report],
            report=report,
            device=rank.device,
            gpu=rank.gpu,
            iterations=0 if rank.steps is None else int(np.isin(rank.steps.number, steady).sum()),
            time=None if rank.steps is None else rank.steps.time,
            **parts,
            lag=int(judged.lag[index]) if judged else None,
            noise=int(judged.noise[index]) if judged else None,
            wait=wait,
            bare_wait=bare_wait,
            caused=caused,
            bare_caused=bare_caused,
            last_count=int(self.waits.rank_sum("last")[index]),
            matched=int(self.waits.rank_sum("matched")[index]),
            set=self.sets[index],
            typical=int(lags.typical[index]) if lags is not None and lags.typical[index] != ABSENT else None,
        )

    def _waits(self, index: int) -> list[int]:
        """Return WAIT_SUMS of a rank: per steady iteration, or their totals without such iterations."""
        heat = self.heat
        count = 0 if heat is None else int(np.count_nonzero((heat.steady == 1) & (heat.wall[index] >= 0)))
        names = [f"mean_{name}" for name in WAIT_SUMS] if count else WAIT_SUMS
        return [int(self.waits.rank_sum(name)[index]) // max(count, 1) for name in names]
