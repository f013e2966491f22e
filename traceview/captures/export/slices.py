"""What is no GPU work as slices of tracks: calls, ranges, ops, idle time and findings.

A track is one row in a viewer: a process with its threads, a GPU with its idle time. Viewers draw a track correctly
only if its events nest, so events that overlap go to separate lanes of the track.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceview.captures.export.contents import ExportContents
from traceview.intervals import Times
from traceview.measure.activity import Activity
from traceview.model.analysis import CAUSES
from traceview.model.findings import Finding
from traceview.model.frozen import dataclass
from traceview.model.stacks import SCOPE_KINDS
from traceview.model.trace import ROLES

if TYPE_CHECKING:
    from polars._typing import PolarsDataType


IDLE, FINDINGS = "idle, by cause", "findings"
ASIDE = ("NVTX ranges that cross others", "CUDA calls that cross others", "ops that cross others")


@dataclass(frozen=True, slots=True)
class Track:
    """One track. `id` counts from 1; `parent` is the id of the parent track, 0 for none.

    Lanes of one thread or finding have the same `name` and `lane_of`.
    """

    id: int
    kind: str  # "process", "thread", "device", or "plain"
    name: str
    parent: int
    lane_of: int
    process: int = 0
    tid: int = 0


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

    def aside(self, thread: int, source: int, lane: int) -> int:
        """Return the track for events of a thread that do not nest in the thread's own track."""
        parent = self.thread(thread)
        process = self.contents.trace.threads["process"][thread]
        return self._id(("aside", thread, source, lane), "plain", ASIDE[source], parent, process=process)

    def device(self, device: int) -> int:
        """Return the track of a GPU (a row of Trace.devices)."""
        return self._id(("device", device), "device", self.contents.device_name(device), 0)

    def idle(self, device: int) -> int:
        """Return the track of a GPU's idle time."""
        return self._id(("idle", device), "plain", IDLE, self.device(device))

    def finding(self, title: str, device: str | None, lane: int) -> int:
        """Return the track of a finding, in the group of those of its GPU, or of no GPU."""
        ids = self.contents.trace.devices["id"].to_list()
        above = self.device(ids.index(device)) if device in ids else 0
        parent = self._id(("group", above), "plain", FINDINGS, above)
        return self._id(("finding", parent, title, lane), "plain", title, parent)

    def _id(self, key: tuple[object, ...], kind: str, name: str, parent: int, **ids: int) -> int:
        track = self._ids.get(key)
        if track is None:
            track = len(self.created) + 1
            # The last item of a lane's key is the lane number; lane 0 is created first.
            lane_of = track if key[0] not in ("finding", "aside") else self._ids.get((*key[:-1], 0), track)
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


CATEGORIES = ("cuda_api", "nvtx", *SCOPE_KINDS, "idle", "finding")
# The order of causes inside a gap. All lengths are exact; the positions of the last two are exact, too.
ORDER_IN_GAP = ("unknown", "host", "api", "memory", "blocking_copy", "sync", "profiler", "launch", "queued")
NUMBERS = ("correlation", "gap", "sequence", "cost_ns", "saves_ns", "low_ns", "high_ns")
TEXTS = ("role", "domain", "finding", "severity", "remedy", "gain_source")
SLICES: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "track": pl.Int32,  # Track.id
    "category": pl.UInt8,  # index in CATEGORIES
    "name": pl.UInt32,  # index in SliceBuilder.texts
    "first_launched": pl.Int32,  # place in SliceBuilder.launched of the first of `launched` operations of a call
    "launched": pl.Int32,
    **dict.fromkeys(NUMBERS, pl.Int64),  # null if the slice has none
    **dict.fromkeys(TEXTS, pl.UInt32),  # index in SliceBuilder.texts; null if the slice has none
}
Columns = dict[str, pl.Series | Times]


