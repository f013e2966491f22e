"""NVTX ranges, one at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from tests.oracle.export import Export, Operation, Range
from tests.oracle.spans import length, union
from tests.oracle.waits import Window, clipped, touches


class Open:
    """The ranges of a thread that are open at a moment."""

    def __init__(self, ranges: list[Range]) -> None:
        self.by_thread: dict[int, list[Range]] = defaultdict(list)
        for one in ranges:
            self.by_thread[one.thread].append(one)
        self.changes = {thread: self._timeline(found) for thread, found in self.by_thread.items()}

    @staticmethod
    def _timeline(ranges: list[Range]) -> tuple[list[int], list[list[Range]]]:
        """Return the moments at which ranges open or close, and the ranges that are open from each on."""
        moments = sorted({one.start for one in ranges} | {one.end for one in ranges})
        opening: dict[int, list[Range]] = defaultdict(list)
        for one in ranges:
            if one.end > one.start:
                opening[one.start].append(one)
        states: list[list[Range]] = []
        current: list[Range] = []
        for moment in moments:
            current = [one for one in current if one.end > moment] + opening[moment]
            states.append(current)
        return moments, states

    def at(self, thread: int, moment: int) -> list[Range]:
        if thread not in self.changes:
            return []
        moments, states = self.changes[thread]
        index = bisect_right(moments, moment) - 1
        return states[index] if index >= 0 else []


def annotating(ranges: list[Range]) -> dict[int, int]:
    total: dict[tuple[int, int], int] = defaultdict(int)
    for one in ranges:
        total[one.process, one.thread] += one.end - one.start
    best: dict[int, int] = {}
    for process, thread in sorted(total, key=lambda key: (-total[key], key[1])):
        best.setdefault(process, thread)
    return best


def nvtx(export: Export, window: Window) -> list[dict[str, object]]:
    opened = Open(export.ranges)
    carrier = annotating(export.ranges)
    work: dict[tuple[str, str], dict[int, tuple[Operation, bool]]] = defaultdict(dict)
    single: dict[int, list[Operation]] = defaultdict(list)
    for one in export.operations:
        if one.launch is None or not touches(one.start, one.end, window):
            continue
        around = opened.at(one.launch.thread, one.launch.start)
        via = not around
        if via:
            around = opened.at(carrier.get(one.process, -1), one.launch.start)
        for found in around:
            work[found.name, found.domain].setdefault(id(one), (one, via))
            single[id(found)].append(one)
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for found in export.ranges:
        if not touches(found.start, found.end, window):
            continue
        start, end = clipped(found.start, found.end, window)
        row = rows.setdefault((found.name, found.domain), {"count": 0, "host_ns": 0})
        row["count"] += 1
        row["host_ns"] += end - start
    each: dict[tuple[str, str], int] = defaultdict(int)
    for found in export.ranges:
        spans = [clipped(one.start, one.end, window) for one in single.get(id(found), [])]
        if spans:
            each[found.name, found.domain] += max(end for _, end in spans) - min(start for start, _ in spans)
    for key, row in rows.items():
        members = list(work[key].values())
        spans = [clipped(one.start, one.end, window) for one, _ in members]
        row |= {
            "gpu_busy_ns": length(union(spans)),
            "gpu_span_ns": max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0,
            "gpu_span_each_ns": each[key],
            "kernel_count": sum(one.table == "kernel" for one, _ in members),
            "operation_count": len(members),
            "via_process_count": sum(via for _, via in members),
        }
    found_rows = [{"name": name, "domain": domain, **row} for (name, domain), row in rows.items()]
    return sorted(found_rows, key=lambda row: (-row["gpu_busy_ns"], -row["host_ns"], row["name"], row["domain"]))
