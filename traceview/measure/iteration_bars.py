"""Iterations as bars, few enough to be told apart (docs/metrics.md "Charts")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceview.model import Iteration
from traceview.model_charts import IterationBar

MOST_BARS = 240
PARTS = ("compute", "exposed_communication", "exposed_h2d", "exposed_d2h")


def iteration_bars(each: Sequence[Iteration], most: int = MOST_BARS) -> tuple[IterationBar, ...]:
    """Put iterations that follow each other into about `most` bars of equally many; warm-up stays apart."""
    width = max(1, -(-len(each) // most))
    return tuple(
        _bar(each, first, min(first + width, last)) for run, last in _runs(each) for first in range(run, last, width)
    )


def _runs(each: Sequence[Iteration]) -> Iterator[tuple[int, int]]:
    """Yield stretches [first, last) of iterations that are all set aside, or all not."""
    first = 0
    for at in range(1, len(each) + 1):
        if at == len(each) or each[at].skipped != each[first].skipped:
            yield first, at
            first = at


def _bar(each: Sequence[Iteration], first: int, last: int) -> IterationBar:
    members = each[first:last]
    parts = {part: sum(getattr(one, f"{part}_ns") for one in members) for part in PARTS}
    for cause in members[0].idle:
        parts[f"idle_{cause}"] = sum(one.idle[cause] for one in members)
    return IterationBar(
        first=first,
        count=len(members),
        skipped=members[0].skipped,
        wall_ns=sum(one.wall_ns for one in members),
        parts={part: ns for part, ns in parts.items() if ns},
        slowest=max(range(first, last), key=lambda at: each[at].wall_ns),
    )
