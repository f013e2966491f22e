"""Estimates one clock for all reports; every nsys session counts from its own zero.

A collective ends at nearly the same moment on all its ranks. The median difference of the ends is therefore the offset
of two clocks. If the difference changes steadily, the clocks drift. The error of the offset can exceed the scatter of
the ends, so the stated uncertainty is what causality allows: no rank ends a collective before all have begun it.
The times of day when the sessions began are reported too; they are used for reports without shared collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.groups import MAX_IMPOSSIBLE_SHARE, MIN_COLLECTIVES_FOR_CLOCKS, ends_of
from traceview.fleet.match import MatchedCollectives
from traceview.fleet.partials import ByKey, FleetReports, Minimum, NumberedReports, ranks_of
from traceview.intervals import Times
from traceview.model.collectives import SECOND, Clock, PackedColumn

MAX_TIMES = 1 << 18  # collectives of several ranks that are unpacked at once
MIN_COLLECTIVES_FOR_DRIFT = 12
DRIFT_TO_SCATTER = 4  # a drift counts if the clock moves by more than this times the scatter


def estimate_clocks(
    groups: Sequence[MatchedCollectives], reports: FleetReports, files: Sequence[str]
) -> tuple[Clock, ...]:
    """Estimate every report's clock."""
    clocks: list[Clock | None] = [None] * len(files)
    epochs = [report.epoch for report in reports.headers]
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
                known = np.array([clocks[report] is not None for report in reports.report_of[group.ranks]])
                if known.all() or not known.any():
                    continue
                _set_unknown_clocks(group, known, reports, clocks, files, sessions)
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
    known: NDArray[np.bool_],
    reports: FleetReports,
    clocks: list[Clock | None],
    files: Sequence[str],
    sessions: Sequence[int | None],
) -> None:
    """Set the unknown clocks of a group's reports from the known ones; `known` has a value for each of its rows."""
    settled = {
        rank: clock
        for rank, report in zip(group.ranks.tolist(), reports.report_of[group.ranks].tolist(), strict=True)
        if (clock := clocks[report])
    }
    settled_places, places = (group.places_of(np.flatnonzero(rows).tolist()) for rows in (known, ~known))
    reference = _median_settled_ends(settled_places, settled, reports)
    fits = reports.measure(partial(_fit_reports, places, reference, _rows_by_kind(np.array(group.kind))), places)
    fitted: dict[int, Clock] = {}
    for first_rank, fit in sorted(fits.items()):
        report = int(reports.report_of[first_rank])
        fitted[first_rank] = Clock(
            files[report],
            "collectives",
            fit.offset,
            fit.drift,
            0,
            fit.collectives,
            sessions[report],
            fit.scatter,
            fit.origin,
        )
    errors: ByKey[Minimum] = ByKey()
    for some in _portions(list(settled), len(group.step)):
        times = reports.measure(partial(_times_of, {rank: settled_places[rank] for rank in some}, settled), some)
        known_error = np.array([settled[rank].uncertainty or 0 for rank in some])
        start, end = (np.stack([times[rank][column] for rank in some]) for column in range(2))
        work = partial(_clock_errors, places, fitted, start, end, known_error)
        errors = errors.merged(reports.measure(work, places))
    for first_rank, clock in fitted.items():
        error = int(errors[first_rank].values[0])
        clocks[reports.report_of[first_rank]] = replace(clock, uncertainty=max(error, clock.scatter))


def _median_settled_ends(
    places: Mapping[int, PackedColumn], clocks: Mapping[int, Clock], reports: FleetReports
) -> NDArray[np.float64]:
    """Return the median end of each collective over the ranks in `places`, on the common clock.

    Each part of the ranks' ends has at most MAX_TIMES values.
    """
    count = len(next(iter(places.values())))
    portion = max(MAX_TIMES // len(places), 1)
    medians = []
    for first in range(0, count, portion):
        ends = reports.measure(partial(_times_of, places, clocks, part=slice(first, first + portion)), places)
        medians.append(np.median(np.stack([end for _, end in ends.values()]), axis=0))
    return np.concatenate(medians)


def _times_of(
    places: Mapping[int, PackedColumn],
    clocks: Mapping[int, Clock],
    reports: NumberedReports,
    part: slice = slice(None),
) -> ByKey[tuple[Times, Times]]:
    """Return a part of the starts and ends of each rank in `places`, on the common clock."""
    times: ByKey[tuple[Times, Times]] = ByKey()
    for index, rank in ranks_of(reports):
        if index in places:
            start, end = rank.collectives.times(places[index], clocks[index])
            times[index] = start[part].copy(), end[part].copy()
    return times


def _portions(ranks: Sequence[int], collectives: int) -> Iterator[Sequence[int]]:
    """Yield all ranks, as many at a time as have MAX_TIMES collectives."""
    portion = max(MAX_TIMES // max(collectives, 1), 1)
    for first in range(0, len(ranks), portion):
        yield ranks[first : first + portion]


def _fit_reports(
    places: Mapping[int, PackedColumn],
    reference: NDArray[np.float64],
    rows_by_kind: Sequence[NDArray[np.intp]],
    reports: NumberedReports,
) -> ByKey[_ClockFit]:
    """Fit the clock of each report, by its first rank, to the reference: the kind with the least scatter decides."""
    fitted: ByKey[_ClockFit] = ByKey()
    for first, report in reports:
        own = ends_of(places, [(first, report)])
        at = np.median(np.stack(list(own.values())), axis=0)
        fits = [_fit_offset(at[rows], at[rows] - reference[rows]) for rows in rows_by_kind]
        fitted[first] = min(fits, key=lambda fit: (fit.scatter, -fit.collectives))
    return fitted


def _clock_errors(
    places: Mapping[int, PackedColumn],
    fitted: Mapping[int, Clock],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    known_error: Times,
    reports: NumberedReports,
) -> ByKey[Minimum]:
    """Return the largest error of each report's clock, by its first rank, relative to ranks with these times."""
    errors: ByKey[Minimum] = ByKey()
    for first, report in reports:
        clocks = dict.fromkeys(range(first, first + len(report.ranks)), fitted[first])
        own = _times_of(places, clocks, [(first, report)]).values()
        # The earliest end and the latest start of the report's own ranks, which share its clock.
        latest, earliest = reduce(np.maximum, (row[0] for row in own)), reduce(np.minimum, (row[1] for row in own))
        error = (_largest_error(latest, earliest, start, end) + known_error).min()
        errors[first] = Minimum(np.array([error]))
    return errors


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
