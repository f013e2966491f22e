"""The GPU work of one device inside the window, as sorted arrays and unions. All other measures start from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.errors import NoGpuWorkError, RequestError
from traceview.intervals import Intervals, Rows, Times
from traceview.measure.shared_work import codes_of, once_per_frame, rows_of_devices
from traceview.model.program import capture_advice
from traceview.model.trace import CLASSES, KINDS, MEMORIES, SOURCES, Trace, Window

COMPUTE = CLASSES.index("compute")
COMMUNICATION = CLASSES.index("communication")
COPY = CLASSES.index("copy")
KERNEL = SOURCES.index("kernel")
MAX_LISTED_NAMES = 5

Value = TypeVar("Value", bound=np.generic)


class Activity(NamedTuple):
    """The GPU work of one device inside its window.

    `rows` are the device's rows of Trace.operations, ascending. `start` and `end` are their times, clipped to the
    window; `codes` index CLASSES. `busy` is the union of all work; `busy_rows` are the rows that begin its members.
    `nonempty_rows` are the rows of all the device's operations that have a length, in and out of the window, and
    `nonempty_start` their unclipped starts, ascending: one of them ends each idle gap.
    """

    device: int
    window: Window
    rows: Rows
    start: Times
    end: Times
    codes: NDArray[np.uint8]
    busy: Intervals
    busy_rows: Rows
    compute: Intervals
    communication: Intervals
    nonempty_rows: Rows
    nonempty_start: Times

    def clip(self, window: Window) -> Activity:
        """Return the work inside a narrower window."""
        if window == self.window:
            return self
        chosen = self._members_inside(window)
        start, end = self.start[chosen], self.end[chosen]
        busy = intervals.clip(self.busy, window.start, window.end)
        members = int(np.searchsorted(self.busy.end, window.start, side="right"))
        return self._replace(
            window=window,
            rows=self.rows[chosen],
            start=np.maximum(start, window.start) if len(start) and start[0] < window.start else start,
            end=np.minimum(end, window.end) if len(end) and end.max() > window.end else end,
            codes=self.codes[chosen],
            busy=busy,
            busy_rows=self.busy_rows[members : members + len(busy.start)],
            compute=intervals.clip(self.compute, window.start, window.end),
            communication=intervals.clip(self.communication, window.start, window.end),
        )

    def _members_inside(self, window: Window) -> slice | Times:
        if not window.length:
            return slice(0, 0)
        first = int(np.searchsorted(self.start, window.start))
        # Work without length at the end of all work belongs to the window that ends there.
        last = int(np.searchsorted(self.start, window.end, "right" if window.end == self.window.end else "left"))
        running = np.flatnonzero(self.end[:first] > window.start)
        # Mostly, only the last work before the window still runs when it begins. A slice then copies nothing.
        if len(running) == 0 or running[0] == first - len(running):
            return slice(first - len(running), last)
        return np.append(running, np.arange(first, last))

    def idle_gaps(self) -> tuple[Intervals, Rows]:
        """Return the gaps (maximal times of the window without GPU work), and the row of the operation after each."""
        gaps, members = intervals.gaps_between(self.busy, self.window.start, self.window.end)
        if members.stop <= len(self.busy_rows):
            return gaps, self.busy_rows[members]
        after = self.next_operation(np.array([self.window.end], np.int64))
        return gaps, np.append(self.busy_rows, after)[members]

    def select(self, column: NDArray[Value]) -> NDArray[Value]:
        """Return the values of a column of Trace.operations at `rows`; without a copy if no row is missing."""
        return column[intervals.adjoining(self.rows)]

    def next_operation(self, moments: Times, keep: NDArray[np.bool_] | None = None) -> Rows:
        """Return the row of the first operation with a length that starts at or after each moment; -1 for none.

        `keep` is a mask over `nonempty_rows` that restricts the search, for example to one stream.
        """
        starts = self.nonempty_start if keep is None else self.nonempty_start[keep]
        rows = self.nonempty_rows if keep is None else self.nonempty_rows[keep]
        place = np.searchsorted(starts, moments, side="left")
        following = np.full(len(moments), -1, np.int32)
        some = np.flatnonzero(place < len(rows))
        following[some] = rows[place[some]]
        return following


class Copies(NamedTuple):
    """A device's copies: their ascending indices into its Activity, and each one's code of KINDS and of MEMORIES."""

    members: Times
    kind: NDArray[np.uint8]
    memory: NDArray[np.uint8]

    @classmethod
    def from_activity(cls, trace: Trace, work: Activity) -> Copies:
        """Find the copies of one device."""
        index = np.flatnonzero(work.codes == COPY)
        return cls(index, *(codes_of(trace.operations, name)[work.rows[index]] for name in ("kind", "memory")))

    def select(self, kind: str, memory: str) -> Times:
        """Return the indices of the copies of one kind and memory."""
        chosen: Times = self.members[(self.kind == KINDS.index(kind)) & (self.memory == MEMORIES.index(memory))]
        return chosen

    def groups(self) -> Iterator[tuple[str, str, Times]]:
        """Yield each kind and memory that has copies, in the order of KINDS and MEMORIES, with the copies' indices."""
        pair = self.kind * np.uint8(len(MEMORIES)) + self.memory
        for code, rows in intervals.rows_by_code(pair):
            kind, memory = divmod(code, len(MEMORIES))
            yield KINDS[kind], MEMORIES[memory], self.members[rows]


