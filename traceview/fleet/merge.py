"""From many small results to one Fleet: align, match, one clock, waits, rows, stragglers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from traceview.fleet.align import align
from traceview.fleet.groups import impossible, together
from traceview.fleet.heat import heat_of, iterations_of, lags_of
from traceview.fleet.match import Matched, match
from traceview.fleet.notes import notes_of
from traceview.fleet.offsets import Clocks, estimate
from traceview.fleet.rows import Named, rows_of
from traceview.fleet.sets import sets_of
from traceview.fleet.skew import measure_waits
from traceview.fleet.stragglers import advice_of, stragglers_of
from traceview.intervals import Times
from traceview.model.fleet import Fleet, ReportResult, Skipped

SLACK = 5  # times the uncertainty of two clocks: what a sound match may be off
LEAST_SLACK_NS = 5_000
REFUSED = 100  # one collective in so many may contradict itself
MARGIN = 0.05
SUFFIX = re.compile(r"(\.sqlite(\.\w{2,3})?|\.nsys-rep)$")


def merge(
    files: Sequence[str], results: Sequence[ReportResult], skipped: Sequence[Skipped] = (), *, margin: float = MARGIN
) -> Fleet:
    """Merge results, one for each of `files`, in that order."""
    ranks = [rank for result in results for rank in result.ranks]
    reports = [index for index, result in enumerate(results) for _ in result.ranks]
    labels = _labels(files, results)
    aligned = align(ranks, reports)
    matches = match(aligned.ranks, labels, anchored=aligned.anchored)
    notes = [*aligned.notes, *(matches.notes if len(ranks) > 1 else ())]
    groups = [part for found in matches.found for part in together(found, reports, labels, notes)]
    of = np.array(reports, np.int64)
    clocks = estimate(groups, of, files, [result.epoch for result in results])
    groups = [sound for group in groups if (sound := _sound(_on_one_clock(group, of, clocks), of, clocks, notes))]
    numbers, steady = iterations_of(aligned.ranks)
    waits = measure_waits(groups, len(ranks), steady)
    heat, each = heat_of(aligned.ranks, waits, numbers, steady) or (None, None)
    sets = sets_of(groups, len(ranks))
    lags = None if heat is None else lags_of(heat, sets)
    named = Named(tuple(labels), tuple(files), tuple(reports), tuple(sets.tolist()))
    rows = rows_of(aligned.ranks, named, waits, heat, each, lags)
    stragglers = stragglers_of(rows, waits.groups, margin)
    total = sum(len(rank.collectives.start) for rank in ranks)
    return Fleet(
        reports=tuple(files),
        ranks=rows,
        typical=None if lags is None else lags.overall,
        margin=margin,
        stragglers=stragglers,
        advice=advice_of(rows, stragglers),
        groups=waits.groups,
        pairs=waits.pairs,
        pair_count=waits.pair_count,
        clocks=clocks.clocks,
        heat=heat,
        unmatched=total - sum(group.start.size for group in groups),
        notes=notes_of(files, labels, results, groups, sets, notes),
        skipped=tuple(skipped),
    )


def _labels(files: Sequence[str], results: Sequence[ReportResult]) -> list[str]:
    """Return what each rank is called: its report, and its GPU where the report has several."""
    return [
        stem if len(result.ranks) == 1 else f"{stem} · {rank.device}"
        for file, result in zip(files, results, strict=True)
        for stem in [SUFFIX.sub("", file)]
        for rank in result.ranks
    ]


def _on_one_clock(group: Matched, reports: Times, clocks: Clocks) -> Matched:
    of = reports[group.ranks]
    return Matched(
        group.name,
        group.how,
        group.ranks,
        clocks.common(group.start, of),
        clocks.common(group.end, of),
        group.hidden,
        group.step,
        group.kind,
    )


def _sound(group: Matched, reports: Times, clocks: Clocks, notes: list[str]) -> Matched | None:
    """Return a group if its collectives can be what they were matched as: none ends before all have begun."""
    doubt = max(clocks.clocks[report].uncertainty or 0 for report in reports[group.ranks])
    wrong = impossible(group, max(SLACK * doubt, LEAST_SLACK_NS))
    if wrong * REFUSED <= len(group.step):
        return group
    notes.append(
        f"{group.name}: {wrong:,} of {len(group.step):,} matched collectives end on one rank before another begins, so "
        "they are not the same ones; none of them counts"
    )
    return None
