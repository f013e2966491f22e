"""Merges the results of many reports into one Fleet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traceview.fleet.clocks import estimate_clocks
from traceview.fleet.collectives import MAX_COLLECTIVES
from traceview.fleet.groups import MAX_IMPOSSIBLE_SHARE, rank_sets, set_notes, split_by_common_ends
from traceview.fleet.iterations import align_iterations
from traceview.fleet.match import MatchedCollectives, match_collectives
from traceview.fleet.rank_figures import RankNames, build_heat, build_rank_rows, iteration_columns, measure_lags
from traceview.fleet.stragglers import build_advice, find_stragglers
from traceview.fleet.waits import Arrivals, ArrivedGroup, arrived_group, measure_arrivals, measure_waits
from traceview.intervals import Times
from traceview.model.collectives import Clock, CollectiveTimes
from traceview.model.fleet import Fleet, RankResult, RankWork, ReportResult, Skipped
from traceview.model.trace import Note

TOLERANCE_TO_SCATTER = 5  # times in a valid match may be off by this times the clocks' scatter
MIN_TOLERANCE_NS = 5_000
DEFAULT_MARGIN = 0.05
SUFFIX = re.compile(r"(\.sqlite(\.\w{2,3})?|\.nsys-rep)$")


def merge(
    files: Sequence[str],
    results: Sequence[ReportResult],
    skipped: Sequence[Skipped] = (),
    *,
    margin: float = DEFAULT_MARGIN,
) -> Fleet:
    """Merge results, one for each of `files`, in that order."""
    ranks = [rank for result in results for rank in result.ranks]
    reports = [index for index, result in enumerate(results) for _ in result.ranks]
    report_of = np.array(reports, np.int64)
    labels = _rank_labels(files, results)
    aligned = align_iterations(ranks, reports)
    matches = match_collectives(aligned.ranks, labels, anchored=aligned.anchored)
    notes = [*aligned.notes, *(matches.notes if len(ranks) > 1 else ())]
    own_clocks = [
        group for matched in matches.matched for group in split_by_common_ends(matched, reports, labels, notes)
    ]
    clocks = estimate_clocks(own_clocks, report_of, files, [result.epoch for result in results])
    numbers, steady = iteration_columns(aligned.ranks)
    arrived: list[ArrivedGroup] = []
    for group in own_clocks:
        placed = _on_common_clock(group, report_of, clocks)
        arrivals = measure_arrivals(placed, range(len(placed.ranks)))
        if _is_possible(placed, arrivals, notes):
            arrived.append(arrived_group(placed, arrivals, numbers, steady))
    groups = [each.group for each in arrived]
    waits = measure_waits(arrived, range(len(ranks)), len(ranks), len(numbers))
    heat = build_heat(aligned.ranks, waits, numbers, steady)
    sets = rank_sets(groups, len(ranks))
    lags = None if heat is None else measure_lags(heat, sets)
    names = RankNames(tuple(labels), tuple(files), tuple(reports), tuple(sets.tolist()))
    figures = waits.group_figures(arrived)
    rows = build_rank_rows(aligned.ranks, names, waits, heat, lags)
    stragglers = find_stragglers(rows, figures, margin)
    total = sum(len(rank.collectives) for rank in ranks)
    return Fleet(
        reports=tuple(files),
        ranks=rows,
        typical=None if lags is None else lags.overall,
        margin=margin,
        stragglers=stragglers,
        advice=build_advice(rows, stragglers, [results[report].program for report in reports]),
        groups=figures,
        pairs=waits.longest_pairs(),
        pair_count=waits.pair_count,
        clocks=clocks,
        heat=heat,
        unmatched=total - sum(group.size for group in groups),
        notes=_all_notes(files, labels, results, groups, sets, notes),
        skipped=tuple(skipped),
        times=tuple(
            CollectiveTimes(each.group.ranks, each.group.kind, each.group.members, each.last, each.first)
            for each in arrived
        ),
        work=tuple(_work_on_clock(rank.work, clocks[report]) for rank, report in zip(ranks, reports, strict=True)),
    )


def report_label(file: str) -> str:
    """Return a report's name without its suffix."""
    return SUFFIX.sub("", file)


def _rank_labels(files: Sequence[str], results: Sequence[ReportResult]) -> list[str]:
    """Return the report's name for each rank, with the GPU if the report has several."""
    return [
        report_label(file) if len(result.ranks) == 1 else f"{report_label(file)} · {rank.device}"
        for file, result in zip(files, results, strict=True)
        for rank in result.ranks
    ]


