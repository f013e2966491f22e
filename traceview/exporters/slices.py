"""All events as slices of tracks, for the timeline formats, and the copy throughput as counters.

A track is one row in a viewer: a process with its threads, a GPU with its streams and its idle time. Viewers draw a
track correctly only if its events nest, so events that overlap go to separate lanes of the track.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceview.exporters.contents import ExportContents
from traceview.intervals import Times
from traceview.measure.activity import Activity
from traceview.model.analysis import CAUSES
from traceview.model.trace import CLASSES, KINDS, MEMORIES, ROLES, SOURCES

if TYPE_CHECKING:
    from polars._typing import PolarsDataType


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
    lanes[rows] = _lanes_of_sorted(*_ranks(start[rows], end[rows], group[rows], distinct=True))
    return lanes


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
    begins, ends = _ranks(start[order], end[order], group[order], distinct=False)
    by_end = np.argsort(ends, kind="stable")
    ordered = ends[by_end]
    # Among the events that end inside this one, an event earlier in `order` also began earlier, so it crosses.
    low, high = np.searchsorted(ordered, begins, side="right"), np.searchsorted(ordered, ends, side="left")
    queries = np.flatnonzero(high > low)
    earliest = -_range_maxima(-by_end, low[queries], high[queries])
    rows: Times = np.sort(order[queries[earliest < queries]])
    return rows


def _ranks(start: Times, end: Times, group: Times, *, distinct: bool) -> tuple[Times, Times]:
    """Return ranks of the start and end times, with each group after the one before it.

    Equal times have equal ranks; if `distinct`, ends come before starts, and all ranks differ.
    """
    count = len(start)
    times, groups = np.concatenate([start, end]), np.concatenate([group, group])
    order = np.lexsort((np.repeat([1, 0], count), times, groups))
    times, groups = times[order], groups[order]
    later = np.full(2 * count, distinct)
    later[1:] |= (times[1:] != times[:-1]) | (groups[1:] != groups[:-1])
    later[:1] = False
    rank = np.empty(2 * count, np.int64)
    rank[order] = np.cumsum(later)
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


CATEGORIES = ("kernel", "communication", "graph", "copy", "memset", "cuda_api", "nvtx", "idle")
# The order of causes inside a gap. All lengths are exact; the positions of the last two are exact, too.
ORDER_IN_GAP = ("unknown", "host", "api", "memory", "blocking_copy", "sync", "profiler", "launch", "queued")
NUMBERS = ("correlation", "bytes", "gap", "collective")
TEXTS = ("kind", "memory", "role", "domain")
SLICES: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "track": pl.Int32,  # Track.id
    "category": pl.UInt8,  # index in CATEGORIES
    "name": pl.UInt32,  # index in SliceBuilder.texts
    "flow": pl.Int32,  # number of the first of `flows` arrows that begin or end here
    "flows": pl.Int32,
    **dict.fromkeys(NUMBERS, pl.Int64),  # null if the slice has none
    **dict.fromkeys(TEXTS, pl.UInt32),  # index in SliceBuilder.texts; null if the slice has none
}
MAX_RATE = 1e15  # bytes/s; above any real copy, so that sums over a damaged capture do not overflow
Columns = dict[str, pl.Series | Times]


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter. Each value holds from its time in `at` (ns, ascending) to the next."""

    track: int  # Track.id
    at: Times
    value: Times  # bytes a second


class SliceBuilder:
    """Builds slices part by part. `tracks.created` and `texts` grow with each part."""

    def __init__(self, contents: ExportContents) -> None:
        self.contents = contents
        self.tracks = Tracks(contents)
        self.texts: list[str] = []

    def parts(self) -> Iterator[pl.DataFrame]:
        """Yield slices with the columns of SLICES, except columns that are null in the whole part.

        All slices of a track are in one part. They nest, and are sorted by (track, start, longest first).
        """
        launched, calls = _flow_numbers(self.contents)
        for device in self.contents.activities:
            yield _sorted_frame([_idle_slices(self, device)])
        yield _sorted_frame([_operation_slices(self, launched)])
        yield _sorted_frame(_host_slices(self, calls))

    def counters(self) -> Iterator[Counter]:
        """Yield the copy throughput of each device, one counter for each kind of copy."""
        for device in self.contents.activities:
            yield from _throughput(self.contents, device.device, self.tracks)

    def add_texts(self, column: pl.Series) -> pl.Series:
        """Add the categories of an Enum column to `texts`, and return the index of each value in `texts`."""
        assert isinstance(column.dtype, pl.Enum)
        first = len(self.texts)
        self.texts.extend(column.dtype.categories)
        return (column.to_physical().cast(pl.Int64) + first).cast(pl.UInt32)


