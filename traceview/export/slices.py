"""All events as slices of tracks, for the timeline formats, and the copy throughput as counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceview.export.contents import ExportContents
from traceview.export.tracks import Tracks, assign_lanes, crossing_rows
from traceview.intervals import Times
from traceview.measure.activity import Activity
from traceview.model.devices import CAUSES
from traceview.model.trace import CLASSES, KINDS, MEMORIES, ROLES, SOURCES

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

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
