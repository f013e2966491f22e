"""What a reader of a fleet should know: what is missing, what was assumed, what may mislead. A sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from traceview.fleet.collectives import MOST
from traceview.fleet.match import Matched
from traceview.fleet.sets import note_of
from traceview.intervals import Times
from traceview.model.fleet import RankResult, ReportResult


def notes_of(
    files: Sequence[str],
    labels: Sequence[str],
    results: Sequence[ReportResult],
    groups: Sequence[Matched],
    sets: Times,
    before: Sequence[str],
) -> tuple[str, ...]:
    """Return all notes, those first that most readers need; `before` are those of the steps so far."""
    ranks = [rank for result in results for rank in result.ranks]
    return (
        *_repeated(files, results),
        *note_of(sets),
        *_how(groups, ranks),
        *_short(ranks),
        *_cuts(labels, ranks),
        *before,
        *_of_reports(files, results),
    )


def _repeated(files: Sequence[str], results: Sequence[ReportResult]) -> list[str]:
    """Say where reports are the same capture: a rank counted twice moves what the others are compared with."""
    first: dict[tuple[tuple[int, ...], ...], int] = {}
    again = []
    for index, result in enumerate(results):
        held = tuple((one.start, one.end, one.compute, one.kernels, *one.idle) for one in result.ranks)
        if first.setdefault(held, index) != index:
            again.append((index, first[held]))
    if not again:
        return []
    more = f" ({len(again) - 1:,} more repeat others)" if len(again) > 1 else ""
    return [
        f"{files[again[0][0]]} holds the same capture as {files[again[0][1]]}{more}: a rank counted twice moves what "
        "the others are compared with"
    ]


def _how(groups: Sequence[Matched], ranks: Sequence[RankResult]) -> list[str]:
    if not any(len(rank.collectives.start) for rank in ranks):
        return ["no rank ran collectives on its GPU: waits cannot be told"]
    if any(group.how == "order" for group in groups):
        return [
            "the captures do not name communicators: collectives were matched by stream, kind and order inside each "
            "iteration, and ranks whose kernels end together were taken as one group; newer versions of nsys name them "
            "with: nsys export --type sqlite --include-blobs true"
        ]
    return []


def _short(ranks: Sequence[RankResult]) -> list[str]:
    left_out = sum(rank.collectives.left_out for rank in ranks)
    return [f"only the first {MOST:,} collectives of a rank were kept; {left_out:,} more were not"] if left_out else []


def _cuts(labels: Sequence[str], ranks: Sequence[RankResult]) -> list[str]:
    those = [label for label, rank in zip(labels, ranks, strict=True) if rank.steps and rank.steps.cut == "range"]
    if not those:
        return []
    more = f" and {len(those) - 1} more" if len(those) > 1 else ""
    return [f"{those[0]}{more}: an iteration launched no kernels, so its end on the GPU is not known; ranges cut it"]


def _of_reports(files: Sequence[str], results: Sequence[ReportResult]) -> list[str]:
    """Return the reports' own notes, each once, with how many have it."""
    found: dict[str, list[str]] = {}
    for file, result in zip(files, results, strict=True):
        for note in result.notes:
            found.setdefault(note, []).append(file)
    return [
        f"{those[0]}{f' and {len(those) - 1} more' if len(those) > 1 else ''}: {note}" for note, those in found.items()
    ]