def _sorted_frame(parts: Sequence[Columns]) -> pl.DataFrame:
    frames = [
        pl.DataFrame([pl.Series(name, values).cast(SLICES[name]) for name, values in part.items()]) for part in parts
    ]
    return (
        pl.concat(frames, how="diagonal")
        .with_columns(pl.col("flow", "flows").fill_null(0), length=pl.col("start") - pl.col("end"))
        .sort("track", "start", "length", maintain_order=True)
        .drop("length")
    )


def _flow_numbers(contents: ExportContents) -> tuple[tuple[Times, Times], tuple[Times, Times]]:
    """Number the arrows from launches to their operations.

    Returns (first, count) of each operation, and (first, count) of each call. The arrows of a call have consecutive
    numbers.
    """
    launch = contents.operations["launch"].fill_null(-1).to_numpy()
    order = np.argsort(launch, kind="stable")
    order = order[np.searchsorted(launch[order], 0) :]
    number = np.zeros(len(launch), np.int64)
    number[order] = np.arange(1, len(order) + 1)
    call = contents.api["row"].to_numpy()
    first = np.searchsorted(launch[order], call)
    count = np.searchsorted(launch[order], call, side="right") - first
    return (number, (number > 0).astype(np.int64)), (first + 1, count)


def _operation_slices(builder: SliceBuilder, flows: tuple[Times, Times]) -> Columns:
    frame = builder.contents.operations
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    stream = frame["stream"].to_numpy().astype(np.int64)
    track = _track_ids(builder.tracks.stream, stream, assign_lanes(start, end, stream))
    source = frame["source"].to_physical().to_numpy()
    category = np.array([CATEGORIES.index({"memcpy": "copy"}.get(name, name)) for name in SOURCES], np.uint8)[source]
    is_communication = frame["class"].to_physical().to_numpy() == CLASSES.index("communication")
    category[is_communication] = CATEGORIES.index("communication")
    number = builder.contents.collective
    collective = (
        {} if number is None else {"collective": pl.Series(number, dtype=pl.Int64).set(pl.Series(number < 0), None)}
    )
    return {
        **collective,
        "start": start,
        "end": end,
        "track": track,
        "category": category,
        "name": builder.add_texts(frame["name"]),
        "flow": flows[0],
        "flows": flows[1],
        "correlation": frame["correlation"].cast(pl.Int64),
        "bytes": frame.select(pl.when(pl.col("source").is_in(["memcpy", "memset"])).then("bytes"))["bytes"],
        "kind": builder.add_texts(frame["kind"].cast(pl.Enum(KINDS))),
        "memory": builder.add_texts(frame["memory"].cast(pl.Enum(MEMORIES))),
    }


def _track_ids(track_id: Callable[..., int], *keys: Times) -> Times:
    """Return the track id for each row of `keys`. Calls `track_id` once for each distinct combination."""
    sizes = [int(key.max(initial=0)) + 1 for key in keys]
    _, first, place = np.unique(np.ravel_multi_index(keys, sizes), return_index=True, return_inverse=True)
    ids: Times = np.array([track_id(*(int(key[row]) for key in keys)) for row in first], np.int64)[place]
    return ids


