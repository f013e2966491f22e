"""Iterations as bars, few enough to be told apart (docs/metrics.md "Charts")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

import numpy as np

from traceview.model.analysis import Iteration
from traceview.model.charts import IterationBar

MOST_BARS = 240
PARTS = ("compute", "exposed_communication", "exposed_h2d", "exposed_d2h")


def iteration_bars(each: Sequence[Iteration], most: int = MOST_BARS) -> tuple[IterationBar, ...]:
    """Put iterations that follow each other into about `most` bars of equally many; warm-up stays apart."""
    if not each:
        return ()
    width = max(1, -(-len(each) // most))
    firsts = [first for run, last in _runs(each) for first in range(run, last, width)]
    wall = [one.wall_ns for one in each]
    sums = {part: np.add.reduceat(np.array(ns, np.int64), firsts).tolist() for part, ns in _parts(each).items()}
    bars = zip(firsts, [*firsts[1:], len(each)], strict=True)
    return tuple(_bar(each, at, first, last, wall, sums) for at, (first, last) in enumerate(bars))


def _runs(each: Sequence[Iteration]) -> Iterator[tuple[int, int]]:
    """Yield stretches [first, last) of iterations that are all set aside, or all not."""
    first = 0
    for at in range(1, len(each) + 1):
        if at == len(each) or each[at].skipped != each[first].skipped:
            yield first, at
            first = at


def _parts(each: Sequence[Iteration]) -> dict[str, list[int]]:
    """Return what each iteration was made of."""
    parts = {part: list(map(attrgetter(f"{part}_ns"), each)) for part in PARTS}
    return parts | {f"idle_{cause}": [one.idle[cause] for one in each] for cause in each[0].idle}


def _bar(
    each: Sequence[Iteration], at: int, first: int, last: int, wall: Sequence[int], sums: Mapping[str, Sequence[int]]
) -> IterationBar:
    return IterationBar(
        first=first,
        count=last - first,
        skipped=each[first].skipped,
        wall_ns=sum(wall[first:last]),
        parts={part: ns[at] for part, ns in sums.items() if ns[at]},
        slowest=max(range(first, last), key=wall.__getitem__),
    )
