"""Estimates one clock for all reports; every nsys session counts from its own zero.

A collective ends at nearly the same moment on all its ranks. The median difference of the ends is therefore the offset
of two clocks. If the difference changes steadily, the clocks drift. The error of the offset can exceed the scatter of
the ends, so the stated uncertainty is what causality allows: no rank ends a collective before all have begun it.
The times of day when the sessions began are reported too; they are used for reports without shared collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.groups import MAX_IMPOSSIBLE_SHARE, MIN_COLLECTIVES_FOR_CLOCKS
from traceview.fleet.match import MatchedCollectives
from traceview.intervals import Times
from traceview.model.collectives import SECOND, Clock, Member

MAX_TIMES = 1 << 18  # collectives of several ranks that are unpacked at once
MIN_COLLECTIVES_FOR_DRIFT = 12
DRIFT_TO_SCATTER = 4  # a drift counts if the clock moves by more than this times the scatter


def estimate_clocks(
    groups: Sequence[MatchedCollectives], reports: Times, files: Sequence[str], epochs: Sequence[int | None]
) -> tuple[Clock, ...]:
    """Estimate every report's clock; `reports` has the index of each rank's report."""
    clocks: list[Clock | None] = [None] * len(files)
    first_epoch = next((epoch for epoch in epochs if epoch is not None), None)
    sessions = [None if epoch is None or first_epoch is None else first_epoch - epoch for epoch in epochs]
    largest_first = sorted(groups, key=lambda group: -group.size)
    for seed in range(len(files)):
        if clocks[seed] is not None:
            continue
        clocks[seed] = _seed_clock(files[seed], sessions[seed], first=not any(clocks))
        changed = True
        while changed:
            changed = False
            for group in largest_first:
                group_reports = reports[group.ranks]
                known = np.array([clocks[report] is not None for report in group_reports])
                if known.all() or not known.any():
                    continue
                _set_unknown_clocks(group, group_reports, clocks, files, sessions)
                changed = True
    return tuple(clock for clock in clocks if clock is not None)


def _seed_clock(file: str, session: int | None, *, first: bool) -> Clock:
    """Return the clock of a report that shares no collective with earlier ones."""
    if first:
        return Clock(file, "reference", session or 0, 0, 0, 0, session)
    if session is None:
        return Clock(file, "unknown", 0, 0, None, 0, None)
    return Clock(file, "session start", session, 0, None, 0, session)


def _set_unknown_clocks(
    group: MatchedCollectives,
    group_reports: Times,
    clocks: list[Clock | None],
    files: Sequence[str],
    sessions: Sequence[int | None],
) -> None:
    """Set the unknown clocks of a group's reports from the known ones."""
    members: dict[int, list[Member]] = {}
    for report, member in zip(group_reports.tolist(), group.members, strict=True):
        members.setdefault(report, []).append(replace(member, clock=clocks[report]))
    known = {report: clock for report in members if (clock := clocks[report])}
    settled = [member for report in known for member in members[report]]
    reference = _median_ends(settled)
    rows_by_kind = _rows_by_kind(np.array(group.kind))
    fitted: dict[int, Clock] = {}
    for report in sorted(members.keys() - known):
        at = _median_ends(members[report])
        fits = [_fit_offset(at[places], at[places] - reference[places]) for places in rows_by_kind]
        best = min(fits, key=lambda fit: (fit.scatter, -fit.collectives))
        fitted[report] = Clock(
            files[report],
            "collectives",
            best.offset,
            best.drift,
            0,
            best.collectives,
            sessions[report],
            best.scatter,
            best.origin,
        )
    errors: dict[int, int] = {}
    for some in _portions(settled):
        known_error = np.array([member.clock.uncertainty or 0 for member in some if member.clock])
        start, end = (np.stack(times) for times in zip(*(member.times() for member in some), strict=True))
        for report, clock in fitted.items():
            own = [replace(member, clock=clock).times() for member in members[report]]
            # The earliest end and the latest start of the report's own ranks, which share its clock.
            latest, earliest = reduce(np.maximum, (row[0] for row in own)), reduce(np.minimum, (row[1] for row in own))
            error = int((_largest_error(latest, earliest, start, end) + known_error).min())
            errors[report] = min(error, errors.get(report, error))
    for report, clock in fitted.items():
        clocks[report] = replace(clock, uncertainty=max(errors[report], clock.scatter))


def _median_ends(members: Sequence[Member]) -> NDArray[np.float64]:
    """Return the median end of each collective over these ranks."""
    count = len(members[0].places)
    portion = max(MAX_TIMES // len(members), 1)
    medians = [
        np.median(np.stack([member.times()[1][first : first + portion] for member in members]), axis=0)
        for first in range(0, count, portion)
    ]
    return np.concatenate(medians)


def _portions(members: Sequence[Member]) -> Iterator[Sequence[Member]]:
    """Yield all members, as many at a time as have MAX_TIMES collectives."""
    portion = max(MAX_TIMES // max(len(members[0].places), 1), 1)
    for first in range(0, len(members), portion):
        yield members[first : first + portion]


def _largest_error(own_start: Times, own_end: Times, start: Times, end: Times) -> Times:
    """Return the largest error, in ns, of a clock relative to each known rank (a row of `start` and `end`).

    If the clock is late by x, then own_start - x <= end and start <= own_end - x in each collective. A match may be
    wrong in one collective of MAX_IMPOSSIBLE_SHARE, so as many bounds are set aside.
    """
    aside = own_start.shape[-1] // MAX_IMPOSSIBLE_SHARE
    late = np.partition(own_end - start, aside, axis=1)[:, aside]
    early = np.partition(end - own_start, aside, axis=1)[:, aside]
    return np.maximum(late, early)


def _rows_by_kind(kinds: NDArray[np.str_]) -> list[NDArray[np.intp]]:
    """Return the rows of each kind with enough collectives, or else all rows.

    Kinds are fitted separately, because small collectives end most nearly at once.
    """
    rows_by_kind = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
    return [rows for rows in rows_by_kind if len(rows) >= 2 * MIN_COLLECTIVES_FOR_CLOCKS] or [np.arange(len(kinds))]


class _ClockFit(NamedTuple):
    """An offset at `origin`, its drift in ns per second, and the median absolute deviation from both."""

    offset: int
    drift: int
    origin: int
    scatter: int
    collectives: int


def _fit_offset(at: NDArray[np.float64], difference: NDArray[np.float64]) -> _ClockFit:
    """Fit the differences at the times `at` by their median, and by a drift if it clearly exceeds the scatter.

    The drift is the change from the first third of the collectives to the last.
    """
    origin = round(float(np.median(at)))
    if len(at) >= MIN_COLLECTIVES_FOR_DRIFT:
        third = len(at) // 3
        order = np.argsort(at, kind="stable")
        early, late = order[:third], order[-third:]
        seconds = float(np.median(at[late]) - np.median(at[early])) / SECOND
        moved = float(np.median(difference[late]) - np.median(difference[early]))
        drift = round(moved / seconds) if seconds > 0 else 0
        offset, scatter = _median_and_deviation(difference - (at - origin) * drift / SECOND)
        if abs(moved) > DRIFT_TO_SCATTER * max(scatter, 1):
            return _ClockFit(offset, drift, origin, scatter, len(at))
    offset, scatter = _median_and_deviation(difference)
    return _ClockFit(offset, 0, origin, scatter, len(at))


def _median_and_deviation(values: NDArray[np.float64]) -> tuple[int, int]:
    """Return the median and the median absolute deviation, rounded to ns."""
    median = np.median(values)
    return round(float(median)), round(float(np.median(np.abs(values - median))))
