"""Every rank in every iteration, as matrices: what the heat map shows and what stragglers are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.collectives import EMPTY
from traceview.fleet.skew import ByStep, Waits, by_step
from traceview.intervals import Times
from traceview.model.fleet import Heat, RankResult

ABSENT = -1
MOST = 4000  # iterations of all ranks together


@dataclass(frozen=True, slots=True)
class Lags:
    """How each rank's own time differs from the others' of its set: medians over steady iterations, in ns.

    `noise` is three times the standard error of that median, from the median absolute deviation; `typical` the median
    own time of an iteration of its set, ABSENT where there is none, and `overall` that of all ranks. A rank without
    enough iterations has `count` below FEWEST.
    """

    lag: Times
    noise: Times
    count: Times
    typical: Times
    overall: int | None


FEWEST = 3
STANDARD_ERROR = 1.2533 * 1.4826  # of a median, in median absolute deviations, of normal scatter


def iterations_of(ranks: Sequence[RankResult]) -> tuple[Times, Times]:
    """Return the numbers of the iterations of all ranks, and which of them no rank sets aside."""
    stepped = [rank.steps for rank in ranks if rank.steps is not None]
    if not stepped:
        return EMPTY, EMPTY
    numbers = np.unique(np.concatenate([steps.number for steps in stepped]))[:MOST]
    aside = np.concatenate([steps.number[: steps.skipped] for steps in stepped])
    return numbers, numbers[~np.isin(numbers, aside)]


def heat_of(ranks: Sequence[RankResult], waits: Waits, numbers: Times, steady: Times) -> tuple[Heat, ByStep] | None:
    """Return the matrices, and the waits behind them; None where no rank has iterations."""
    if len(numbers) == 0:
        return None
    figures = {name: np.full((len(ranks), len(numbers)), ABSENT, np.int64) for name in ("wall", "own", "compute")}
    for row, rank in enumerate(ranks):
        if rank.steps is None:
            continue
        place = np.searchsorted(numbers, rank.steps.number)
        known = place < len(numbers)
        place = place[known]
        figures["wall"][row, place] = rank.steps.figure("wall")[known]
        figures["own"][row, place] = (rank.steps.figure("wall") - rank.steps.figure("exposed_communication"))[known]
        figures["compute"][row, place] = rank.steps.figure("compute")[known]
    found = by_step(waits, numbers, len(ranks))
    wait = np.where(figures["wall"] == ABSENT, ABSENT, found.wait)
    return Heat(steps=numbers, steady=np.isin(numbers, steady).astype(np.int64), wait=wait, **figures), found


def lags_of(heat: Heat, sets: Times) -> Lags:
    """Compare each rank's own time with the median own time of the others of its set, iteration by iteration."""
    own = heat.own[:, heat.steady == 1]
    apart = np.zeros(own.shape, np.float64)
    for column in range(own.shape[1]):
        apart[:, column] = less_others_of(own[:, column], sets)
    lag, noise, count, typical = (np.zeros(len(own), np.int64) for _ in range(4))
    for row in range(len(own)):
        mine = apart[row][~np.isnan(apart[row])]
        count[row] = len(mine)
        if len(mine):
            middle = np.median(mine)
            spread = float(np.median(np.abs(mine - middle)))
            lag[row] = round(float(middle))
            noise[row] = round(3 * STANDARD_ERROR * spread / len(mine) ** 0.5)
    for one in np.unique(sets):
        middle = _middle(own[sets == one])
        typical[sets == one] = ABSENT if middle is None else middle
    return Lags(lag, noise, count, typical, _middle(own))


def _middle(own: Times) -> int | None:
    known = own[own != ABSENT]
    return int(np.median(known)) if len(known) else None


def less_others_of(values: Times, sets: Times) -> NDArray[np.float64]:
    """Return each value less the median of the others of its set, as less_others does."""
    found = np.full(len(values), np.nan)
    for one in np.unique(sets):
        found[sets == one] = less_others(values[sets == one])
    return found


def less_others(values: Times) -> NDArray[np.float64]:
    """Return each value less the median of the others; NaN where it is absent or alone."""
    found = np.full(len(values), np.nan)
    rows = np.flatnonzero(values != ABSENT)
    count = len(rows)
    if count < 2:
        return found
    order = np.argsort(values[rows], kind="stable")
    ordered = values[rows][order].astype(np.float64)
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    # Without the value at `place`, what stood behind it moves one forward.
    low, high = (count - 2) // 2, (count - 1) // 2
    middle = (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2
    found[rows] = values[rows] - middle
    return found
