"""Idle time and its causes, piece by piece, in the order of docs/definitions.md."""

from __future__ import annotations

from bisect import bisect_left

from tests.oracle.export import Call, Export, Operation
from tests.oracle.spans import Span, free, inside, length, union, without

CAUSES = ("profiler", "queued", "launch", "sync", "blocking_copy", "memory", "api", "host", "unknown")
LOCK = 1_000_000  # ns
ROLES = ("sync", "blocking_copy", "memory", "api")


class Causes:
    def __init__(self, export: Export) -> None:
        self.overhead = union(export.overhead)
        calls: dict[tuple[int, str], list[Span]] = {}
        for call in export.calls:
            calls.setdefault((call.thread, call.role), []).append((call.start, call.end))
        self.calls = {key: union(spans) for key, spans in calls.items()}
        self.long_memory = [call for call in export.calls if call.role == "memory" and call.end - call.start >= LOCK]

    def of(self, piece: Span, launch: Call | None) -> dict[str, int]:
        """Split one idle piece whose ending operation was launched by `launch`."""
        found = dict.fromkeys(CAUSES, 0)
        found["profiler"] = length(inside(self.overhead, *piece))
        rest, lock_ns = free(self.overhead, *piece), 0
        if launch is None:
            found["unknown"] = length(rest)
            return found
        for start, end in rest:
            found["queued"] += max(0, end - max(start, launch.end))
            if start < launch.end and end > launch.start:
                inside_call = (max(start, launch.start), min(end, launch.end))
                locked = length(inside(self.locked(launch), *inside_call))
                found["launch"] += inside_call[1] - inside_call[0] - locked
                lock_ns += locked
        before = [(start, min(end, launch.start)) for start, end in rest if start < launch.start]
        for role in ROLES:
            spans = self.calls.get((launch.thread, role), [])
            held = [part for start, end in before for part in inside(spans, start, end)]
            found[role] = length(held)
            before = without(before, held)
        found["host"] = length(before)
        found["memory"] += lock_ns
        return found

    def locked(self, launch: Call) -> list[Span]:
        """When other threads of the launch's process are in long calls on memory."""
        others = (call for call in self.long_memory if call.process == launch.process and call.thread != launch.thread)
        return union([(call.start, call.end) for call in others])


def ending(operations: list[Operation], starts: list[int], moment: int) -> Operation | None:
    """The first operation of some length that starts at or after a moment; `starts` are theirs."""
    index = bisect_left(starts, moment)
    return operations[index] if index < len(operations) else None


def device_gaps(causes: Causes, busy: list[Span], window: Span, operations: list[Operation]) -> dict[str, object]:
    some_length = [one for one in operations if one.end > one.start]
    starts = [one.start for one in some_length]
    gaps = free(busy, *window)
    total = dict.fromkeys(CAUSES, 0)
    for gap in gaps:
        last = ending(some_length, starts, gap[1])
        for name, ns in causes.of(gap, last.launch if last else None).items():
            total[name] += ns
    return {"count": len(gaps), "total_ns": length(gaps), "causes": total}


def stream_gaps(own: list[Span], window: Span) -> dict[str, object]:
    gaps = free(own, *window)
    return {"gap_count": len(gaps), "gap_ns": length(gaps)}
