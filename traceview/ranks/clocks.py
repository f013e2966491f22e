"""Estimates one clock for all reports; every nsys session counts from its own zero.

A collective ends at nearly the same moment on all its ranks. The median difference of the ends is therefore the offset
of two clocks. If the difference changes steadily, the clocks drift. The error of the offset can exceed the scatter of
the ends, so the stated uncertainty is what causality allows: no rank ends a collective before all have begun it.
The times of day when the sessions began are reported too; they are used for reports without shared collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.fleet import SECOND, Clock, PackedColumn
from traceview.ranks.match import MAX_IMPOSSIBLE_SHARE, MIN_COLLECTIVES_FOR_CLOCKS, MatchedCollectives
from traceview.ranks.partials import ByKey, FleetReports, NumberedReports, ranks_of

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
    fitted: ByKey[Clock] = ByKey()
    # The first of the settled ranks, usually all of them, are compared in the pass that fits the clocks.
    for some in _portions(list(settled), len(group.step)):
        times = reports.measure(partial(_times_of, {rank: settled_places[rank] for rank in some}, settled), some)
        start, end = (np.stack([times[rank][column] for rank in some]) for column in range(2))
        known_times = _KnownTimes(start, end, np.array([settled[rank].uncertainty or 0 for rank in some]))
        rows_by_kind = _rows_by_kind(np.array(group.kind))
        fit = partial(_fit_clocks, places, reference, rows_by_kind, known_times, fitted)
        fitted = reports.measure(fit, places)
    for first_rank, clock in fitted.items():
        report = reports.report_of[first_rank]
        error = max(clock.uncertainty or 0, clock.scatter)
        clocks[report] = replace(clock, file=files[report], session=sessions[report], uncertainty=error)


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


@dataclass(frozen=True, slots=True)
class _KnownTimes:
    """Times of ranks with known clocks on the common clock, a row for each, and the error of each clock."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    error: Times


def _fit_clocks(
    places: Mapping[int, PackedColumn],
    reference: NDArray[np.float64],
    rows_by_kind: Sequence[NDArray[np.intp]],
    known: _KnownTimes,
    fitted: Mapping[int, Clock],
    reports: NumberedReports,
) -> ByKey[Clock]:
    """Return the clock of each report, by its first rank, with its smallest error relative to `known` as uncertainty.

    A clock that `fitted` lacks is fitted to the reference: the kind with the least scatter decides. File and session
    are not set.
    """
    clocks: ByKey[Clock] = ByKey()
    for first, report in reports:
        own = [rank.collectives.times(places[index]) for index, rank in ranks_of([(first, report)]) if index in places]
        if (clock := fitted.get(first)) is None:
            ends = own[0][1].astype(np.float64) if len(own) == 1 else np.median([end for _, end in own], axis=0)
            fits = (_fitted_clock(ends[rows], ends[rows] - reference[rows]) for rows in rows_by_kind)
            clock = min(fits, key=lambda fit: (fit.scatter, -fit.count))
        # The latest start and the earliest end of the report's own ranks, which share its clock.
        start = reduce(np.maximum, (clock.to_common(start) for start, _ in own))
        end = reduce(np.minimum, (clock.to_common(end) for _, end in own))
        errors = [int((_largest_error(start, end, known.start, known.end) + known.error).min())]
        if clock.uncertainty is not None:
            errors.append(clock.uncertainty)
        clocks[first] = replace(clock, uncertainty=min(errors))
    return clocks


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
