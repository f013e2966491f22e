"""The ranges that are iterations, and the breakdown of each."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from tests.oracle.export import Export, Operation, Range
from tests.oracle.gaps import CAUSES, Causes, ending
from tests.oracle.host import Open, annotating
from tests.oracle.spans import Span, free, length, union, without
from tests.oracle.waits import Window
from traceview.measure.nvtx import COUNTER_WORDS, LIBRARY_NAMES, PART_WORDS
from traceview.model.trace import LIBRARY_DOMAINS


def fold(name: str) -> str:
    return re.sub(r"(?<![\w.])-\d+|(?<![A-Za-z\d])\d+|\d+(?![A-Za-z\d])", "#", name)


def find(export: Export, pattern: str | None) -> tuple[str, list[Range]] | None:
    """Return the name and the ranges of the iterations; None if no range qualifies."""
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
    own = sorted((one for one in export.ranges if not is_library(one)), key=lambda one: (one.start, one.end))
    if all(one.launch is None for one in export.operations):
        return longest(own)
    chosen = phase_with_most_work(export, own)
    return None if chosen is None else (chosen.name, chosen.ranges)


def is_library(one: Range) -> bool:
    return one.domain in LIBRARY_DOMAINS or re.search(LIBRARY_NAMES, one.name) is not None


def longest(own: list[Range]) -> tuple[str, list[Range]] | None:
    """Return the outermost name that repeats on a thread with the most time, the rule without GPU work."""
    groups: dict[tuple[int, str], list[Range]] = defaultdict(list)
    for one in own:
        groups[one.thread, fold(one.name)].append(one)
    often = [one for ranges in groups.values() if len(ranges) >= 3 for one in ranges]
    groups = defaultdict(list)
    for one in nested_out(often):
        groups[one.thread, fold(one.name)].append(one)
    groups = defaultdict(list, {key: ranges for key, ranges in groups.items() if len(ranges) >= 3})
    if not groups:
        return None
    best = max(sorted(groups), key=lambda key: sum(one.end - one.start for one in groups[key]))
    return best[1], sorted(groups[best], key=lambda one: (one.start, one.end))


@dataclass
class Phase:
    name: str
    thread: int
    ranges: list[Range]
    active: float
    time_share: float
    count_share: float

    @property
    def qualifies(self) -> bool:
        return self.active >= 0.9 and max(self.time_share, self.count_share) >= 0.2

    def order(self) -> tuple[int, int, int, str]:
        host = sum(one.end - one.start for one in self.ranges)
        return (-math.floor(self.time_share * 100), -host, self.thread, self.name)

    def nested_in(self, outer: Phase) -> bool:
        starts = [one.start for one in self.ranges]
        most = self.time_share >= 0.9 * outer.time_share
        return (
            self.thread == outer.thread
            and most
            and all(sum(around.start <= start < around.end for start in starts) >= 10 for around in outer.ranges)
        )


def phase_with_most_work(export: Export, own: list[Range]) -> Phase | None:
    work = launched(export)
    groups: dict[tuple[int, str], list[Range]] = defaultdict(list)
    for one, name in zip(own, phase_names(own), strict=True):
        groups[one.thread, name].append(one)
    phases = []
    for (thread, name), ranges in groups.items():
        ranges = sorted(nested_out(ranges), key=lambda one: (one.start, one.end))
        mine = [one for one in export.operations if one.launch is not None and one.process == ranges[0].process]
        if len(ranges) < 3 or not mine:
            continue
        total = max(1, sum(one.end - one.start for one in mine))
        inside = [work.get(id(one), []) for one in ranges]
        flat = [operation for operations in inside for operation in operations]
        phase = Phase(
            name,
            thread,
            ranges,
            sum(bool(operations) for operations in inside) / len(ranges),
            sum(one.end - one.start for one in flat) / total,
            len(flat) / len(mine),
        )
        if phase.active >= 0.9 and max(phase.time_share, phase.count_share) >= 0.01:
            phases.append(phase)
    phases = sorted(phases, key=Phase.order)[:24]
    chosen = next((phase for phase in phases if phase.qualifies), None)
    while chosen is not None:
        inner = next((phase for phase in phases if phase.qualifies and phase.nested_in(chosen)), None)
        if inner is None:
            return chosen
        chosen = inner
    return None


def launched(export: Export) -> dict[int, list[Operation]]:
    """Return the operations that each range launches, by the id of the range."""
    opened, carrier = Open(export.ranges), annotating(export.ranges)
    work: dict[int, list[Operation]] = defaultdict(list)
    for one in export.operations:
        if one.launch is None:
            continue
        around = opened.at(one.launch.thread, one.launch.start)
        for found in around or opened.at(carrier.get(one.process, -1), one.launch.start):
            work[id(found)].append(one)
    return work


def phase_names(own: list[Range]) -> list[str]:
    """Return the name of each range, with `#` for numbers that count up on its thread."""
    groups: dict[tuple[int, str], list[tuple[int | None, ...]]] = defaultdict(list)
    for one in own:
        groups[one.thread, fold(one.name)].append(numbers(one.name))
    counters = {key: counts_up(key[1], values) for key, values in groups.items()}
    return [fold(one.name) if counters[one.thread, fold(one.name)] else one.name for one in own]


def numbers(name: str) -> tuple[int | None, ...]:
    found = re.findall(r"(?<![\w.])-\d+|\d+", name)[:4]
    return tuple(int(text) if -(2**63) <= int(text) < 2**63 else None for text in found)


def counts_up(name: str, values: list[tuple[int | None, ...]]) -> bool:
    ups = downs = 0
    for before, after in pairwise(values):
        steps = [y - x for x, y in zip(before, after, strict=True) if x is not None and y is not None and x != y]
        ups += bool(steps) and steps[0] > 0
        downs += bool(steps) and steps[0] < 0
    seldom = (downs <= 2 or re.search(COUNTER_WORDS, name) is not None) and re.search(PART_WORDS, name) is None
    return ups >= 0.9 * (len(values) - downs - 1) and (downs == 0 or seldom)


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
        # The launches may repeat: the oracle does not know.
        return {} if sum(one.launch is not None for one in export.operations) >= 3 else none
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
        skip += stands_out(walls[skip], walls[skip + 1 :])
    rows = [
        one_iteration(export, causes, window, *span) | {"skipped": index < skip} for index, span in enumerate(spans)
    ]
    for row, end in zip(
        rows, gpu_ends(export, window, [(start, end) for _, start, end in spans], ranges[0].process), strict=True
    ):
        row["gpu_end_ns"] = end
    kept = walls[skip:]
    return {
        "range": name,
        "count": len(rows),
        "skipped": skip,
        "wall_ns": {"median": percentile(kept, 50), "p5": percentile(kept, 5), "p95": percentile(kept, 95)},
        "per_iteration": rows,
    }


def gpu_ends(export: Export, window: Window, spans: list[Span], process: int) -> list[int | None]:
    """Return when the kernels that each iteration, or one before it, launches have ended; None if one launches none."""
    starts, ends = zip(*spans, strict=True)
    pauses = [after - before for before, after in zip(ends, starts[1:], strict=False)]
    until = [*starts[1:], ends[-1] + max(int(statistics.median(pauses)) if pauses else 0, 0)]
    own = {pair for group in export.devices for pair in group if process in [owner for owner, _ in group]}
    work = [one for one in export.operations if (one.process, one.device) in own and one.process == process]
    if window is not None:
        used = {(one.process, one.device) for one in work if one.start < window[1] and one.end > window[0]}
        work = [one for one in work if (one.process, one.device) in used]
    launched = [one for one in work if one.launch is not None and one.cls in ("compute", "communication")]
    last: list[int] = []
    for start, border in zip(starts, until, strict=True):
        found = [one.end for one in launched if one.launch is not None and start <= one.launch.start < border]
        if not found:
            return [None] * len(spans)
        last.append(max([*found, *last[-1:]]))
    return list(last)


def stands_out(wall: int, later: list[int]) -> bool:
    """Return whether an iteration is longer than all later ones, and much longer than these differ."""
    if len(later) < 4:
        return False
    median = statistics.median(later)
    spread = statistics.median(abs(other - median) for other in later)
    return wall > max(later) and wall > 1.1 * median and wall > median + 10 * spread


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