class ShapeSums(NamedTuple):
    """The kernels of an Activity, summed over each of Trace.shapes: their number and their lengths in ns.

    A shape without kernels has the count 0. `overlap` is whether a kernel starts before the previous one ends.
    """

    counts: Times
    total: Times
    low: Times
    high: Times
    overlap: bool

    @classmethod
    def from_activity(cls, trace: Trace, work: Activity) -> ShapeSums:
        """Sum the kernels."""
        shapes = work.select(trace.operations["shape"].to_numpy())
        rows = np.flatnonzero(shapes)  # shape 0 stands for work that is not a kernel
        size, shape, start, end = len(trace.shapes), shapes[rows].astype(np.intp), work.start[rows], work.end[rows]
        total, high = np.zeros((2, size), np.int64)
        low = np.full(size, np.iinfo(np.int64).max)
        for sums, combine in ((total, np.add), (low, np.minimum), (high, np.maximum)):
            combine.at(sums, shape, end - start)
        overlap = bool((start[1:] < end[:-1]).any())
        return cls(np.bincount(shape, minlength=size), total, low, high, overlap)


def device_activity(trace: Trace, device: int) -> Activity | None:
    """Return the work of one device; None if it has none inside the trace's window.

    Without Trace.window, the window runs from the device's first start to its last end
    (docs/definitions.md "GPU work"). This work is collected once.
    """
    if trace.window is not None:
        return _collect_activity(trace, device)
    known = _complete_activities(trace.operations)
    if device not in known:
        known[device] = _collect_activity(trace, device)
    return known[device]


@once_per_frame
def _complete_activities(_operations: pl.DataFrame) -> dict[int, Activity | None]:
    """Return the known work of devices in all operations, to which device_activity adds."""
    return {}


def _collect_activity(trace: Trace, device: int) -> Activity | None:
    operations = trace.operations
    rows = rows_of_devices(operations).get(device, np.zeros(0, np.int32))
    start = operations["start"].to_numpy()
    end = operations["end"].to_numpy()
    if len(rows) < len(start):
        start, end = start[rows], end[rows]
    nonempty = end > start
    nonempty_rows, nonempty_start = (rows, start) if nonempty.all() else (rows[nonempty], start[nonempty])
    if trace.window is not None:
        inside = overlaps_window(start, end, trace.window)
        rows, start, end = rows[inside], start[inside], end[inside]
        start = np.maximum(start, trace.window.start)
        end = np.minimum(end, trace.window.end)
    if len(rows) == 0:
        return None
    window = trace.window or Window(int(start[0]), int(end.max()))
    codes = codes_of(operations, "class")
    if len(rows) < len(codes):
        codes = codes[rows]
    busy, first = intervals.ordered_union(start, end)
    return Activity(
        device=device,
        window=window,
        rows=rows,
        start=start,
        end=end,
        codes=codes,
        busy=busy,
        busy_rows=first.astype(np.int32) if len(rows) == len(operations) else rows[first],
        compute=_class_union(codes == COMPUTE, start, end, busy),
        communication=_class_union(codes == COMMUNICATION, start, end, busy),
        nonempty_rows=nonempty_rows,
        nonempty_start=nonempty_start,
    )


