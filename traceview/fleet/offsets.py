"""One clock for all reports: every session of nsys counts from a zero of its own.

A collective ends at nearly the same moment on all its ranks, so the median difference of ends is the offset of two
clocks, and the median absolute deviation from it the uncertainty. Where the difference moves steadily, so do
the clocks. The times of day at which the sessions began are stated beside it, and stand in where nothing is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.groups import FEWEST
from traceview.fleet.match import Matched
from traceview.intervals import Times
from traceview.model.fleet import Clock

SECOND = 10**9
FOR_DRIFT = 12  # collectives from which a drift can be told from scatter
CLEAR = 4  # times the scatter: what a clock must move to have drifted


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clock of every report, and the moment from which its drift counts."""

    clocks: tuple[Clock, ...]
    origin: Times

    def common(self, times: NDArray[np.int64], reports: Times) -> NDArray[np.int64]:
        """Return times, one row a rank, on the common clock; `reports` says whose clock each row is on."""
        offset = np.array([clock.offset for clock in self.clocks], np.int64)[reports, None]
        drift = np.array([clock.drift for clock in self.clocks], np.int64)[reports, None]
        moved: NDArray[np.int64] = times - offset - (times - self.origin[reports, None]) * drift // SECOND
        return moved


def estimate(groups: Sequence[Matched], reports: Times, files: Sequence[str], epochs: Sequence[int | None]) -> Clocks:
    """Estimate every report's clock; `reports` says which report each rank is of."""
    clocks: list[Clock | None] = [None] * len(files)
    origin = np.zeros(len(files), np.int64)
    first_epoch = next(((index, epoch) for index, epoch in enumerate(epochs) if epoch is not None), None)
    sessions = [_session(epoch, first_epoch) for epoch in epochs]
    waiting = sorted(groups, key=lambda group: -group.end.size)
    for seed in range(len(files)):
        if clocks[seed] is not None:
            continue
        clocks[seed] = _alone(files[seed], sessions[seed], first=not any(clocks))
        spread = True
        while spread:
            spread = False
            for group in waiting:
                of = reports[group.ranks]
                known = np.array([clocks[report] is not None for report in of])
                if known.all() or not known.any():
                    continue
                _solve(group, of, known, clocks, origin, files, sessions)
                spread = True
    return Clocks(tuple(clock for clock in clocks if clock is not None), origin)


def _session(epoch: int | None, first: tuple[int, int] | None) -> int | None:
    return None if epoch is None or first is None else first[1] - epoch


def _alone(file: str, session: int | None, *, first: bool) -> Clock:
    """Return the clock of a report that shares no collective with those before it."""
    if first:
        return Clock(file, "reference", session or 0, 0, 0, 0, session)
    if session is None:
        return Clock(file, "unknown", 0, 0, None, 0, None)
    return Clock(file, "session start", session, 0, None, 0, session)


def _solve(
    group: Matched,
    of: Times,
    known: NDArray[np.bool_],
    clocks: list[Clock | None],
    origin: Times,
    files: Sequence[str],
    sessions: Sequence[int | None],
) -> None:
    """Set the clocks of a group's reports that have none by those that have one."""
    so_far = Clocks(tuple(clock or Clock("", "unknown", 0, 0, None, 0, None) for clock in clocks), origin)
    reference = np.median(so_far.common(group.end[known], of[known]), axis=0)
    kinds = np.array(group.kind)
    for report in np.unique(of[~known]):
        at = np.median(group.end[of == report], axis=0)
        fits = [_fit(at[rows], at[rows] - reference[rows]) for rows in _subsets(kinds)]
        best = min(fits, key=lambda fit: (fit.uncertainty, -fit.members))
        origin[report] = best.origin
        clocks[report] = Clock(
            files[report], "collectives", best.offset, best.drift, best.uncertainty, best.members, sessions[report]
        )


def _subsets(kinds: NDArray[np.str_]) -> list[NDArray[np.intp]]:
    """Return which collectives of each kind there are, where enough, else all: small ones end most nearly at once."""
    found = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
    return [rows for rows in found if len(rows) >= 2 * FEWEST] or [np.arange(len(kinds))]


class _Fit(NamedTuple):
    """An offset at `origin`, how it moves in ns a second, and the median absolute deviation from both."""

    offset: int
    drift: int
    origin: int
    uncertainty: int
    members: int


def _fit(at: NDArray[np.float64], apart: NDArray[np.float64]) -> _Fit:
    """Fit the differences `apart` at the moments `at`: by a median, and a drift where it is clearly more than scatter.

    The drift is that from the first third of the collectives to the last.
    """
    origin = round(float(np.median(at)))
    plain = _around(apart)
    if len(at) >= FOR_DRIFT:
        third = len(at) // 3
        order = np.argsort(at, kind="stable")
        early, late = order[:third], order[-third:]
        seconds = float(np.median(at[late]) - np.median(at[early])) / SECOND
        moved = float(np.median(apart[late]) - np.median(apart[early]))
        drift = round(moved / seconds) if seconds > 0 else 0
        offset, scatter = _around(apart - (at - origin) * drift / SECOND)
        if abs(moved) > CLEAR * max(scatter, 1):
            return _Fit(offset, drift, origin, scatter, len(at))
    return _Fit(plain[0], 0, origin, plain[1], len(at))


def _around(values: NDArray[np.float64]) -> tuple[int, int]:
    """Return the median and the median absolute deviation, in whole ns."""
    middle = np.median(values)
    return round(float(middle)), round(float(np.median(np.abs(values - middle))))
