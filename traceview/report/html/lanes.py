"""Rows of events: a stream's operations, a thread's NVTX ranges by depth, a thread's CUDA API calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model import ROLES, Analysis, DeviceUse
from traceview.report.html.bands import work_codes
from traceview.report.html.looks import LOOKS
from traceview.report.html.marks import Marks, Names
from traceview.report.html.rows import Group, Row

DEEPEST = 11
COSTS = ("waited", "starved", "refill")


def _inside(analysis: Analysis, start: Times, end: Times) -> Times | slice:
    """Return the rows that the window shows; all of them as a slice, which copies nothing."""
    window = analysis.trace.window
    if window is None:
        return slice(None)
    return np.flatnonzero((start < window.end) & (end >= window.start))


@dataclass(frozen=True, slots=True)
class StreamLanes:
    """All operations as marks, with the stream of each."""

    analysis: Analysis
    marks: Marks
    stream: Times

    @classmethod
    def of(cls, analysis: Analysis, names: Names) -> StreamLanes:
        """Collect the operations inside the window."""
        frame = analysis.trace.operations
        start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
        memory = frame["memory"].to_physical().cast(pl.Int64).fill_null(-1).to_numpy() + 1
        marks = Marks(
            start,
            end,
            names.numbers(frame["name"]),
            work_codes(analysis).astype(np.int64),
            {"bytes": frame["bytes"].to_numpy()},
            {"correlation": frame["correlation"].to_numpy(), "host_memory": memory},
        )
        rows = _inside(analysis, start, end)
        return cls(analysis, marks.take(rows), frame["stream"].to_numpy()[rows])

    def rows(self, device: DeviceUse) -> Iterator[Row]:
        """Yield the device's streams, the busiest first; those that did nothing come last, folded."""
        several = len(device.process_ids) > 1
        for use in sorted(device.streams, key=lambda use: (-use.busy_ns, use.stream)):
            marks = self.marks.of(self.stream, use.stream)
            note = f"process {use.process_id}" if several else ""
            yield Row("stream", f"s:{use.stream}", use.label, note, (marks,), len(marks), process=use.process_id)
        used = {use.stream for use in device.streams}
        streams = self.analysis.trace.streams
        for row, (of_device, label) in enumerate(streams.select("device", "label").iter_rows()):
            if of_device == device.device and row not in used:
                yield Row("stream", f"s:{row}", label, "unused", (), more=True)


@dataclass(frozen=True, slots=True)
class HostLanes:
    """All NVTX ranges and API calls as marks, with the thread of each."""

    analysis: Analysis
    ranges: Marks
    range_thread: Times
    calls: Marks
    call_thread: Times

    @classmethod
    def of(cls, analysis: Analysis, names: Names) -> HostLanes:
        """Collect what the host did inside the window."""
        ranges, range_thread = _ranges(analysis, names)
        calls, call_thread = _calls(analysis, names)
        return cls(analysis, ranges, range_thread, calls, call_thread)

    def groups(self) -> Iterator[Group]:
        """Yield a group for each process, the thread with most to show first."""
        threads = self.analysis.trace.threads
        count = np.bincount(self.range_thread, minlength=len(threads))
        count = count + np.bincount(self.call_thread, minlength=len(threads))
        process = threads["process"].to_numpy()
        for one in sorted({int(process[row]) for row in np.flatnonzero(count)}):
            mine = [int(row) for row in np.argsort(-count, kind="stable") if process[row] == one and count[row]]
            yield Group(f"process {one}", "", tuple(row for thread in mine for row in self._rows(thread)))

    def _rows(self, thread: int) -> Iterator[Row]:
        name, tid, process = self.analysis.trace.threads.select("name", "tid", "process").row(thread)
        label, part = name or f"thread {tid}", f"t:{thread}"
        calls = self.calls.of(self.call_thread, thread)
        if len(calls):
            yield Row("call", f"t:{thread}", label, f"API {tid}", (calls,), len(calls), process=process, part=part)
        ranges = self.ranges.of(self.range_thread, thread)
        for depth, lane in enumerate(by_depth(ranges)):
            text = f"{label}, NVTX" if depth == 0 else ""
            row = f"n:{thread}:{depth}"
            yield Row("range", row, text, f"depth {depth}", (lane,), len(lane), process=process, part=part)


