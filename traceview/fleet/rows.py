"""One row for each rank: what a steady iteration of it was made of, or its whole window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceview.fleet.collectives import EMPTY
from traceview.fleet.heat import ABSENT, FEWEST, Lags
from traceview.fleet.skew import ByStep, Waits
from traceview.intervals import Times
from traceview.model.fleet import Heat, Rank, RankResult


@dataclass(frozen=True, slots=True)
class Parts:
    """What a rank's time went to, in ns; `copies` is the rest of wall: copies and memsets alone."""

    wall: int
    compute: int
    exposed_communication: int
    idle: int
    causes: tuple[int, ...]
    kernels: int

    @property
    def copies(self) -> int:
        """What is left of wall."""
        return self.wall - self.compute - self.exposed_communication - self.idle


def parts_of(rank: RankResult, steady: Times) -> Parts:
    """Return the means over the steady iterations of a rank, or its window where it has none.

    Means add up to the wall, as medians of parts would not. `steady` are the numbers of iterations that count.
    """
    steps = rank.steps
    rows = np.isin(EMPTY if steps is None else steps.number, steady)
    if steps is None or not rows.any():
        return Parts(
            wall=rank.end - rank.start,
            compute=rank.compute,
            exposed_communication=rank.exposed_communication,
            idle=sum(rank.idle),
            causes=rank.idle,
            kernels=rank.kernels,
        )

    def mean(values: Times) -> int:
        return int(values[rows].sum()) // int(np.count_nonzero(rows))

    causes = tuple(mean(values) for values in steps.idle)
    return Parts(
        # Rounded so that the parts never exceed the wall.
        wall=mean(steps.figure("wall")),
        compute=mean(steps.figure("compute")),
        exposed_communication=mean(steps.figure("exposed_communication")),
        idle=sum(causes),
        causes=causes,
        kernels=mean(steps.figure("kernels")),
    )


@dataclass(frozen=True, slots=True)
class Named:
    """What the ranks are called, their reports' names, and which report and which set each rank is of."""

    labels: tuple[str, ...]
    files: tuple[str, ...]
    reports: tuple[int, ...]
    sets: tuple[int, ...]


def rows_of(
    ranks: Sequence[RankResult], named: Named, waits: Waits, heat: Heat | None, each: ByStep | None, lags: Lags | None
) -> tuple[Rank, ...]:
    """Return the fleet's rows."""
    steady = np.empty(0, np.int64) if heat is None else heat.steps[heat.steady == 1]
    return tuple(
        _row(rank, index, named, waits, lags, steady, _means(heat, each, index)) for index, rank in enumerate(ranks)
    )


def _row(
    rank: RankResult, index: int, named: Named, waits: Waits, lags: Lags | None, steady: Times, means: tuple[int, ...]
) -> Rank:
    parts = parts_of(rank, steady)
    judged = lags is not None and bool(lags.count[index] >= FEWEST)
    return Rank(
        label=named.labels[index],
        file=named.files[named.reports[index]],
        report=named.reports[index],
        device=rank.device,
        gpu=rank.gpu,
        iterations=0 if rank.steps is None else int(np.isin(rank.steps.number, steady).sum()),
        wall=parts.wall,
        compute=parts.compute,
        exposed_communication=parts.exposed_communication,
        copies=parts.copies,
        idle=parts.idle,
        causes=parts.causes,
        kernels=parts.kernels,
        own=parts.wall - parts.exposed_communication,
        lag=int(lags.lag[index]) if lags is not None and judged else None,
        noise=int(lags.noise[index]) if lags is not None and judged else None,
        wait=means[0] if means else int(waits.waited[index]),
        bare_wait=means[1] if means else int(waits.exposed[index]),
        caused=means[2] if means else int(waits.caused[index]),
        bare_caused=means[3] if means else int(waits.caused_exposed[index]),
        last_count=int(waits.last[index]),
        matched=int(waits.matched[index]),
        set=named.sets[index],
        typical=int(lags.typical[index]) if lags is not None and lags.typical[index] != ABSENT else None,
    )


def _means(heat: Heat | None, each: ByStep | None, index: int) -> tuple[int, ...]:
    """Return wait, bare wait, caused and bare caused of a mean steady iteration; nothing where there is none."""
    if heat is None or each is None:
        return ()
    steady = (heat.steady == 1) & (heat.wall[index] >= 0)
    count = int(np.count_nonzero(steady))
    if not count:
        return ()
    return tuple(int(of[index][steady].sum()) // count for of in (each.wait, each.bare, each.caused, each.caused_bare))
