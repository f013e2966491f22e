"""The events of a capture for a timeline: in memory or, for a capture in parts, in files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.analysis import Analysis, DeviceUse, HostUse, SyncUse
from traceview.model.charts import Charts
from traceview.model.sizes import CounterSeries
from traceview.model.timeline.marks import ALL, Marks, NameColumn, Names, Rows, counted, used, used_texts
from traceview.model.timeline.rows import (
    LOOKS,
    OVERLAP_LANES,
    WORDS,
    Bands,
    bands,
    idle_lane,
    overlap_lanes,
    work_codes,
)
from traceview.model.timeline.stored import AllMarks
from traceview.model.timeline.sums import StoredSums
from traceview.model.trace import ROLES, Trace, Window
from traceview.model.whatif import Combinations

COSTS = ("waited", "starved", "refill")
MAX_CALLS = 10
ClassTimes = Mapping[str, int]  # ns by class of work


def _rows_inside(window: Window | None, own: bool, start: Times, end: Times) -> Rows:
    """Return the rows inside the window; a part, which copies nothing, without a window.

    If `own`, the window is a part, and rows that start before it belong to the part before.
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


def overlap_ids(device: DeviceUse) -> list[str]:
    """Return the ids of the lanes of a device's work by class, in the order of OVERLAP_LANES."""
    return [f"o:{device.device}:{lane}" for lane in range(len(OVERLAP_LANES))]


def idle_id(device: DeviceUse) -> str:
    """Return the id of the lane of a device's gaps."""
    return f"d:{device.device}"


def stream_id(stream: int) -> str:
    """Return the id of the lane of the operations of a row of Trace.streams."""
    return f"s:{stream}"


def call_id(thread: int) -> str:
    """Return the id of the lane of the API calls of a row of Trace.threads."""
    return f"t:{thread}"


class TraceLanes(NamedTuple):
    """The lanes of a capture in memory, or of a part of it."""

    trace: Trace
    host: HostUse
    work: Mapping[int, Bands]
    names: Names
    operations: Owners
    operation_name: NameColumn
    look: NDArray[np.uint8]
    api: Owners
    call_name: NameColumn

    @classmethod
    def from_trace(
        cls, trace: Trace, host: HostUse, work: Mapping[int, Bands], names: Names, own: bool = False
    ) -> TraceLanes:
        """Collect the events inside the window; `work` comes from `bands`. `own`: of a part (_rows_inside)."""
        operations, calls, window = trace.operations, trace.api, trace.window
        return cls(
            trace,
            host,
            work,
            names,
            Owners.from_frame(window, operations, "stream", own),
            names.column(operations["name"]),
            work_codes(operations),
            Owners.from_frame(window, calls, "thread", own),
            names.column(calls["name"]),
        )

    def every(self, devices: Sequence[DeviceUse]) -> dict[str, AllMarks]:
        """Return all lanes by id."""
        lanes: dict[str, AllMarks] = {}
        for device in devices:
            lanes |= zip(overlap_ids(device), self.overlap(device), strict=True)
            lanes[idle_id(device)] = self.idle(device)
        lanes |= {stream_id(row): self.stream(row) for row in used(self.operations.owner).tolist()}
        return lanes | {call_id(row): self.calls(row) for row in used(self.api.owner).tolist()}

    def overlap(self, device: DeviceUse) -> tuple[Marks, ...]:
        """Return the work of a device by class, in the order of OVERLAP_LANES."""
        return overlap_lanes(self.work[device.device], self.names)

    def idle(self, device: DeviceUse) -> Marks:
        """Return the gaps of a device."""
        return idle_lane(self.trace.operations, device, self.names)

    def stream(self, stream: int) -> Marks:
        """Return the operations of a row of Trace.streams."""
        rows = self.operations.rows_of(stream)
        columns = ("start", "end", "bytes", "correlation", "memory", "shape")
        start, end, size, correlation, memory, shape = (self.trace.operations[name] for name in columns)
        return Marks(
            start.to_numpy()[rows],
            end.to_numpy()[rows],
            self.operation_name.numbers(rows),
            self.look[rows],
            {"bytes": size.to_numpy()[rows]},
            # 0 means none; a column of zeros is left out.
            {
                "correlation": correlation.to_numpy()[rows],
                "host_memory": (memory.to_physical().cast(pl.UInt8) + 1).fill_null(0).to_numpy()[rows],
                "shape": shape.to_numpy()[rows],
            },
        )

    def calls(self, thread: int) -> Marks:
        """Return the API calls of a row of Trace.threads."""
        rows, frame = self.api.rows_of(thread), self.trace.api
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

    def _costs(self, rows: Rows, count: int) -> dict[str, Times]:
        """Return the costs of API calls in ns, by name; empty where they have none."""
        costs: dict[str, Times] = {}
        for use in (self.host.sync, self.host.implicit_sync):
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