def by_depth(marks: Marks) -> list[Marks]:
    """Split ranges by how many others were open when each began; the deepest lanes share one."""
    if not bool((marks.start[1:] > marks.start[:-1]).all()):
        marks = marks.take(np.lexsort((-marks.end, marks.start)))
    depth = _depth(marks.start, marks.end)
    return [marks.of(depth, level) for level in range(int(depth.max(initial=-1)) + 1) if (depth == level).any()]


def _depth(start: Times, end: Times) -> Times:
    """Return how many others were open when each range of one thread began; ranges by start, longest first."""
    ended = np.searchsorted(np.sort(end), start, side="right")
    depth: Times = np.clip(np.arange(len(start)) - ended, 0, DEEPEST)
    return depth


def projected_rows(analysis: Analysis, names: Names) -> dict[int, list[Row]]:
    """Return for each device the ranges as they lie on it, a row for each depth that they have on their threads."""
    if analysis.projected is None or (frame := analysis.projected()).is_empty():
        return {}
    ranges = analysis.trace.ranges
    depth = np.zeros(len(ranges), np.int64)
    thread, start, end = (ranges[name].to_numpy() for name in ("thread", "start", "end"))
    order = np.lexsort((-end, start, thread))
    for of_thread in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
        depth[of_thread] = _depth(start[of_thread], end[of_thread])
    owner, device = frame["range"].to_numpy(), frame["device"].to_numpy()
    marks = Marks(
        frame["start"].to_numpy(),
        frame["end"].to_numpy(),
        names.numbers(ranges["name"])[owner],
        np.full(len(frame), LOOKS.index("range"), np.int64),
        {"operations": frame["operations"].to_numpy()},
    )
    return {int(one): _projected(analysis, marks, depth[owner], device == one, int(one)) for one in np.unique(device)}


def _projected(analysis: Analysis, marks: Marks, depth: Times, mine: NDArray[np.bool_], device: int) -> list[Row]:
    name = analysis.trace.devices["id"][device]
    rows = []
    for place, level in enumerate(np.unique(depth[mine])):
        lane = (marks.take(np.flatnonzero(mine & (depth == level))),)
        text = "NVTX, as its work ran" if place == 0 else ""
        rows.append(Row("projected", f"p:{name}:{level}", text, f"depth {level}", lane, part=f"p:{name}"))
    return rows


def _ranges(analysis: Analysis, names: Names) -> tuple[Marks, Times]:
    frame = analysis.trace.ranges
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    look = np.full(len(frame), LOOKS.index("range"), np.int64)
    rows = _inside(analysis, start, end)
    marks = Marks(start, end, names.numbers(frame["name"]), look)
    return marks.take(rows), frame["thread"].to_numpy()[rows]


def _calls(analysis: Analysis, names: Names) -> tuple[Marks, Times]:
    frame = analysis.trace.api
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    role = frame["role"].to_physical().fill_null(ROLES.index("api")).to_numpy().astype(np.int64)
    marks = Marks(
        start,
        end,
        names.numbers(frame["name"]),
        role + LOOKS.index(f"call_{ROLES[0]}"),
        {cost: _cost(analysis, cost) for cost in COSTS},
        {"correlation": frame["correlation"].to_numpy()},
    )
    rows = _inside(analysis, start, end)
    return marks.take(rows), frame["thread"].to_numpy()[rows]


def _cost(analysis: Analysis, cost: str) -> Times:
    """Return what each API call waited, starved or let the GPU idle, in ns."""
    values = np.zeros(len(analysis.trace.api), np.int64)
    for use in (analysis.host.sync, analysis.host.implicit_sync):
        values[use.frame["api"].to_numpy()] = use.frame[cost].to_numpy()
    return values
