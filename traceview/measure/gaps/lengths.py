"""How long the idle gaps of a device are, and what caused those of each length (docs/metrics.md "Charts")."""

from __future__ import annotations

import numpy as np

from traceview.model.analysis import CAUSES, DeviceUse
from traceview.model.charts import GapLengths
from traceview.model.trace import Window

# 1, 2, 5, 10, 20, 50, ... ns: what a person reads on an axis.
EDGES = np.array([step * 10**power for power in range(18) for step in (1, 2, 5)], np.int64)


def gap_lengths(device: DeviceUse) -> tuple[GapLengths, ...]:
    """Return a device's gaps by length, the shortest first, without lengths that no gap has."""
    frame = device.gaps.frame
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    place = np.searchsorted(EDGES, end - start, side="right") - 1
    longest = _longest(place, end - start)
    counts = np.bincount(place, minlength=len(EDGES))
    sums = {cause: _sums(place, frame[cause].to_numpy()) for cause in CAUSES if device.gaps.causes[cause]}
    return tuple(
        GapLengths(
            from_ns=int(EDGES[at]),
            to_ns=int(EDGES[at + 1]),
            count=int(counts[at]),
            causes={cause: int(column[at]) for cause, column in sums.items() if column[at]},
            longest=Window(int(start[longest[at]]), int(end[longest[at]])),
        )
        for at in np.flatnonzero(counts)
    )


def _longest(place: np.typing.NDArray[np.int64], length: np.typing.NDArray[np.int64]) -> np.typing.NDArray[np.int64]:
    """Return for each edge the row of its longest gap, of equals the first."""
    top = np.zeros(len(EDGES), np.int64)
    np.maximum.at(top, place, length)
    rows = np.flatnonzero(length == top[place])[::-1]
    found = np.full(len(EDGES), -1, np.int64)
    found[place[rows]] = rows  # of several the last write stays: the first row
    return found


def _sums(place: np.typing.NDArray[np.int64], ns: np.typing.NDArray[np.int64]) -> np.typing.NDArray[np.int64]:
    # Weights are float64, exact as long as a sum of whole ns stays under 2^53: 104 days of idle time.
    summed: np.typing.NDArray[np.int64] = np.bincount(place, weights=ns, minlength=len(EDGES)).astype(np.int64)
    return summed
