"""Which iteration of one rank is which of another: by the numbers in their names, or by counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceview.fleet.collectives import BEFORE_ALL
from traceview.intervals import Times
from traceview.model.fleet import RankResult


@dataclass(frozen=True, slots=True)
class Aligned:
    """The ranks, their iterations numbered alike.

    `common` are the numbers that all of them have. `anchored`: collectives can be counted from the beginning of an
    iteration; else only from the beginning of the capture.
    """

    ranks: tuple[RankResult, ...]
    common: Times
    anchored: bool
    notes: tuple[str, ...]


def align(ranks: Sequence[RankResult], reports: Sequence[int]) -> Aligned:
    """Number the iterations of all ranks alike; `reports` says which report each rank is of.

    Numbers in the names count where every rank has them and some are common to all. In one report, whose ranks were
    captured over the same time, the n-th of each will do; across reports the n-th only where names hold no numbers.
    """
    stepped = [rank for rank in ranks if rank.steps is not None]
    if not stepped:
        return Aligned(tuple(ranks), np.empty(0, np.int64), False, ())
    named = all(rank.steps is not None and rank.steps.named for rank in stepped)
    common = _common(stepped)
    if named and (len(common) or len(set(reports)) > 1):
        notes = () if len(common) else (f"no iteration is in all captures: {_spans(stepped)}; capture the same steps",)
        return Aligned(tuple(ranks), common, True, notes)
    counted = tuple(_counted(rank) for rank in ranks)
    why = (
        "the numbers in the names of iterations differ between ranks"
        if named
        else "the names of iterations hold no numbers"
    )
    note = f"{why}: the n-th iteration of each rank is taken as the same one"
    found = _common([rank for rank in counted if rank.steps is not None])
    return Aligned(counted, found, not named, (note,) if len(stepped) > 1 else ())


def _common(ranks: Sequence[RankResult]) -> Times:
    numbers, counts = np.unique(np.concatenate([rank.steps.number for rank in ranks if rank.steps]), return_counts=True)
    found: Times = numbers[counts == len(ranks)]
    return found


def _spans(ranks: Sequence[RankResult]) -> str:
    spans = sorted({(int(rank.steps.number[0]), int(rank.steps.number[-1])) for rank in ranks if rank.steps})
    return ", ".join(f"{first} to {last}" for first, last in spans[:3]) + (", ..." if len(spans) > 3 else "")


def _counted(rank: RankResult) -> RankResult:
    """Return a rank whose iterations are numbered 0, 1, 2 ..."""
    steps = rank.steps
    if steps is None:
        return rank
    asked = rank.collectives.step
    # The first iteration has collectives, although its own beginning on the GPU is not known.
    first = int(steps.cut == "gpu")
    place = np.searchsorted(steps.number, asked) + first
    place[(asked < steps.number[0])] = 0
    return replace(
        rank,
        steps=replace(steps, number=np.arange(first, first + len(steps.number), dtype=np.int64), named=False),
        collectives=replace(rank.collectives, step=np.where(asked == BEFORE_ALL, BEFORE_ALL, place)),
    )
