"""Merges the results of many reports into one Fleet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from traceview.intervals import Times
from traceview.model.fleet import Clock, CollectiveTimes, Fleet, PackedColumn, RankResult, ReportResult, Skipped
from traceview.model.trace import Note
from traceview.ranks.clocks import estimate_clocks
from traceview.ranks.collectives import MAX_COLLECTIVES
from traceview.ranks.iterations import MAX_BINS, align_iterations
from traceview.ranks.match import (
    MAX_IMPOSSIBLE_SHARE,
    MatchedCollectives,
    match_collectives,
    rank_sets,
    set_notes,
    split_by_common_ends,
)
from traceview.ranks.partials import FleetReports, header, run_here
from traceview.ranks.rank_figures import (
    FigurePlan,
    RankTable,
    build_advice,
    build_heat,
    find_stragglers,
    fleet_iterations,
    measure_figures,
    measure_lags,
)
from traceview.ranks.waits import Arrivals, ArrivedGroup, FleetIterations, arrived_group, measure_arrivals

TOLERANCE_TO_SCATTER = 5  # times in a valid match may be off by this times the clocks' scatter
MIN_TOLERANCE_NS = 5_000
MAX_AT_ONCE = 1 << 18  # collectives whose arrivals are measured together
MAX_SHOWN = 200_000  # arrivals at collectives on the timeline of all ranks
MAX_SHOWN_BINS = 400_000  # bins of work on the same timeline
DEFAULT_MARGIN = 0.05
SUFFIX = re.compile(r"((\.sqlite|(\.pt)?(\.trace)?\.json)(\.\w{2,3})?|\.nsys-rep)$")


def merge(
    files: Sequence[str],
    results: Sequence[ReportResult],
    skipped: Sequence[Skipped] = (),
    *,
    margin: float = DEFAULT_MARGIN,
    max_shown: int | None = MAX_SHOWN,
) -> Fleet:
    """Merge results that this process holds, one for each of `files`, in that order; see `merge_reports`."""
    reports = FleetReports([header(result) for result in results], results, run_here)
    return merge_reports(files, reports, skipped, margin=margin, max_shown=max_shown)


def merge_reports(
    files: Sequence[str],
    reports: FleetReports,
    skipped: Sequence[Skipped] = (),
    *,
    margin: float = DEFAULT_MARGIN,
    max_shown: int | None = MAX_SHOWN,
) -> Fleet:
    """Merge reports, one for each of `files`, in that order; their results stay where they are.

    `max_shown` limits the arrivals at collectives in Fleet.times.
    """
    headers = reports.headers
    ranks = [rank for report in headers for rank in report.ranks]
    labels = _rank_labels(files, headers)
    aligned = align_iterations(ranks, reports.report_of.tolist())
    matches, unmatched = match_collectives(aligned.ranks, labels, anchored=aligned.anchored)
    notes = [*aligned.notes, *(unmatched if len(ranks) > 1 else ())]
    own_clocks = [group for matched in matches for group in split_by_common_ends(matched, reports, labels, notes)]
    clocks = estimate_clocks(own_clocks, reports, files)
    iterations = fleet_iterations(aligned.ranks)
    arrived = _arrived_groups(own_clocks, reports, clocks, iterations, notes)
    rank_clocks = tuple(clocks[report] for report in reports.report_of.tolist())
    merged_bins = -(-len(ranks) * MAX_BINS // MAX_SHOWN_BINS)
    plan = FigurePlan(tuple(arrived), rank_clocks, iterations, aligned.counted, _shown(arrived, max_shown), merged_bins)
    measured = reports.measure(partial(measure_figures, plan), range(len(ranks)))
    waits, measured_rows = measured.waits, [measured.rows[index] for index in range(len(ranks))]
    heat = build_heat(measured_rows, iterations)
    groups = [each.group for each in arrived]
    sets = rank_sets(groups, len(ranks))
    lags = None if heat is None else measure_lags(heat, sets)
    table = RankTable(labels, reports.report_of.tolist(), sets.tolist(), files, waits, heat, lags)
    figures = waits.group_figures(arrived)
    numbers = {node: number for number, node in enumerate(dict.fromkeys(each.node for each in headers if each.node))}
    nodes = [numbers.get(headers[report].node or "") for report in reports.report_of.tolist()]
    rows = tuple(
        replace(table.row(index, rank, row.parts), node=nodes[index])
        for index, (rank, row) in enumerate(zip(aligned.ranks, measured_rows, strict=True))
    )
    stragglers = find_stragglers(rows, figures, margin)
    total = sum(len(rank.collectives) for rank in ranks)
    return Fleet(
        reports=tuple(files),
        ranks=rows,
        typical=None if lags is None else lags.overall,
        margin=margin,
        stragglers=stragglers,
        advice=build_advice(rows, stragglers, [headers[report].program for report in reports.report_of.tolist()]),
        groups=figures,
        pairs=waits.longest_pairs(),
        pair_count=waits.pair_count,
        clocks=clocks,
        heat=heat,
        unmatched=total - sum(group.size for group in groups),
        notes=_all_notes(files, labels, headers, groups, sets, notes),
        skipped=tuple(skipped),
        times=tuple(
            _shown_times(each.group, each.first, plan.shown[number], [row.shown.get(number) for row in measured_rows])
            for number, each in enumerate(arrived)
        ),
        work=tuple(row.work for row in measured_rows),
    )


def _arrived_groups(
    groups: Sequence[MatchedCollectives],
    reports: FleetReports,
    clocks: Sequence[Clock],
    iterations: FleetIterations,
    notes: list[str],
) -> list[ArrivedGroup]:
    """Return the groups that are possible, with their arrivals; add a note about each other one."""
    rank_clocks = [clocks[report] for report in reports.report_of.tolist()]
    arrived: list[ArrivedGroup] = []
    for some in _batches(groups):
        ranks = np.unique(np.concatenate([group.ranks for group in some.values()]))
        arrivals = reports.measure(partial(measure_arrivals, some, rank_clocks), ranks)
        for number, group in some.items():
            if _is_possible(group, arrivals[number], [rank_clocks[rank] for rank in group.ranks], notes):
                arrived.append(arrived_group(group, arrivals[number], iterations))
    return arrived


def _batches(groups: Sequence[MatchedCollectives]) -> Iterator[dict[int, MatchedCollectives]]:
    """Yield all groups by number, as many at a time as have MAX_AT_ONCE collectives together."""
    batch: dict[int, MatchedCollectives] = {}
    for number, group in enumerate(groups):
        if batch and sum(len(other.step) for other in batch.values()) + len(group.step) > MAX_AT_ONCE:
            yield batch
            batch = {}
        batch[number] = group
    if batch:
        yield batch


def _shown(groups: Sequence[ArrivedGroup], max_shown: int | None) -> tuple[Times, ...]:
    """Return the collectives of each group that Fleet.times has: those in the middle if there are too many arrivals."""
    total = sum(each.group.size for each in groups)
    if max_shown is None or total <= max_shown:
        return tuple(np.arange(len(each.group.step)) for each in groups)
    chosen = []
    for each in groups:
        order = np.argsort(each.last.values(), kind="stable")
        count = max(1, len(order) * max_shown // total)
        chosen.append(np.sort(order[(len(order) - count) // 2 :][:count]))
    return tuple(chosen)


def _shown_times(
    group: MatchedCollectives,
    first: int,
    shown: Times,
    columns: Sequence[tuple[PackedColumn, PackedColumn] | None],
) -> CollectiveTimes:
    """Return the shown collectives of a group; `columns` has the starts and lengths of each rank of the fleet."""
    starts, lengths = zip(*(column for rank in group.ranks if (column := columns[rank]) is not None), strict=True)
    kinds = tuple(group.kind[place] for place in shown)
    return CollectiveTimes(group.ranks, kinds, starts, lengths, first, len(group.kind) - len(shown))


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


def _is_possible(group: MatchedCollectives, arrivals: Arrivals, clocks: Sequence[Clock], notes: list[str]) -> bool:
    """Return whether the match is possible (no rank ends before all have begun); add a note if not."""
    scatter = max(clock.scatter for clock in clocks)
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


def _repeated_capture_notes(files: Sequence[str], results: Sequence[ReportResult]) -> Iterator[str]:
    first: dict[tuple[tuple[int, ...], ...], int] = {}
    repeated = []
    for index, result in enumerate(results):
        figures = tuple((rank.start, rank.end, rank.compute, rank.kernels, *rank.idle) for rank in result.ranks)
        if first.setdefault(figures, index) != index:
            repeated.append((index, first[figures]))
    if repeated:
        more = f" ({len(repeated) - 1:,} more files repeat others)" if len(repeated) > 1 else ""
        yield (
            f"{files[repeated[0][0]]} contains the same capture as {files[repeated[0][1]]}{more}; a rank that counts "
            "twice distorts the comparison"
        )


def _matching_notes(groups: Sequence[MatchedCollectives], ranks: Sequence[RankResult], uses_mpi: bool) -> Iterator[str]:
    if not any(len(rank.collectives) for rank in ranks):
        in_mpi = "; collectives of MPI run on the host, where they count as idle time" if uses_mpi else ""
        yield f"no rank ran collectives on its GPU, so waits are unknown{in_mpi}"
    elif any(group.how == "order" for group in groups):
        yield (
            "the captures do not name communicators, so collectives are matched by stream, kind and order within each "
            "iteration, and ranks whose kernels end together form a group; give the .nsys-rep files, or export "
            "them with a newer nsys: nsys export --type sqlite --include-blobs true"
        )


def _truncation_notes(ranks: Sequence[RankResult]) -> Iterator[str]:
    if left_out := sum(rank.collectives.left_out for rank in ranks):
        yield f"only the first {MAX_COLLECTIVES:,} collectives of each rank are used; {left_out:,} are left out"


def _cut_notes(labels: Sequence[str], ranks: Sequence[RankResult]) -> Iterator[str]:
    by_range = [label for label, rank in zip(labels, ranks, strict=True) if rank.steps and rank.steps.cut == "range"]
    if by_range:
        yield (
            f"{by_range[0]}{_and_more(by_range)}: iterations are cut where the host begins and ends them, because one "
            "launches no kernels and its end on the GPU is unknown"
        )


def _report_notes(files: Sequence[str], results: Sequence[ReportResult]) -> list[str]:
    """Return each distinct note of the reports, with the files that have it."""
    files_by_note: dict[str, list[str]] = {}
    for file, result in zip(files, results, strict=True):
        for note in result.notes:
            files_by_note.setdefault(note, []).append(file)
    return [f"{names[0]}{_and_more(names)}: {note}" for note, names in files_by_note.items()]


def _and_more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
