"""The ranges that are iterations, and the breakdown of each."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict

from tests.oracle.export import Export, Operation, Range
from tests.oracle.gaps import CAUSES, Causes, ending
from tests.oracle.host import Window
from tests.oracle.spans import Span, free, length, union, without


def fold(name: str) -> str:
    return re.sub(r"(?<![\w.])-\d+|\d+", "#", name)


def find(export: Export, pattern: str | None) -> tuple[str, list[Range]] | None:
    groups: dict[tuple[int, str], list[Range]] = defaultdict(list)
    if pattern is not None:
        for one in export.ranges:
            if re.search(pattern, one.name):
                groups[one.thread, fold(one.name)].append(one)
        if not groups:
            return None
        threads: dict[int, list[Range]] = defaultdict(list)
        for (thread, _), ranges in groups.items():
            threads[thread] += ranges
        best = max(sorted(threads), key=lambda thread: sum(one.end - one.start for one in threads[thread]))
        ranges = sorted(nested_out(threads[best]), key=lambda one: (one.start, one.end))
        return " | ".join(sorted({name for _, name in groups})), ranges
    for one in export.ranges:
        groups[one.thread, fold(one.name)].append(one)
    often = [one for ranges in groups.values() if len(ranges) >= 3 for one in ranges]
    top = nested_out(often)
    groups = defaultdict(list)
    for one in top:
        groups[one.thread, fold(one.name)].append(one)
    groups = defaultdict(list, {key: ranges for key, ranges in groups.items() if len(ranges) >= 3})
    if not groups:
        return None
    best = max(
        sorted(groups, key=lambda key: (key[0], key[1])),
        key=lambda key: sum(o.end - o.start for o in groups[key]),
    )
    return best[1], sorted(groups[best], key=lambda one: (one.start, one.end))


def nested_out(ranges: list[Range]) -> list[Range]:
    """Return the ranges that lie inside no other range of their thread."""
    kept = []
    reach: dict[int, int] = {}
    for one in sorted(ranges, key=lambda one: (one.thread, one.start, -one.end)):
        if one.thread in reach and reach[one.thread] >= one.end and reach[one.thread] > one.start:
            continue
        reach[one.thread] = max(reach.get(one.thread, one.end), one.end)
        kept.append(one)
    return kept


def percentile(values: list[int], percent: int) -> int:
    ordered = sorted(values)
    place, rest = divmod((len(ordered) - 1) * percent, 100)
    high = ordered[min(place + 1, len(ordered) - 1)]
    return ordered[place] + (high - ordered[place]) * rest // 100


def iterations(
    export: Export, causes: Causes, window: Window, pattern: str | None, skip: int | None
) -> dict[str, object]:
    found = find(export, pattern)
    none = {
        "range": None,
        "count": 0,
        "skipped": 0,
        "per_iteration": [],
        "wall_ns": dict.fromkeys(("median", "p5", "p95")),
    }
    if found is None:
        return none
    name, ranges = found
    spans = [(one, one.start, one.end) for one in ranges]
    if window is not None:
        spans = [
            (one, max(start, window[0]), min(end, window[1]))
            for one, start, end in spans
            if start < window[1] and end > window[0]
        ]
        if not spans:
            return none
    walls = [end - start for _, start, end in spans]
    if skip is None:
        median = statistics.median(walls)  # exact: a percentile is rounded down
        skip = next((index for index, wall in enumerate(walls) if 2 * wall <= 3 * median), 0)
    rows = [
        one_iteration(export, causes, window, *span) | {"skipped": index < skip} for index, span in enumerate(spans)
    ]
    kept = walls[skip:]
    return {
        "range": name,
        "count": len(rows),
        "skipped": skip,
        "wall_ns": {"median": percentile(kept, 50), "p5": percentile(kept, 5), "p95": percentile(kept, 95)},
        "per_iteration": rows,
    }


def pick(work: list[tuple[Span, Operation]], field: str, value: str) -> list[Span]:
    return union([span for span, one in work if getattr(one, field) == value])


def one_iteration(export: Export, causes: Causes, window: Window, of: Range, start: int, end: int) -> dict[str, object]:
    row: dict[str, object] = {"name": of.name, "start_ns": start, "end_ns": end, "wall_ns": end - start}
    totals = dict.fromkeys(
        (
            "compute_ns",
            "communication_ns",
            "exposed_h2d_ns",
            "exposed_d2h_ns",
            "exposed_communication_ns",
            "kernel_count",
        ),
        0,
    )
    idle = dict.fromkeys(CAUSES, 0)
    for group in export.devices:
        if of.process not in [process for process, _ in group]:
            continue
        work = [one for one in export.operations if (one.process, one.device) in group]
        here = [one for one in work if one.start < end and one.end > start]
        spans = [(max(one.start, start), min(one.end, end)) for one in here]
        if window is not None and not any(one.start < window[1] and one.end > window[0] for one in work):
            continue

        chosen = list(zip(spans, here, strict=True))

        compute, communication = pick(chosen, "cls", "compute"), pick(chosen, "cls", "communication")
        totals["compute_ns"] += length(compute)
        totals["communication_ns"] += length(communication)
        totals["exposed_h2d_ns"] += length(without(pick(chosen, "kind", "h2d"), compute))
        totals["exposed_d2h_ns"] += length(without(pick(chosen, "kind", "d2h"), compute))
        totals["exposed_communication_ns"] += length(without(communication, compute))
        totals["kernel_count"] += sum(one.table == "kernel" and start <= one.start < end for one in work)
        some_length = [one for one in work if one.end > one.start]
        starts = [one.start for one in some_length]
        for piece in free(union(spans), start, end):
            last = ending(some_length, starts, piece[1])
            for cause, ns in causes.of(piece, last.launch if last else None).items():
                idle[cause] += ns
    blocked = sum(
        max(0, min(call.end, end) - max(call.start, start))
        for call in export.calls
        if call.role == "sync" and call.process == of.process
    )
    return row | totals | {"idle_ns": sum(idle.values()), "idle": idle, "blocked_ns": blocked}
