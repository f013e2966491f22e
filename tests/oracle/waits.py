"""Blocking calls and what they cost the GPU, one wait at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from tests.oracle.export import Call, Export, Operation
from tests.oracle.gaps import ending
from tests.oracle.spans import Span, free, inside, length, union, without

Window = tuple[int, int] | None
SUMS = ("count", "blocked_ns", "waited_ns", "starved_ns", "idle_in_wait_ns", "refill_ns", "cost_ns")


@dataclass
class Gpu:
    processes: set[int]
    window: Span
    busy: list[Span]
    work: list[Operation]  # inside and outside the window


@dataclass
class Wait:
    process: int
    calls: list[Call]
    idle: int = 0
    refill: int = 0


def touches(start: int, end: int, window: Window) -> bool:
    if window is None:
        return True
    return (start < window[1] and end > window[0]) or (start == end and window[0] <= start < window[1])


def clipped(start: int, end: int, window: Window) -> Span:
    return (start, end) if window is None else (max(start, window[0]), min(end, window[1]))


def syncs(export: Export, gpus: list[Gpu], window: Window) -> dict[str, object]:
    calls = sorted(export.calls, key=lambda call: (call.start, call.end))
    blocking = [
        call for call in calls if (call.role == "sync" or call.implicit) and touches(call.start, call.end, window)
    ]
    waits = waits_of(export, calls, blocking)
    spans = {id(call): clipped(call.start, call.end, window) for call in blocking}
    own = own_parts(blocking, spans, gpus)
    groups: dict[str, dict[str, dict[str, int]]] = {"sync": {}, "implicit_sync": {}}
    busy = {process: busy_time(gpus, process) for process in {call.process for call in blocking}}
    lost = {process: lost_time(gpus, process) for process in busy}
    inside_calls: dict[int, list[Span]] = defaultdict(list)
    for wait in waits:
        for call in wait.calls:
            pieces = inside(lost[wait.process], *own[id(call)])
            wait.idle += length(pieces)
            inside_calls[group_of(gpus, wait.process)] += pieces
    for gpu in gpus:
        add_restart_gaps(gpu, waits, union(inside_calls[group_of(gpus, min(gpu.processes))]))
    for wait in waits:
        blocked = [spans[id(call)][1] - spans[id(call)][0] for call in wait.calls]
        totals = (wait.idle, wait.refill, min(wait.idle + wait.refill, sum(blocked)))
        parts = zip(*(shares(total, blocked) for total in totals), strict=True)
        for call, ns, figures in zip(wait.calls, blocked, parts, strict=True):
            waited = length(inside(busy[call.process], *spans[id(call)]))
            row = groups["sync" if call.role == "sync" else "implicit_sync"].setdefault(
                call.name, dict.fromkeys(SUMS, 0)
            )
            for key, value in zip(SUMS, (1, ns, waited, ns - waited, *figures), strict=True):
                row[key] += value
    return {
        name: summed(rows) if calls else dict.fromkeys(summed(rows)) | {"calls": []} for name, rows in groups.items()
    }


def waits_of(export: Export, calls: list[Call], blocking: list[Call]) -> list[Wait]:
    """Return the waits; a blocking call joins the wait before it unless its thread launched something since."""
    launching = {id(one.launch) for one in export.operations if one.launch is not None}
    chosen = {id(call) for call in blocking}
    current: dict[int, Wait] = {}
    found: list[Wait] = []
    for call in calls:
        if id(call) in chosen:
            if call.thread not in current:
                current[call.thread] = Wait(call.process, [])
                found.append(current[call.thread])
            current[call.thread].calls.append(call)
        elif id(call) in launching:
            current.pop(call.thread, None)
    return found


def group_of(gpus: list[Gpu], process: int) -> int:
    """Return the lowest number of the processes that share a GPU with this one, directly or not."""
    group = {process}
    while True:
        wider = group.union(*(gpu.processes for gpu in gpus if gpu.processes & group))
        if wider == group:
            return min(group)
        group = wider


def busy_time(gpus: list[Gpu], process: int) -> list[Span]:
    return union([span for gpu in gpus if process in gpu.processes for span in gpu.busy])


def lost_time(gpus: list[Gpu], process: int) -> list[Span]:
    """Return when the process has a GPU in its window and none that is busy."""
    windows = union([gpu.window for gpu in gpus if process in gpu.processes])
    return without(windows, busy_time(gpus, process))


def own_parts(blocking: list[Call], spans: dict[int, Span], gpus: list[Gpu]) -> dict[int, Span]:
    """Return the part of each call that begins when the earlier calls of its group have ended."""
    reach: dict[int, int] = {}
    own = {}
    groups = {process: group_of(gpus, process) for process in {call.process for call in blocking}}
    for call in blocking:
        group = groups[call.process]
        start, end = spans[id(call)]
        free_from = max(start, reach.get(group, start))
        own[id(call)] = (free_from, max(free_from, end))
        reach[group] = max(reach.get(group, end), end)
    return own


def add_restart_gaps(gpu: Gpu, waits: list[Wait], inside_calls: list[Span]) -> None:
    by_process: dict[int, list[tuple[int, Wait]]] = defaultdict(list)
    for wait in waits:
        by_process[wait.process].append((max(call.end for call in wait.calls), wait))
    for rows in by_process.values():
        rows.sort(key=lambda row: row[0])
    some_length = [one for one in gpu.work if one.end > one.start]
    starts = [one.start for one in some_length]
    for gap in free(gpu.busy, *gpu.window):
        follower = ending(some_length, starts, gap[1])
        if follower is None or follower.launch is None:
            continue
        rows = by_process[follower.launch.process]
        at = bisect_right([row[0] for row in rows], min(follower.launch.start, follower.start)) - 1
        if at < 0 or not gap[0] <= rows[at][0] < gap[1]:
            continue
        restart = (rows[at][0], gap[1])
        rows[at][1].refill = max(rows[at][1].refill, length(without([restart], inside(inside_calls, *restart))))


def shares(total: int, blocked: list[int]) -> list[int]:
    edges = [total * sum(blocked[:count]) // max(sum(blocked), 1) for count in range(len(blocked) + 1)]
    return [after - before for before, after in pairwise(edges)]


def summed(rows: dict[str, dict[str, int]]) -> dict[str, object]:
    calls = [{"api": name, **row} for name, row in rows.items()]
    calls.sort(key=lambda row: (-row["blocked_ns"], row["api"]))
    return {**{key: sum(row[key] for row in rows.values()) for key in SUMS}, "calls": calls}