def _host_slices(builder: SliceBuilder, flows: tuple[Times, Times]) -> tuple[Columns, Columns]:
    """Return the slices of ranges and of calls. Events that do not nest go to extra tracks of their thread."""
    contents = builder.contents
    start, end, thread = (
        np.concatenate([contents.ranges[name].to_numpy(), contents.api[name].to_numpy()]).astype(np.int64)
        for name in ("start", "end", "thread")
    )
    is_call = np.repeat([0, 1], [len(contents.ranges), len(contents.api)])
    track = _track_ids(builder.tracks.thread, thread)
    out = crossing_rows(start, end, thread)
    if len(out):
        lane = assign_lanes(start[out], end[out], 2 * thread[out] + is_call[out])
        track[out] = _track_ids(builder.tracks.aside, thread[out], is_call[out], lane)
    domain = contents.ranges["domain"]
    ranges: Columns = {
        "start": contents.ranges["start"],
        "end": contents.ranges["end"],
        "track": track[: len(contents.ranges)],
        "category": np.full(len(contents.ranges), CATEGORIES.index("nvtx"), np.uint8),
        "name": builder.add_texts(contents.ranges["name"]),
        "domain": builder.add_texts(domain).set(domain.cast(pl.String) == "", None),
    }
    calls: Columns = {
        "start": contents.api["start"],
        "end": contents.api["end"],
        "track": track[len(contents.ranges) :],
        "category": np.full(len(contents.api), CATEGORIES.index("cuda_api"), np.uint8),
        "name": builder.add_texts(contents.api["name"]),
        "flow": flows[0],
        "flows": flows[1],
        "correlation": contents.api["correlation"].cast(pl.Int64),
        "role": builder.add_texts(contents.api["role"].cast(pl.Enum(ROLES))),
    }
    return ranges, calls


def _idle_slices(builder: SliceBuilder, device: Activity) -> Columns:
    """Return the idle gaps of a device, one slice for each cause in each gap."""
    frame = builder.contents.gaps(device).frame
    lengths = np.stack([frame[name].to_numpy() for name in ORDER_IN_GAP], axis=1)
    end = (frame["start"].to_numpy()[:, None] + np.cumsum(lengths, axis=1)).reshape(-1)
    lengths = lengths.reshape(-1)
    rows = np.flatnonzero(lengths)
    cause = np.array([CAUSES.index(name) for name in ORDER_IN_GAP])[rows % len(ORDER_IN_GAP)]
    first = len(builder.texts)
    builder.texts.extend(CAUSES)
    return {
        "start": (end - lengths)[rows],
        "end": end[rows],
        "track": np.full(len(rows), builder.tracks.idle(device.device)),
        "category": np.full(len(rows), CATEGORIES.index("idle")),
        "name": cause + first,
        "flow": np.zeros(len(rows), np.int64),
        "flows": np.zeros(len(rows), np.int64),
        "gap": rows // len(ORDER_IN_GAP),
    }


def _throughput(contents: ExportContents, device: int, tracks: Tracks) -> Iterator[Counter]:
    """Yield a counter for each kind of copy of a device (a row of Trace.devices).

    Its value is the summed rate of all copies under way, in bytes a second.
    """
    copies = contents.operations.filter((pl.col("device") == device) & pl.col("kind").is_not_null())
    copies = copies.filter(pl.col("end") > pl.col("start"))
    for kind in copies["kind"].cast(pl.String).unique().sort():
        mine = copies.filter(pl.col("kind").cast(pl.String) == kind)
        # A copy that the window cuts keeps the rate of the full copy.
        uncut = contents.trace.operations[mine["row"].to_numpy()]
        length = (uncut["end"] - uncut["start"]).to_numpy()
        rate = np.rint(np.clip(mine["bytes"].to_numpy() / length * 1e9, 0, MAX_RATE)).astype(np.int64)
        change = (
            pl.DataFrame(
                {
                    "at": np.concatenate([mine["start"].to_numpy(), mine["end"].to_numpy()]),
                    "change": np.concatenate([rate, -rate]),
                }
            )
            .group_by("at")
            .agg(pl.col("change").sum())
            .sort("at")
        )
        at, value = change["at"].to_numpy(), np.cumsum(change["change"].to_numpy())
        yield Counter(tracks.counter(device, f"{kind} bytes/s"), at, value)
