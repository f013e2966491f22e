"""Rows of events: a stream's operations, a thread's NVTX ranges by depth, a thread's CUDA API calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.analysis import Analysis
from traceview.model.devices import DeviceUse
from traceview.model.trace import ROLES, Window
from traceview.report.timeline.marks import ALL, Marks, NameColumn, Names, Rows, counted
from traceview.report.timeline.rows import LOOKS, Bands, Group, TimelineRow, idle_lane, overlap_lanes, work_codes
from traceview.report.timeline.samples import sample_marks
from traceview.report.timeline.stored import AllMarks

MAX_DEPTH = 11
COSTS = ("waited", "starved", "refill")


def _rows_inside(window: Window | None, own: bool, start: Times, end: Times) -> Rows:
    """Return the rows inside the window; a slice, which copies nothing, without a window.

    If `own`, the window is a time slice, and rows that start before it belong to the slice before.
    """
    if window is None:
        return ALL
    return np.flatnonzero((start < window.end) & ((start if own else end) >= window.start))


@dataclass(frozen=True, slots=True)
class Owners:
    """The events inside the window, and the row of the stream or thread that owns each."""

    rows: Rows
    owner: NDArray[np.int32]  # owner of each of `rows`

    @classmethod
    def from_frame(cls, window: Window | None, frame: pl.DataFrame, column: str, own: bool = False) -> Owners:
        """Find the owners of a frame's events inside a window (see _rows_inside)."""
        rows = _rows_inside(window, own, *(frame[name].to_numpy() for name in ("start", "end")))
        return cls(rows, frame[column].to_numpy()[rows])

    def count(self, owners: int) -> Times:
        """Return how many events each owner has."""
        return counted(self.owner, owners)

    def rows_of(self, owner: int) -> Rows:
        """Return the rows of one owner's events."""
        mine = self.owner == owner
        if mine.all():
            return self.rows
        at = np.flatnonzero(mine)
        return at if isinstance(self.rows, slice) else self.rows[at]


class EventLanes(Protocol):
    """The lanes of the rows that have a mark for each event of the GPU and each API call."""

    def overlap(self, device: DeviceUse) -> tuple[AllMarks, ...]:
        """Return the work of a device by class, in the order of OVERLAP_LANES."""

    def idle(self, device: DeviceUse) -> AllMarks:
        """Return the gaps of a device."""

    def stream(self, stream: int) -> AllMarks:
        """Return the operations of a row of Trace.streams."""

    def calls(self, thread: int) -> AllMarks:
        """Return the API calls of a row of Trace.threads."""

    def call_counts(self, threads: int) -> Times:
        """Return how many API calls each of `threads` rows of Trace.threads has."""


