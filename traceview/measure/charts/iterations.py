"""Iterations as a bounded number of bars (docs/definitions.md "Charts")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

import numpy as np

from traceview.model.analysis import Iteration
from traceview.model.charts import IterationBar

MAX_BARS = 240
PARTS = ("compute", "exposed_communication", "exposed_h2d", "exposed_d2h")


def iteration_bars(iterations: Sequence[Iteration], limit: int = MAX_BARS) -> tuple[IterationBar, ...]:
    """Merge consecutive iterations into about `limit` bars of equal size. Warm-up has bars of its own."""
    if not iterations:
        return ()
    width = max(1, -(-len(iterations) // limit))
    firsts = [first for start, stop in _equally_skipped(iterations) for first in range(start, stop, width)]
    wall = [iteration.wall_ns for iteration in iterations]
    sums = {part: np.add.reduceat(np.array(ns, np.int64), firsts).tolist() for part, ns in _parts(iterations).items()}
    stops = [*firsts[1:], len(iterations)]
    return tuple(
        _build_bar(iterations, bar, first, stop, wall, sums)
        for bar, (first, stop) in enumerate(zip(firsts, stops, strict=True))
    )


def _equally_skipped(iterations: Sequence[Iteration]) -> Iterator[tuple[int, int]]:
    """Yield the maximal slices [start, stop) whose iterations are all skipped, or all counted."""
    start = 0
    for stop in range(1, len(iterations) + 1):
        if stop == len(iterations) or iterations[stop].skipped != iterations[start].skipped:
            yield start, stop
            start = stop


def _parts(iterations: Sequence[Iteration]) -> dict[str, list[int]]:
    """Return the ns of each part in each iteration."""
    parts = {part: list(map(attrgetter(f"{part}_ns"), iterations)) for part in PARTS}
    causes = iterations[0].idle
    return parts | {f"idle_{cause}": [iteration.idle[cause] for iteration in iterations] for cause in causes}


def _build_bar(
    iterations: Sequence[Iteration],
    bar: int,
    first: int,
    stop: int,
    wall: Sequence[int],
    sums: Mapping[str, Sequence[int]],
) -> IterationBar:
    return IterationBar(
        first=first,
        count=stop - first,
        skipped=iterations[first].skipped,
        wall_ns=sum(wall[first:stop]),
        parts={part: ns[bar] for part, ns in sums.items() if ns[bar]},
        slowest=max(range(first, stop), key=wall.__getitem__),
    )
