"""Which ranks run together: those that share collectives, directly or through others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceview.fleet.match import Matched
from traceview.intervals import Times


def sets_of(groups: Sequence[Matched], count: int) -> Times:
    """Return the number of each rank's set, from 0; of one set there may be one rank.

    With fewer than two sets of ranks that share collectives all are one set: a rank whose collectives could not be
    matched is of the same run. With more nobody knows of which, so those that share none are a set of their own.
    """
    found = np.arange(count, dtype=np.int64)
    for group in groups:
        joined = np.isin(found, found[group.ranks])
        found[joined] = found[group.ranks].min()
    firsts, sizes = np.unique(found, return_counts=True)
    if np.count_nonzero(sizes > 1) < 2:
        return np.zeros(count, np.int64)
    alone = np.isin(found, firsts[sizes == 1])
    found[alone] = count
    numbers: Times = np.unique(found, return_inverse=True)[1].astype(np.int64)
    return numbers


def note_of(sets: Times) -> list[str]:
    """Say where ranks are of several sets, as those of different runs are."""
    count = len(np.unique(sets))
    if count < 2:
        return []
    return [
        f"the ranks are {count:,} sets that share no collective, as those of different runs: each rank is compared "
        "with its own set alone"
    ]
