"""The tracks of a timeline, and the lane of each event.

A track is one row in a viewer: a process with its threads, a GPU with its streams and its idle time. Viewers draw a
track correctly only if its events nest, so events that overlap go to separate lanes of the track.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from traceview.export.contents import ExportContents
from traceview.intervals import Times

IDLE = "idle, by cause"
ASIDE = ("NVTX ranges that cross others", "CUDA calls that cross others")


@dataclass(frozen=True, slots=True)
class Track:
    """One track. `id` counts from 1; `parent` is the id of the parent track, 0 for none.

    Lanes of one stream or thread have the same `name` and `lane_of`. `device` is a row of Trace.devices; `stream_id`
    and `context` are CUDA's ids.
    """

    id: int
    kind: str  # "process", "thread", "aside", "device", "idle", "stream" or "counter"
    name: str
    parent: int
    lane_of: int
    process: int = 0
    tid: int = 0
    device: int = -1
    stream_id: int = -1
    context: int = -1


@dataclass(slots=True)
class Tracks:
    """Creates each track on first use. Every method returns the id of a track."""

    contents: ExportContents
    created: list[Track] = field(default_factory=list)
    _ids: dict[tuple[object, ...], int] = field(default_factory=dict)

    def process(self, process: int) -> int:
        """Return the track of a process."""
        return self._id(("process", process), "process", f"process {process}", 0, process=process)

    def thread(self, thread: int) -> int:
        """Return the track of a thread (a row of Trace.threads)."""
        row = self.contents.trace.threads.row(thread, named=True)
        process, tid = row["process"], row["tid"]
        parent = self.process(process)
        return self._id(("thread", thread), "thread", row["name"] or f"thread {tid}", parent, process=process, tid=tid)

    def aside(self, thread: int, is_call: int, lane: int) -> int:
        """Return the track for events of a thread that do not nest in the thread's own track."""
        parent = self.thread(thread)
        process = self.contents.trace.threads["process"][thread]
        return self._id(("aside", thread, is_call, lane), "aside", ASIDE[is_call], parent, process=process)

    def device(self, device: int) -> int:
        """Return the track of a GPU (a row of Trace.devices)."""
        row = self.contents.trace.devices.row(device, named=True)
        return self._id(("device", device), "device", f"{row['id']} {row['name']}".strip(), 0, device=device)

    def idle(self, device: int) -> int:
        """Return the track of a GPU's idle time."""
        return self._id(("idle", device), "idle", IDLE, self.device(device), device=device)

    def counter(self, device: int, name: str) -> int:
        """Return the track of a GPU's counter."""
        return self._id(("counter", device, name), "counter", name, self.device(device), device=device)

    def stream(self, stream: int, lane: int) -> int:
        """Return the track of a lane of a stream (a row of Trace.streams)."""
        row = self.contents.trace.streams.row(stream, named=True)
        device, process = row["device"], row["process"]
        shared = len(self.contents.trace.devices["processes"][device]) > 1
        name = f"{row['label']} (process {process})" if shared else row["label"]
        ids = {"device": device, "stream_id": row["stream_id"], "context": row["context"]}
        return self._id(("stream", stream, lane), "stream", name, self.device(device), **ids)

    def _id(self, key: tuple[object, ...], kind: str, name: str, parent: int, **ids: int) -> int:
        track = self._ids.get(key)
        if track is None:
            track = len(self.created) + 1
            # The last item of a lane's key is the lane number; lane 0 is created first.
            lane_of = track if key[0] not in ("stream", "aside") else self._ids.get((*key[:-1], 0), track)
            self.created.append(Track(track, kind, name, parent, lane_of, **ids))
            self._ids[key] = track
        return track


def assign_lanes(start: Times, end: Times, group: Times) -> Times:
    """Return a lane for each event, so that events of one group and lane never overlap. Uses the fewest lanes.

    An event that overlaps nothing gets lane 0. So does an event of zero length, because it nests in any other event.
    """
    lanes = np.zeros(len(start), np.int64)
    long = np.flatnonzero(end > start)
    rows = long[np.lexsort((start[long], group[long]))]
    lanes[rows] = _lanes_of_sorted(*_distinct_ranks(start[rows], end[rows], group[rows]))
    return lanes


