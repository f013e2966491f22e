"""Exposed time by cause, moment by moment, in plain Python over rows, from docs/definitions.md alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TypeVar

import polars as pl

from tests.oracle.spans import union
from traceview.model.trace import Trace, Window

NO_STREAM = 0xFFFFFFFF
US = 1_000
K = TypeVar("K")


@dataclass
class HostCall:
    row: int
    start: int
    end: int
    name: str
    thread: int
    process: int
    blocks: bool
    stream: int | None = None  # that it synchronizes


@dataclass
class Op:
    row: int
    start: int
    end: int
    cls: str
    kind: str | None
    memory: str | None
    stream: int
    process: int
    call: HostCall | None
    before: Op | None = None
    last_waits: list[Op] = field(default_factory=list)
    waits: bool = False
    open: bool = False

    @property
    def work(self) -> str:
        return f"{self.kind} {self.memory}" if self.cls == "copy" else self.cls


class Exposures:
    """The rows of one device, and what its streams wait for."""

    def __init__(self, trace: Trace, device: int) -> None:
        self.calls = [
            HostCall(row, *(one[key] for key in ("start", "end", "name", "thread", "process")),
                 one["role"] in ("sync", "blocking_copy") or one["implicit"])
            for row, one in enumerate(trace.api.iter_rows(named=True))
        ]  # fmt: skip
        clocks = trace.devices.row(device, named=True)
        unknown = clocks["clock_offset"] is None and bool(clocks["clock_contradictions"])
        self.ops: list[Op] = []
        for row, one in enumerate(trace.operations.iter_rows(named=True)):
            if one["device"] == device and one["end"] > one["start"]:
                call = None if one["launch"] is None or unknown else self.calls[one["launch"]]
                keys = ("start", "end", "class", "kind", "memory", "stream", "process")
                self.ops.append(Op(row, *(one[key] for key in keys), call))
        self.streams: dict[int, list[Op]] = {}
        for op in self.ops:
            mine = self.streams.setdefault(op.stream, [])
            op.before = mine[-1] if mine else None
            mine.append(op)
        spent = {stream: {"compute": 0, "communication": 0} for stream in self.streams}
        for op in self.ops:
            spent[op.stream][op.cls] = spent[op.stream].get(op.cls, 0) + op.end - op.start
        total = sum(each["compute"] for each in spent.values())
        self.computing = {
            stream
            for stream, each in spent.items()
            if each["compute"] and (each["compute"] >= each["communication"] or 2 * each["compute"] >= total)
        }
        self.candidates = [op for op in self.ops if op.stream in self.computing]
        self.starts = [op.start for op in self.candidates]
        self.gap = self._gap()
        self.independent = trace.streams["independent"].to_list()
        self.together = self._together()
        self.known: dict[int, bool] = {}
        self._events(trace)
        self.ended = sorted(self.ops, key=lambda op: op.end)
        self.ends = [op.end for op in self.ended]

    def _gap(self) -> int:
        step = len(self.candidates) // 65536 + 1
        gaps = [
            op.start - op.before.end
            for op in self.candidates[::step]
            if op.before and op.call and op.call.end < op.before.end <= op.start
        ]
        return 3 * int(median(gaps)) if gaps else 5_000

    def _together(self) -> set[tuple[int, int]]:
        pairs = set()
        for op in self.ops:
            if (op.cls != "compute") if len(self.computing) > 1 else (op.stream not in self.computing):
                place = bisect_left(self.starts, op.end) - 1
                if place >= 0:
                    last = self.candidates[place]
                    if last.end > op.start and last.stream != op.stream:
                        pairs.add((op.stream, last.stream))
        return pairs

    def _events(self, trace: Trace) -> None:
        streams = {(one["process"], one["context"], one["stream_id"]): row
                   for row, one in enumerate(trace.streams.iter_rows(named=True))}  # fmt: skip
        records, waits = [], []
        for one in trace.stream_events.filter(pl.col("launch").is_not_null()).sort("launch").iter_rows(named=True):
            call = self.calls[one["launch"]]
            stream = streams.get((one["process"], one["context"], one["stream_id"]))
            event = (one["process"], one["context"], one["event_id"])
            if one["kind"] == "record":
                records.append((call, event, stream))
            if "StreamWaitEvent" in call.name and one["stream_id"] != NO_STREAM:
                waits.append((call, event, stream))
            if one["kind"] == "synchronize" and one["stream_id"] != NO_STREAM and stream is not None:
                call.stream = stream if call.stream is None else call.stream
        self._mark_unstated({call.row for call, *_ in waits})
        for call, event, stream in waits:
            self._mark_waiting(call, stream, [each for each in records if each[1] == event and each[0].row < call.row])

    def _mark_unstated(self, stated: set[int]) -> None:
        unstated = [call for call in self.calls if "StreamWaitEvent" in call.name and call.row not in stated]
        self.unknown_processes = {call.process for call in unstated}
        for call in unstated:
            later = [op for op in self.ops if op.call and op.call.thread == call.thread and op.call.row > call.row]
            if later:
                min(later, key=lambda op: op.call.row).open = True  # type: ignore[union-attr]

    def _mark_waiting(
        self, call: HostCall, stream: int | None, made: list[tuple[HostCall, tuple[int, int, int], int | None]]
    ) -> None:
        mine = self.streams.get(stream, []) if stream is not None else []
        later = [op for op in mine if op.call and op.call.row > call.row]
        if not later:
            return
        later[0].waits = True
        if not made:
            later[0].open = True
            return
        record, _, source = made[-1]
        earlier: list[Op] = []
        for op in self.streams.get(source, []) if source is not None else []:
            if op.call and op.call.row >= record.row:
                break
            earlier.append(op)
        if earlier and earlier[-1].call and source != stream:
            later[0].last_waits.append(earlier[-1])

    def following(self, moment: int, window: Window) -> Op | None:
        """The first operation of a computing stream that starts after the ns at `moment`."""
        place = bisect_right(self.starts, moment)
        if place == len(self.starts) or self.starts[place] >= window.end:
            return None
        return self.candidates[place]

    def last_ended(self, moment: int) -> Op | None:
        place = bisect_right(self.ends, moment) - 1
        return self.ended[place] if place >= 0 else None

    def cause(self, moment: int, exposed: Op, window: Window) -> str:
        """The cause of the ns at `moment`, in which `exposed` runs and nothing computes."""
        following = self.following(moment, window)
        if following is None:
            return "end"
        if following.call is None:
            return "unknown"
        if moment < following.call.start:
            return self.host(moment, exposed, following.call)
        if moment < following.call.end:
            return "launch"
        if following.stream == exposed.stream:
            return "same_stream"
        before = following.before
        if before and moment < before.end:
            return "kernel_gap" if before.end - before.start <= self.gap else "other"
        if before and moment < before.end + self.gap:
            return "kernel_gap"
        return self.wait(moment, exposed, following)

    def host(self, moment: int, exposed: Op, launch: HostCall) -> str:
        inside = [c for c in self.blocking(launch.thread) if c.start <= moment < c.end]
        if not inside:
            return "host"
        call = inside[0]
        if exposed.call is call:
            return "waits_for_it"
        until = call.end + 8 * US
        if call.stream is not None:
            waits = call.stream == exposed.stream and exposed.end <= until
            launched = exposed.call.row if exposed.call else -1
            return "waits_for_it" if waits and launched < call.row else "host"
        last = self.last_ended(until)
        waits = last is not None and last.stream == exposed.stream and last.row >= exposed.row
        return "waits_for_it" if waits else "host"

    def blocking(self, thread: int) -> list[HostCall]:
        if not hasattr(self, "_blocking"):
            self._blocking: dict[int, list[HostCall]] = {}
            for call in self.calls:
                if call.blocks:
                    self._blocking.setdefault(call.thread, []).append(call)
        return self._blocking.get(thread, [])

    def wait(self, moment: int, exposed: Op, following: Op) -> str:
        ended_before = following.before.end if following.before else -(2**62)
        late = exposed.call is None or exposed.start - exposed.call.end <= 20 * US
        consumer = "launched_late" if late else "waited_itself"
        last_wait = None
        for op in following.last_waits:  # of equal ends the last of the last stream
            if last_wait is None or (op.end, op.stream) >= (last_wait.end, last_wait.stream):
                last_wait = op
        if last_wait is not None and last_wait.stream == exposed.stream and last_wait.row >= exposed.row:
            return consumer
        in_call = following.before is not None and following.before.call is following.call
        apart = (
            (exposed.stream, following.stream) in self.together
            or self.independent[exposed.stream]
            or self.independent[following.stream]
        )
        decided = following.process not in self.unknown_processes and not following.open and not in_call
        decided = decided and (following.waits or apart)
        at_once = 24 * US if following.open else self.gap
        latest = self.last_ended(following.start)
        is_next = (
            latest is not None
            and following.start - latest.end <= at_once
            and latest.end > ended_before
            and latest.stream != following.stream
        )
        if is_next and not following.waits and latest and latest.cls == "copy" and latest.kind == following.kind:
            return "copy_engine"
        if decided:
            return "other" if last_wait is not None and moment < last_wait.end else "queue"
        own = [op for op in self.streams[exposed.stream] if (op.start, op.row) < (following.start, following.row)]
        last = own[-1] if own else None
        if last is not None and last.end > following.start:
            last = last.before
        follows = last is not None and following.start - last.end <= at_once and last.end > ended_before
        if follows and last is not None and last.row >= exposed.row:
            return consumer
        return "other" if is_next and latest and latest.stream != exposed.stream else "queue"


def exposed_stretches(trace: Trace, device: int, window: Window) -> list[tuple[str, int, int, int, str]]:
    """The exposed time of a device: kind of work, row of Trace.operations, start, end and cause."""
    line = Exposures(trace, device)
    compute = union([(op.start, op.end) for op in line.ops if op.cls == "compute"])
    begins = [start for start, _ in compute]
    edges = {time for op in line.ops for time in (op.start, op.end, op.end + line.gap)}
    edges |= {time for call in line.calls for time in (call.start, call.end)}
    cuts = sorted(edges)
    stretches: list[tuple[str, int, int, int, str]] = []
    reached: dict[str, int] = {}
    for op in line.ops:
        start = max(op.start, window.start, reached.get(op.work, window.start))
        end = min(op.end, window.end)
        if op.cls == "compute" or start >= end:
            continue
        reached[op.work] = end
        inside = [start, *cuts[bisect_right(cuts, start) : bisect_left(cuts, end)], end]
        for first, last in pairwise(inside):
            place = bisect_right(begins, first) - 1
            if place < 0 or first >= compute[place][1]:
                stretches.append((op.work, op.row, first, last, line.cause(first, op, window)))
    return stretches


def exposed_operations(trace: Trace, device: int, window: Window) -> dict[tuple[str, int], dict[str, int]]:
    """The exposed ns of each operation of a device by cause, by its kind of work and its row of Trace.operations."""
    stretches = exposed_stretches(trace, device, window)
    return grouped(((work, row), {cause: end - start}) for work, row, start, end, cause in stretches)


def grouped(rows: Iterable[tuple[K, Mapping[str, int]]]) -> dict[K, dict[str, int]]:
    """The ns by cause of rows with the same key."""
    sums: dict[K, dict[str, int]] = {}
    for key, causes in rows:
        own = sums.setdefault(key, {})
        for cause, ns in causes.items():
            own[cause] = own.get(cause, 0) + ns
    return sums