def _on_common_clock(group: MatchedCollectives, report_of: Times, clocks: Sequence[Clock]) -> MatchedCollectives:
    reports = report_of[group.ranks]
    members = [replace(member, clock=clocks[at]) for member, at in zip(group.members, reports, strict=True)]
    return replace(group, members=tuple(members))


def _work_on_clock(work: RankWork | None, clock: Clock) -> RankWork | None:
    if work is None:
        return None
    start = clock.to_common(np.array([work.start], np.int64))
    return replace(work, start=int(start[0]))


def _is_possible(group: MatchedCollectives, arrivals: Arrivals, notes: list[str]) -> bool:
    """Return whether the match is possible (no rank ends before all have begun); add a note if not."""
    scatter = max(member.clock.scatter for member in group.members if member.clock)
    tolerance = max(TOLERANCE_TO_SCATTER * scatter, MIN_TOLERANCE_NS)
    count = int(np.count_nonzero(arrivals.last > arrivals.first_end + tolerance))
    if count * MAX_IMPOSSIBLE_SHARE <= len(group.step):
        return True
    notes.append(
        f"{group.name}: {count:,} of {len(group.step):,} matched collectives end on one rank before another begins, so "
        "the match is wrong; none of them counts"
    )
    return False


def _all_notes(
    files: Sequence[str],
    labels: Sequence[str],
    results: Sequence[ReportResult],
    groups: Sequence[MatchedCollectives],
    sets: Times,
    earlier: Sequence[str],
) -> tuple[Note, ...]:
    """Return all notes, the most generally useful first; `earlier` are those of the steps so far."""
    ranks = [rank for result in results for rank in result.ranks]
    texts = {
        "repeated_capture": _repeated_capture_notes(files, results),
        "sets": set_notes(sets),
        "communicators": _matching_notes(groups, ranks, any("mpi" in result.program.frameworks for result in results)),
        "left_out": _truncation_notes(ranks),
        "cut": _cut_notes(labels, ranks),
        "matching": earlier,
        "report": _report_notes(files, results),
    }
    return tuple(Note(name, text) for name, some in texts.items() for text in some)


def _repeated_capture_notes(files: Sequence[str], results: Sequence[ReportResult]) -> list[str]:
    first: dict[tuple[tuple[int, ...], ...], int] = {}
    repeated = []
    for index, result in enumerate(results):
        figures = tuple((rank.start, rank.end, rank.compute, rank.kernels, *rank.idle) for rank in result.ranks)
        if first.setdefault(figures, index) != index:
            repeated.append((index, first[figures]))
    if not repeated:
        return []
    more = f" ({len(repeated) - 1:,} more files repeat others)" if len(repeated) > 1 else ""
    return [
        f"{files[repeated[0][0]]} contains the same capture as {files[repeated[0][1]]}{more}; a rank that counts twice "
        "distorts the comparison"
    ]


def _matching_notes(groups: Sequence[MatchedCollectives], ranks: Sequence[RankResult], uses_mpi: bool) -> list[str]:
    if not any(len(rank.collectives) for rank in ranks):
        in_mpi = "; collectives of MPI run on the host, where they count as idle time" if uses_mpi else ""
        return [f"no rank ran collectives on its GPU, so waits are unknown{in_mpi}"]
    if any(group.how == "order" for group in groups):
        return [
            "the captures do not name communicators, so collectives are matched by stream, kind and order within each "
            "iteration, and ranks whose kernels end together form a group; give the .nsys-rep files, or export "
            "them with a newer nsys: nsys export --type sqlite --include-blobs true"
        ]
    return []


def _truncation_notes(ranks: Sequence[RankResult]) -> list[str]:
    left_out = sum(rank.collectives.left_out for rank in ranks)
    if not left_out:
        return []
    return [f"only the first {MAX_COLLECTIVES:,} collectives of each rank are used; {left_out:,} are left out"]


def _cut_notes(labels: Sequence[str], ranks: Sequence[RankResult]) -> list[str]:
    by_range = [label for label, rank in zip(labels, ranks, strict=True) if rank.steps and rank.steps.cut == "range"]
    if not by_range:
        return []
    return [
        f"{by_range[0]}{_and_more(by_range)}: iterations are cut where the host begins and ends them, because one "
        "launches no kernels and its end on the GPU is unknown"
    ]


def _report_notes(files: Sequence[str], results: Sequence[ReportResult]) -> list[str]:
    """Return each distinct note of the reports, with the files that have it."""
    files_by_note: dict[str, list[str]] = {}
    for file, result in zip(files, results, strict=True):
        for note in result.notes:
            files_by_note.setdefault(note, []).append(file)
    return [f"{names[0]}{_and_more(names)}: {note}" for note, names in files_by_note.items()]


def _and_more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