@dataclass(frozen=True, slots=True)
class TraceLanes:
    """The lanes of a capture in memory."""

    analysis: Analysis
    work: Mapping[int, Bands]
    names: Names
    operations: Owners
    operation_name: NameColumn
    look: NDArray[np.uint8]
    api: Owners
    call_name: NameColumn

    @classmethod
    def from_analysis(
        cls, analysis: Analysis, work: Mapping[int, Bands], names: Names, own: bool = False
    ) -> TraceLanes:
        """Collect the events inside the window; `work` comes from `bands`. `own`: of a time slice (_rows_inside)."""
        operations, calls, window = analysis.trace.operations, analysis.trace.api, analysis.trace.window
        return cls(
            analysis,
            work,
            names,
            Owners.from_frame(window, operations, "stream", own),
            names.column(operations["name"]),
            work_codes(analysis),
            Owners.from_frame(window, calls, "thread", own),
            names.column(calls["name"]),
        )

    def overlap(self, device: DeviceUse) -> tuple[Marks, ...]:
        """Return the work of a device by class, in the order of OVERLAP_LANES."""
        return overlap_lanes(self.work[device.device], self.names)

    def idle(self, device: DeviceUse) -> Marks:
        """Return the gaps of a device."""
        return idle_lane(self.analysis, device, self.names)

    def stream(self, stream: int) -> Marks:
        """Return the operations of a row of Trace.streams."""
        rows = self.operations.rows_of(stream)
        columns = ("start", "end", "bytes", "correlation", "memory", "shape")
        start, end, size, correlation, memory, shape = (self.analysis.trace.operations[name] for name in columns)
        return Marks(
            start.to_numpy()[rows],
            end.to_numpy()[rows],
            self.operation_name.numbers(rows),
            self.look[rows],
            {"bytes": size.to_numpy()[rows]},
            # 0 means none; a column of zeros is left out.
            {
                "correlation": correlation.to_numpy()[rows],
                "host_memory": _category_numbers(memory)[rows],
                "shape": shape.to_numpy()[rows],
            },
        )

    def calls(self, thread: int) -> Marks:
        """Return the API calls of a row of Trace.threads."""
        rows, frame = self.api.rows_of(thread), self.analysis.trace.api
        role = frame["role"].to_physical().cast(pl.UInt8).fill_null(ROLES.index("api")).to_numpy()
        start, end, correlation = (frame[name].to_numpy()[rows] for name in ("start", "end", "correlation"))
        return Marks(
            start,
            end,
            self.call_name.numbers(rows),
            role[rows] + np.uint8(LOOKS.index(f"call_{ROLES[0]}")),
            self._costs(rows, len(start)),
            {"correlation": correlation},
        )

    def call_counts(self, threads: int) -> Times:
        """Return how many API calls each of `threads` rows of Trace.threads has."""
        return self.api.count(threads)

    def _costs(self, rows: Rows, count: int) -> dict[str, Times]:
        """Return the costs of API calls in ns, by name; empty where they have none."""
        costs: dict[str, Times] = {}
        for use in (self.analysis.host.sync, self.analysis.host.implicit_sync):
            at = use.frame["api"].to_numpy()
            known: Rows = ALL
            if not isinstance(rows, slice):
                if not count:
                    continue
                place = np.minimum(np.searchsorted(rows, at), count - 1)
                here = np.flatnonzero(rows[place] == at)
                at, known = place[here], here
            for cost in COSTS if len(at) else ():
                costs.setdefault(cost, np.zeros(count, np.int64))[at] = use.frame[cost].to_numpy()[known]
        return costs


def stream_rows(analysis: Analysis, device: DeviceUse, lanes: EventLanes) -> Iterator[TimelineRow]:
    """Yield the device's streams, busiest first; unused streams come last, folded."""
    several = len(device.process_ids) > 1
    for use in sorted(device.streams, key=lambda use: (-use.busy_ns, use.stream)):
        marks = lanes.stream(use.stream)
        note = f"process {use.process_id}" if several else ""
        yield TimelineRow("stream", f"s:{use.stream}", use.label, note, (marks,), len(marks), process=use.process_id)
    used = {use.stream for use in device.streams}
    for row, (owner, label) in enumerate(analysis.trace.streams.select("device", "label").iter_rows()):
        if owner == device.device and row not in used:
            yield TimelineRow("stream", f"s:{row}", label, "unused", (), more=True)


def _category_numbers(column: pl.Series) -> NDArray[np.uint8]:
    """Return the numbers of categories from 1; 0 for null."""
    numbers: NDArray[np.uint8] = (column.to_physical().cast(pl.UInt8) + 1).fill_null(0).to_numpy()
    return numbers