class SliceBuilder:
    """Builds frames of slices. `tracks.created` and `texts` grow with each frame.

    `launched` has the rows of ExportContents.operations that have a launch, in order of their calls.
    """

    def __init__(self, contents: ExportContents) -> None:
        self.contents = contents
        self.tracks = Tracks(contents)
        self.texts: list[str] = []
        launch = contents.operations["launch"].fill_null(-1).to_numpy()
        order = np.argsort(launch, kind="stable")
        self.launched: Times = order[np.searchsorted(launch[order], 0) :]

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield slices with the columns of SLICES, except columns that are null in the whole frame.

        All slices of a track are in one frame. They nest, and are sorted by (track, start, longest first).
        """
        if findings := list(_finding_slices(self)):
            yield _sorted_frame(findings)
        for device in self.contents.activities:
            yield _sorted_frame([_idle_slices(self, device)])
        yield _sorted_frame(_host_slices(self))

    def add_enum(self, column: pl.Series) -> pl.Series:
        """Add the categories of an Enum column to `texts`, and return the index of each value in `texts`."""
        assert isinstance(column.dtype, pl.Enum)
        first = len(self.texts)
        self.texts.extend(column.dtype.categories)
        return (column.to_physical().cast(pl.Int64) + first).cast(pl.UInt32)

    def add_texts(self, texts: Sequence[str]) -> Times:
        """Add texts to `texts`, and return their indices."""
        self.texts.extend(texts)
        return np.arange(len(self.texts) - len(texts), len(self.texts))


def _sorted_frame(slices: Sequence[Columns]) -> pl.DataFrame:
    frames = [
        pl.DataFrame([pl.Series(name, values).cast(SLICES[name]) for name, values in each.items()]) for each in slices
    ]
    return (
        pl.concat(frames, how="diagonal")
        .with_columns(pl.col("^(first_)?launched$").fill_null(0), length=pl.col("start") - pl.col("end"))
        .sort("track", "start", "length", maintain_order=True)
        .drop("length")
    )


def _track_ids(track_id: Callable[..., int], *keys: Times) -> Times:
    """Return the track id for each row of `keys`. Calls `track_id` once for each distinct combination."""
    sizes = [int(key.max(initial=0)) + 1 for key in keys]
    _, first, place = np.unique(np.ravel_multi_index(keys, sizes), return_index=True, return_inverse=True)
    ids: Times = np.array([track_id(*(int(key[row]) for key in keys)) for row in first], np.int64)[place]
    return ids


def _host_slices(builder: SliceBuilder) -> list[Columns]:
    """Return the slices of ranges, calls and ops. Events that do not nest go to extra tracks of their thread."""
    contents = builder.contents
    frames = (contents.ranges, contents.api, contents.scopes)
    start, end, thread = (
        np.concatenate([frame[name].to_numpy() for frame in frames]).astype(np.int64)
        for name in ("start", "end", "thread")
    )
    source = np.repeat([0, 1, 2], [len(frame) for frame in frames])
    track = _track_ids(builder.tracks.thread, thread)
    out = crossing_rows(start, end, thread)
    if len(out):
        lane = assign_lanes(start[out], end[out], len(frames) * thread[out] + source[out])
        track[out] = _track_ids(builder.tracks.aside, thread[out], source[out], lane)
    calls = contents.api["row"].to_numpy()
    launch = contents.operations["launch"].gather(builder.launched).to_numpy()
    first, last = (np.searchsorted(launch, calls, side=side) for side in ("left", "right"))
    domain, kind = contents.ranges["domain"], contents.scopes["kind"].to_physical().to_numpy()
    own: tuple[Columns, ...] = (
        {
            "category": np.full(len(domain), CATEGORIES.index("nvtx")),
            "domain": builder.add_enum(domain).set(domain.cast(pl.String) == "", None),
        },
        {
            "category": np.full(len(calls), CATEGORIES.index("cuda_api")),
            "first_launched": first,
            "launched": last - first,
            "correlation": contents.api["correlation"].cast(pl.Int64),
            "role": builder.add_enum(contents.api["role"].cast(pl.Enum(ROLES))),
        },
        {"category": kind.astype(np.int64) + CATEGORIES.index(SCOPE_KINDS[0]), "sequence": contents.scopes["sequence"]},
    )
    return [
        {
            "start": frame["start"],
            "end": frame["end"],
            "track": track[source == number],
            "name": builder.add_enum(frame["name"]),
            **columns,
        }
        for number, (frame, columns) in enumerate(zip(frames, own, strict=True))
    ]


def _idle_slices(builder: SliceBuilder, device: Activity) -> Columns:
    """Return the idle gaps of a device, one slice for each cause in each gap."""
    frame = builder.contents.gaps(device).frame
    lengths = np.stack([frame[name].to_numpy() for name in ORDER_IN_GAP], axis=1)
    end = (frame["start"].to_numpy()[:, None] + np.cumsum(lengths, axis=1)).reshape(-1)
    lengths = lengths.reshape(-1)
    rows = np.flatnonzero(lengths)
    cause = np.array([CAUSES.index(name) for name in ORDER_IN_GAP])[rows % len(ORDER_IN_GAP)]
    return {
        "start": (end - lengths)[rows],
        "end": end[rows],
        "track": np.full(len(rows), builder.tracks.idle(device.device)),
        "category": np.full(len(rows), CATEGORIES.index("idle")),
        "name": builder.add_texts(CAUSES)[cause],
        "gap": rows // len(ORDER_IN_GAP),
    }


def _finding_slices(builder: SliceBuilder) -> Iterator[Columns]:
    """Yield the places of each finding, on a track with its title."""
    for finding in builder.contents.analysis.findings if builder.contents.analysis else ():
        yield from (_places_of(builder, each) for each in finding.by_device if each.evidence)


def _places_of(builder: SliceBuilder, finding: Finding) -> Columns:
    places, gain = finding.evidence, finding.gain
    start, end = (np.array([getattr(place, name) for place in places], np.int64) for name in ("start_ns", "end_ns"))
    first = builder.contents.first
    start, end = np.maximum(start, first), np.maximum(end, first)
    lanes = assign_lanes(start, end, np.zeros_like(start))
    numbers = {"saves_ns": gain.ns, "low_ns": gain.low_ns, "high_ns": gain.high_ns}
    texts = {"finding": finding.id, "severity": finding.severity, "remedy": finding.remedy, "gain_source": gain.source}
    return {
        "start": start,
        "end": end,
        "track": np.array([builder.tracks.finding(finding.title, finding.device, lane) for lane in lanes]),
        "category": np.full(len(places), CATEGORIES.index("finding")),
        "name": builder.add_texts([place.text for place in places]),
        "cost_ns": np.array([place.cost_ns for place in places], np.int64),
        **{name: np.full(len(places), value) for name, value in numbers.items()},
        **{name: np.repeat(builder.add_texts([value]), len(places)) for name, value in texts.items()},
    }
