"""Which ranks ran a collective together, and whether what was matched can be one at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.match import Matched
from traceview.intervals import Times

# One rank sends, or one receives: it does not wait for the others, nor do they end together.
ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")
FEWEST = 4  # collectives from which the clocks of two reports can be compared
# Ends of one collective differ this much on two H200 that share a clock (docs/fleet.md "Clocks"), and more to spare.
TOGETHER_NS = 50_000
SHARE = 20  # or a twentieth of the transfer, if that is longer


def together(found: Matched, reports: Sequence[int], labels: Sequence[str], notes: list[str]) -> Iterator[Matched]:
    """Yield the parts of a match whose ranks end together, without rooted collectives.

    By communicator they are known to belong together. By order, ranks whose ends differ by the same time all along
    do (a tensor-parallel group of many); within one report, whose clock they share, by next to none.
    """
    wanted = np.flatnonzero([kind not in ROOTED for kind in found.kind])
    if len(wanted) < len(found.kind):
        notes.append(
            f"{found.name}: {len(found.kind) - len(wanted)} rooted collectives tell nothing of waits, left out"
        )
    if len(wanted) == 0:
        return
    found = columns(found, wanted)
    if found.how == "communicator":
        yield found
        return
    if len(found.step) < FEWEST and len({reports[rank] for rank in found.ranks}) > 1:
        notes.append(f"{found.name}: only {len(found.step)} in common, too few to compare clocks, left out")
        return
    for rows in _partition(found, np.array([reports[rank] for rank in found.ranks], np.int64)):
        if len(rows) > 1:
            yield found.only(rows)
        else:
            notes.append(f"{found.name}: {labels[int(found.ranks[rows[0]])]} ends with no other rank, left out")


def columns(found: Matched, places: Times) -> Matched:
    """Return some collectives of a match; `places` ascend and index `step`."""
    if len(places) == len(found.step):
        return found  # all of them: large arrays are not copied
    return Matched(
        found.name,
        found.how,
        found.ranks,
        found.start[:, places],
        found.end[:, places],
        found.hidden[:, places],
        found.step[places],
        tuple(found.kind[place] for place in places),
    )


def _partition(found: Matched, reports: Times) -> list[Times]:
    """Return rows that end together, each time with the first row that is left."""
    transfer = int(np.median((found.end - found.start).min(axis=0)))
    tolerance = max(TOGETHER_NS, transfer // SHARE)
    left = np.arange(len(found.ranks))
    parts = []
    while len(left):
        apart = found.end[left] - found.end[left[0]]
        middle = np.median(apart, axis=1)
        spread = np.median(np.abs(apart - middle[:, None]), axis=1)
        same_clock = reports[left] == reports[left[0]]
        joined: NDArray[np.bool_] = (spread <= tolerance) & (~same_clock | (np.abs(middle) <= tolerance))
        parts.append(left[joined])
        left = left[~joined]
    return parts


def impossible(found: Matched, slack: int) -> int:
    """Return how many collectives end on a rank before the last one has begun: those cannot be one.

    Times are on one clock; `slack` ns are forgiven.
    """
    return int(np.count_nonzero(found.start.max(axis=0) > found.end.min(axis=0) + slack))