def _class_union(chosen: NDArray[np.bool_], start: Times, end: Times, busy: Intervals) -> Intervals:
    rows = np.flatnonzero(chosen)
    if len(rows) == len(start):
        return busy
    return intervals.union(start[rows], end[rows], ordered=True)


def overlaps_window(start: Times, end: Times, window: Window, last: int | None = None) -> NDArray[np.bool_]:
    """Return a mask of the events that overlap a window.

    An event without length counts if it starts inside. One at `last`, the end of all work, belongs to the window that
    ends there.
    """
    overlaps = (start < window.end) & (end > window.start)
    before = start <= window.end if window.end == last else start < window.end
    points = (start == end) & (start >= window.start) & before
    inside: NDArray[np.bool_] = overlaps | points
    return inside


def active_devices(trace: Trace, only: str | None = None) -> tuple[Activity, ...]:
    """Return the work of every device inside the trace's window, or of the device that `only` names.

    `only` is a device's id ("GPU 0") or its CUDA ordinal ("0"). The result is empty for a capture with NVTX ranges
    and no GPU work. Raises NoGpuWorkError if the capture has neither, or has no GPU work for `only`, and RequestError
    if the window or the device leaves no GPU work.
    """
    if trace.operations.is_empty() and only is None and not trace.ranges.is_empty():
        return ()  # the host's figures remain
    if trace.operations.is_empty():
        raise NoGpuWorkError(f"{trace.info.file}: {no_gpu_work(trace)}")
    chosen = chosen_devices(trace, only)
    activities = tuple(work for index in chosen if (work := device_activity(trace, index)) is not None)
    if not activities:
        start, end = int(trace.operations["start"].to_numpy()[0]), int(trace.operations["end"].to_numpy().max())
        raise RequestError(
            f"{trace.info.file}: no GPU work in the chosen window; "
            f"the GPU worked from {start} ns to {end} ns on the capture's clock"
        )
    return activities


def chosen_devices(trace: Trace, only: str | None) -> list[int]:
    """Return the rows of the devices that `only` names, or of all; see active_devices. It needs no operations."""
    chosen = [index for index in range(len(trace.devices)) if only is None or _has_name(trace, index, only)]
    if not chosen and only is not None:
        known = ", ".join(trace.devices["id"].to_list())
        raise RequestError(f"{trace.info.file}: no device is called {only!r}; the capture has {known}")
    return chosen


def no_gpu_work(trace: Trace) -> str:
    """Return the contents of a capture without GPU work, and the remedy; if calls launch work, the profiler lost it."""
    counts = {"ranges": len(trace.ranges), "CUDA API calls": len(trace.api)}
    texts = [f"{count} {name}" for name, count in counts.items() if count]
    contents = ", ".join(texts) or "no CUDA calls and no ranges either"
    if failed := trace.info.trust.failed:
        return f"the capture holds no GPU work ({contents}): {failed}"
    lost = any(note.id == "lost_launches" for note in trace.info.health)
    how_to = capture_advice(trace.info.profiler)
    if lost:
        again = f"its profiler got no events from the GPU; use {how_to['newer']}"
    else:
        again = "its calls launch nothing; capture the process that does" if len(trace.api) else "capture it"
    return f"the capture holds no GPU work ({contents}); {again} with: {how_to['gpu']}"


def _has_name(trace: Trace, device: int, name: str) -> bool:
    row = trace.devices.row(device, named=True)
    return name in (row["id"], str(row["device_id"]))


def window_of_range(trace: Trace, name: str) -> Window:
    """Return the time from the first start to the last end of the NVTX ranges with this name.

    Raises RequestError, with the most frequent names, if no range has it.
    """
    matches = trace.ranges.filter(pl.col("name").cast(pl.String) == name)
    if matches.is_empty():
        counts = trace.ranges["name"].cast(pl.String).value_counts(sort=True)
        known = ", ".join(map(repr, counts["name"].head(MAX_LISTED_NAMES).to_list())) or "no ranges"
        raise RequestError(f"{trace.info.file}: no range is called {name!r}; the capture has {known}")
    return Window(int(matches["start"].to_numpy().min()), int(matches["end"].to_numpy().max()))