def _distinct_ranks(start: Times, end: Times, group: Times) -> tuple[Times, Times]:
    """Return distinct ranks of the start and end times, with each group after the one before it."""
    count = len(start)
    times = np.concatenate([start, end])
    groups = np.concatenate([group, group])
    # At equal times, ends come before starts.
    is_start = np.repeat([1, 0], count)
    order = np.lexsort((is_start, times, groups))
    rank = np.empty(2 * count, np.int64)
    rank[order] = np.arange(2 * count)
    return rank[:count], rank[count:]


def _lanes_of_sorted(start: Times, end: Times) -> Times:
    """Return lanes for events with distinct times, in order of start.

    Each event takes the lane that has been free for longest. Events that overlap, directly or through others, form a
    cluster; each cluster begins at lane 0.
    """
    count = len(start)
    if count == 0:
        return np.empty(0, np.int64)
    place = np.arange(count)
    reach = np.maximum.accumulate(end)
    first = np.append(True, start[1:] > reach[:-1])
    cluster = np.cumsum(first) - 1
    begin = np.flatnonzero(first)[cluster]
    by_end = np.argsort(end, kind="stable")
    depth = place + 1 - np.searchsorted(end[by_end], start)
    deepest = np.maximum.accumulate(depth + cluster * (count + 1)) - cluster * (count + 1)
    opens = np.append(True, deepest[1:] > deepest[:-1]) | first
    # Events that end before a cluster begins also come before it in by_end, so the cluster's ends count from there.
    source = np.where(opens, place, by_end[np.minimum(begin + (place - begin) - deepest, count - 1)])
    while not np.array_equal(source, source[source]):
        source = source[source]
    lanes: Times = (deepest - 1)[source]
    return lanes


def crossing_rows(start: Times, end: Times, group: Times) -> Times:
    """Return the rows of events that begin inside another event of their group and end after it.

    Without these rows, all events nest.
    """
    order = np.lexsort((-end, start, group))
    begins, ends = _dense_ranks(start[order], end[order], group[order])
    by_end = np.argsort(ends, kind="stable")
    ordered = ends[by_end]
    # Among the events that end inside this one, an event earlier in `order` also began earlier, so it crosses.
    low, high = np.searchsorted(ordered, begins, side="right"), np.searchsorted(ordered, ends, side="left")
    queries = np.flatnonzero(high > low)
    earliest = -_range_maxima(-by_end, low[queries], high[queries])
    rows: Times = np.sort(order[queries[earliest < queries]])
    return rows


def _dense_ranks(start: Times, end: Times, group: Times) -> tuple[Times, Times]:
    """Return ranks of the times, equal for equal times, with each group after the one before it."""
    count = len(start)
    times, groups = np.concatenate([start, end]), np.concatenate([group, group])
    order = np.lexsort((times, groups))
    times, groups = times[order], groups[order]
    new = np.append(False, (times[1:] != times[:-1]) | (groups[1:] != groups[:-1])) if count else np.empty(0, np.bool_)
    rank = np.empty(2 * count, np.int64)
    rank[order] = np.cumsum(new)
    return rank[:count], rank[count:]


def _range_maxima(values: Times, low: Times, high: Times) -> Times:
    """Return the largest of values[low:high] for each query. No query is empty."""
    largest = np.empty(len(low), np.int64)
    if len(low) == 0:
        return largest
    # A range is covered by two ranges, which may overlap, whose length is a power of two.
    power = np.frexp((high - low).astype(np.float64))[1] - 1
    table, width = values, 1
    for level in range(int(power.max()) + 1):
        rows = np.flatnonzero(power == level)
        largest[rows] = np.maximum(table[low[rows]], table[high[rows] - width])
        if width < len(table):
            table = np.maximum(table[:-width], table[width:])
        width *= 2
    return largest
