"""Estimates one clock for all reports; every nsys session counts from its own zero.

A collective ends at nearly the same moment on all its ranks. The median difference of the ends is therefore the offset
of two clocks. If the difference changes steadily, the clocks drift. The error of the offset can exceed the scatter of
the ends, so the stated uncertainty is what causality allows: no rank ends a collective before all have begun it.
The times of day when the sessions began are reported too; they are used for reports without shared collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.fleet import SECOND, Clock
from traceview.ranks.match import MAX_IMPOSSIBLE_SHARE, MIN_COLLECTIVES_FOR_CLOCKS, MatchedCollectives

MIN_COLLECTIVES_FOR_DRIFT = 12
DRIFT_TO_SCATTER = 4  # a drift counts if the clock moves by more than this times the scatter


def estimate_clocks(
    groups: Sequence[MatchedCollectives], report_of: Times, epochs: Sequence[int | None], files: Sequence[str]
) -> tuple[Clock, ...]:
    """Estimate every report's clock; `report_of` has the report of each rank, `epochs` that of each report."""
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
                reports = report_of[group.ranks]
                known = np.array([clocks[report] is not None for report in reports.tolist()])
                if known.all() or not known.any():
                    continue
                for report, clock in _fitted_clocks(group, reports, known, clocks):
                    clocks[report] = replace(clock, file=files[report], session=sessions[report])
                changed = True
    return tuple(clock for clock in clocks if clock is not None)


def _seed_clock(file: str, session: int | None, *, first: bool) -> Clock:
    """Return the clock of a report that shares no collective with earlier ones."""
    if first:
        return Clock(file, "reference", session or 0, 0, 0, 0, session)
    if session is None:
        return Clock(file, "unknown", 0, 0, None, 0, None)
    return Clock(file, "session start", session, 0, None, 0, session)


def _fitted_clocks(
    group: MatchedCollectives, reports: Times, known: NDArray[np.bool_], clocks: Sequence[Clock | None]
) -> Iterator[tuple[int, Clock]]:
    """Yield each report of the group whose clock is unknown, and its clock: the kind with the least scatter decides.

    `reports` and `known` have a value for each row of the group. File and session are not set.
    """
    settled_clocks = [clock for report in reports[known].tolist() if (clock := clocks[report])]
    settled = group.select(rows=known).on_common_clock(settled_clocks)
    errors = np.array([clock.uncertainty or 0 for clock in settled_clocks])
    reference = np.median(settled.end, axis=0)
    rows_by_kind = _rows_by_kind(group.kind)
    for report in np.unique(reports[~known]).tolist():
        own = group.select(rows=reports == report)
        ends = np.median(own.end, axis=0)
        fits = (_fitted_clock(ends[rows], ends[rows] - reference[rows]) for rows in rows_by_kind)
        clock = min(fits, key=lambda fit: (fit.scatter, -fit.count))
        # The latest start and the earliest end of the report's own ranks, which share its clock.
        start, end = clock.to_common(own.start).max(axis=0), clock.to_common(own.end).min(axis=0)
        error = int((_largest_error(start, end, settled.start, settled.end) + errors).min())
        yield report, replace(clock, uncertainty=max(error, clock.scatter))


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


def _fitted_clock(at: NDArray[np.float64], difference: NDArray[np.float64]) -> Clock:
    """Fit the differences at the times `at` by their median, and by a drift if it clearly exceeds the scatter.

    The drift is the change from the first third of the collectives to the last. File, uncertainty and session are not
    set.
    """
    origin, count = round(float(np.median(at))), len(at)
    if len(at) >= MIN_COLLECTIVES_FOR_DRIFT:
        third = len(at) // 3
        order = np.argsort(at, kind="stable")
        early, late = order[:third], order[-third:]
        seconds = float(np.median(at[late]) - np.median(at[early])) / SECOND
        moved = float(np.median(difference[late]) - np.median(difference[early]))
        drift = round(moved / seconds) if seconds > 0 else 0
        offset, scatter = _median_and_deviation(difference - (at - origin) * drift / SECOND)
        if abs(moved) > DRIFT_TO_SCATTER * max(scatter, 1):
            return Clock("", "collectives", offset, drift, None, count, None, scatter, origin)
    offset, scatter = _median_and_deviation(difference)
    return Clock("", "collectives", offset, 0, None, count, None, scatter, origin)


def _median_and_deviation(values: NDArray[np.float64]) -> tuple[int, int]:
    """Return the median and the median absolute deviation, rounded to ns."""
    median = np.median(values)
    return round(float(median)), round(float(np.median(np.abs(values - median))))
