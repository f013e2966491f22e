"""Merges the results of many reports into one Fleet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from traceview.intervals import Times
from traceview.model.fleet import Clock, CollectiveTimes, Fleet, RankResult, ReportResult, Skipped
from traceview.model.trace import Note
from traceview.ranks.clocks import estimate_clocks
from traceview.ranks.collectives import MAX_COLLECTIVES
from traceview.ranks.iterations import MAX_BINS, align_iterations, merge_bins
from traceview.ranks.match import (
    MAX_IMPOSSIBLE_SHARE,
    MatchedCollectives,
    match_collectives,
    rank_sets,
    set_notes,
    split_by_common_ends,
)
from traceview.ranks.rank_figures import (
    RankTable,
    build_advice,
    build_heat,
    find_stragglers,
    fleet_iterations,
    measure_lags,
)
from traceview.ranks.waits import ArrivedGroup, measure_arrivals, measure_waits

TOLERANCE_TO_SCATTER = 5  # times in a valid match may be off by this times the clocks' scatter
MIN_TOLERANCE_NS = 5_000
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
    """Merge the results of reports, one for each of `files`, in that order.

    `max_shown` limits the arrivals at collectives in Fleet.times.
    """
    report_of = np.repeat(np.arange(len(results)), [len(result.ranks) for result in results])
    reports = report_of.tolist()
    labels = _rank_labels(files, results)
    aligned = align_iterations([rank for result in results for rank in result.ranks], reports)
    ranks = aligned.ranks
    groups, unmatched = match_collectives(ranks, labels, anchored=aligned.anchored)
    notes = [*aligned.notes, *(unmatched if len(ranks) > 1 else ())]
    groups = [group for match in groups for group in split_by_common_ends(match, report_of, labels, notes)]
    clocks = estimate_clocks(groups, report_of, [result.epoch for result in results], files)
    iterations = fleet_iterations(ranks)
    groups = _possible_groups(groups, [clocks[report] for report in reports], notes)
    arrived = [measure_arrivals(group, iterations) for group in groups]
    waits = measure_waits(arrived, iterations)
    heat = build_heat(ranks, iterations, waits.by_iteration)
    sets = rank_sets([group.ranks for group in groups], len(ranks))
    lags = measure_lags(heat, sets)
    numbers = {node: number for number, node in enumerate(dict.fromkeys(each.node for each in results if each.node))}
    nodes = [numbers.get(result.node or "") for result in results]
    table = RankTable(labels, reports, sets.tolist(), files, nodes, iterations.steady, waits.sums, lags)
    rows = tuple(table.row(index, rank) for index, rank in enumerate(ranks))
    stragglers = find_stragglers(rows, waits.figures, margin)
    bins = -(-len(ranks) * MAX_BINS // MAX_SHOWN_BINS)
    return Fleet(
        reports=tuple(files),
        ranks=rows,
        typical=lags.overall,
        margin=margin,
        stragglers=stragglers,
        advice=build_advice(rows, stragglers, [results[report].program for report in reports]),
        groups=waits.figures,
        pairs=waits.pairs,
        pair_count=waits.pair_count,
        clocks=clocks,
        heat=heat,
        unmatched=sum(len(rank.collectives) for rank in ranks) - sum(group.size for group in groups),
        notes=_all_notes(files, labels, results, groups, sets, notes),
        skipped=tuple(skipped),
        times=_shown_times(arrived, max_shown),
        work=tuple(
            rank.work and merge_bins(rank.work, clocks[report], bins)
            for rank, report in zip(ranks, reports, strict=True)
        ),
    )


def _possible_groups(
    groups: Sequence[MatchedCollectives], clocks: Sequence[Clock], notes: list[str]
) -> list[MatchedCollectives]:
    """Return the groups on the common clock; `clocks` has the clock of each rank.

    A match in which a rank ends before all have begun is wrong: a note names it instead.
    """
    possible = []
    for own in groups:
        clocks_of_group = [clocks[rank] for rank in own.ranks]
        group = own.on_common_clock(clocks_of_group)
        scatter = max(clock.scatter for clock in clocks_of_group)
        tolerance = max(TOLERANCE_TO_SCATTER * scatter, MIN_TOLERANCE_NS)
        count = np.count_nonzero(group.start.max(axis=0) > group.end.min(axis=0) + tolerance)
        if count * MAX_IMPOSSIBLE_SHARE <= len(group.step):
            possible.append(group)
            continue
        notes.append(
            f"{group.name}: {count:,} of {len(group.step):,} matched collectives end on one rank before another "
            "begins, so the match is wrong; none of them counts"
        )
    return possible


def _shown_times(groups: Sequence[ArrivedGroup], max_shown: int | None) -> tuple[CollectiveTimes, ...]:
    """Return the collectives of each group: those in the middle if there are too many arrivals."""
    total = sum(each.group.size for each in groups)
    shown = []
    for each in groups:
        group, count = each.group, len(each.last)
        first = int(group.start.min())
        if max_shown is not None and total > max_shown:
            order = np.argsort(each.last, kind="stable")
            count = max(1, len(order) * max_shown // total)
            group = group.select(columns=np.sort(order[(len(order) - count) // 2 :][:count]))
        left_out = len(each.last) - count
        shown.append(CollectiveTimes(group.ranks, tuple(group.kind.tolist()), group.start, group.end, first, left_out))
    return tuple(shown)


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
    if any(rank.steps and rank.steps.cut == "gpu" for rank in ranks):
        yield (
            "the first iteration of each rank, which `analyze` counts, is left out: the capture does not show when its "
            "GPU could begin it"
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