@dataclass(frozen=True, slots=True)
class HostRows:
    """The rows of threads: API calls, stack samples and NVTX ranges."""

    analysis: Analysis
    lanes: EventLanes
    ranges: Owners
    range_name: NameColumn
    samples: Mapping[int, Marks]  # by thread

    @classmethod
    def from_analysis(cls, analysis: Analysis, names: Names, lanes: EventLanes, start: int, end: int) -> HostRows:
        """Collect the ranges inside the window, and the samples inside [start, end)."""
        ranges = analysis.trace.ranges
        owners = Owners.from_frame(analysis.trace.window, ranges, "thread")
        return cls(analysis, lanes, owners, names.column(ranges["name"]), sample_marks(analysis, names, start, end))

    def groups(self) -> Iterator[Group]:
        """Yield a group for each process, the thread with most events first."""
        threads = self.analysis.trace.threads
        calls = self.lanes.call_counts(len(threads))
        count = self.ranges.count(len(threads)) + calls
        process = threads["process"].to_numpy()
        for process_id in sorted({int(process[row]) for row in np.flatnonzero(count)}):
            mine = [int(row) for row in np.argsort(-count, kind="stable") if process[row] == process_id and count[row]]
            rows = tuple(row for thread in mine for row in self._rows(thread, bool(calls[thread])))
            yield Group(f"process {process_id}", "", rows)

    def _rows(self, thread: int, has_calls: bool) -> Iterator[TimelineRow]:
        name, tid, process = self.analysis.trace.threads.select("name", "tid", "process").row(thread)
        label, part = name or f"thread {tid}", f"t:{thread}"
        if has_calls:
            calls = self.lanes.calls(thread)
            yield TimelineRow(
                "call", f"t:{thread}", label, f"API {tid}", (calls,), len(calls), process=process, part=part
            )
        if thread in self.samples:
            marks = self.samples[thread]
            row, text = f"k:{thread}", f"{label}, stacks"
            yield TimelineRow("sample", row, text, "samples", (marks,), len(marks), process=process, part=part)
        ranges = self._ranges(self.ranges.rows_of(thread))
        for depth, lane in enumerate(by_depth(ranges)):
            text = f"{label}, NVTX" if depth == 0 else ""
            row = f"n:{thread}:{depth}"
            yield TimelineRow("range", row, text, f"depth {depth}", (lane,), len(lane), process=process, part=part)

    def _ranges(self, rows: Rows) -> Marks:
        frame = self.analysis.trace.ranges
        start, end = (frame[name].to_numpy()[rows] for name in ("start", "end"))
        look = np.full(len(start), LOOKS.index("range"), np.uint8)
        return Marks(start, end, self.range_name.numbers(rows), look)


def by_depth(marks: Marks) -> list[Marks]:
    """Split ranges by depth; the deepest share the last lane."""
    if not bool((marks.start[1:] > marks.start[:-1]).all()):
        marks = marks.take(np.lexsort((-marks.end, marks.start)))
    depth = _depth(marks.start, marks.end)
    levels = [np.flatnonzero(depth == level) for level in range(int(depth.max(initial=-1)) + 1)]
    return [marks.take(rows if len(rows) < len(marks) else ALL) for rows in levels if len(rows)]


def _depth(start: Times, end: Times) -> Times:
    """Return how many ranges of the thread were open when each range began; ranges by start, longest first."""
    ended = np.searchsorted(np.sort(end), start, side="right")
    depth: Times = np.clip(np.arange(len(start)) - ended, 0, MAX_DEPTH)
    return depth


def projected_rows(analysis: Analysis, names: Names) -> dict[int, list[TimelineRow]]:
    """Return the projected ranges of each device, a row for each depth on their threads."""
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
        names.column(ranges["name"]).numbers(owner),
        np.full(len(frame), LOOKS.index("range"), np.uint8),
        {"operations": frame["operations"].to_numpy()},
    )
    return {
        int(row): _projected_device_rows(analysis, marks, depth[owner], device == row, int(row))
        for row in np.unique(device)
    }


def _projected_device_rows(
    analysis: Analysis, marks: Marks, depth: Times, mine: NDArray[np.bool_], device: int
) -> list[TimelineRow]:
    name = analysis.trace.devices["id"][device]
    rows = []
    for place, level in enumerate(np.unique(depth[mine])):
        lane = (marks.take(np.flatnonzero(mine & (depth == level))),)
        text = "NVTX (GPU projection)" if place == 0 else ""
        rows.append(TimelineRow("projected", f"p:{name}:{level}", text, f"depth {level}", lane, part=f"p:{name}"))
    return rows