class TimelineEvents(NamedTuple):
    """The events of a capture: the time that its timeline covers, the lanes and the names of their marks.

    `lanes` have a mark for each event of the GPU and each API call, by id: overlap_ids, idle_id, stream_id, call_id.
    `exposed` has the exposed ns of each class of work, by device (row of Trace.devices) in its window and in its steady
    part. `worst_calls` are the start and end of the costliest blocking calls. `sums` are those of lanes in files.
    """

    span: Window
    names: Names
    lanes: Mapping[str, AllMarks]
    exposed: Mapping[int, tuple[ClassTimes, ClassTimes]]
    worst_calls: Sequence[tuple[int, int]]
    sums: StoredSums | None = None

    @classmethod
    def from_trace(cls, trace: Trace, devices: Sequence[DeviceUse], host: HostUse) -> TimelineEvents:
        """Return the events of a complete trace; `devices` and `host` have the frames of gaps and calls."""
        work = bands(trace, devices)
        names = names_of_events((*used_texts(trace.operations["name"]), *used_texts(trace.api["name"])))
        lanes = TraceLanes.from_trace(trace, host, work, names)
        exposed = {device.device: exposed_times(device, work[device.device]) for device in devices}
        calls = [worst_calls(use) for use in (host.sync, host.implicit_sync)]
        return cls(trace.span, names, lanes.every(devices), exposed, call_places(calls))


class PageInputs(NamedTuple):
    """What a page shows of a capture: its analysis, and what is measured for a page alone.

    `other` is the analysis of the other one of steady part and window, None where they are the same time. `projected`
    has the ranges on the GPU (PROJECTED), `stacks` those of threads by time: start, end, stack (row of
    HostEvidence.stacks) and thread, `combinations` what changes would give.
    """

    analysis: Analysis
    other: Analysis | None
    charts: Charts
    projected: pl.DataFrame
    counters: Sequence[CounterSeries]
    stacks: pl.DataFrame
    events: TimelineEvents
    combinations: Combinations | None = None

    @property
    def parts(self) -> tuple[Analysis, ...]:
        """The analysis, and that of the other part."""
        return (self.analysis,) if self.other is None else (self.analysis, self.other)


def names_of_events(texts: Iterable[str]) -> Names:
    """Return the names of operations and calls, and of the bands of devices. Names of other rows get higher numbers."""
    return Names.from_texts((*texts, *WORDS.values(), ""))


def exposed_times(device: DeviceUse, work: Bands) -> tuple[ClassTimes, ClassTimes]:
    """Return the exposed ns of each class of work in the device's window and in its steady part."""
    whole, steady = (
        {band.name: band.exposed_ns(window) for band in work} for window in (device.window, device.steady.window)
    )
    return whole, steady


def worst_calls(use: SyncUse) -> pl.DataFrame:
    """Return start, end and cost of the costliest calls."""
    return costliest(use.frame.select("start", "end", "cost"))


def costliest(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the MAX_CALLS costliest calls; among equally costly ones, the first."""
    return calls[np.argsort(-calls["cost"].to_numpy(), kind="stable")[:MAX_CALLS]]


def call_places(calls: Sequence[pl.DataFrame]) -> list[tuple[int, int]]:
    """Return the start and the end of calls."""
    return [(start, end) for frame in calls for start, end in frame.select("start", "end").iter_rows()]
