"""Every event as a slice of a row, for the formats that are timelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceview.export.contents import Contents
from traceview.export.lanes import crossing, flat
from traceview.export.throughput import Counter, counters
from traceview.export.tracks import Tracks
from traceview.intervals import Times
from traceview.measure.activity import Activity
from traceview.model.analysis import CAUSES
from traceview.model.trace import CLASSES, KINDS, MEMORIES, ROLES, SOURCES

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

CATEGORIES = ("kernel", "communication", "graph", "copy", "memset", "cuda_api", "nvtx", "idle")
# Where in a gap each cause stands: the lengths are exact, and so are the places of the last two.
ORDER_IN_GAP = ("unknown", "host", "api", "memory", "blocking_copy", "sync", "profiler", "launch", "queued")
NUMBERS = ("correlation", "bytes", "gap")
TEXTS = ("kind", "memory", "role", "domain")
SLICES: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "track": pl.Int32,  # Track.id
    "category": pl.UInt8,  # place in CATEGORIES
    "name": pl.UInt32,  # place in Timeline.texts
    "flow": pl.Int32,  # the first of `flows` arrows that begin or end here, each numbered once
    "flows": pl.Int32,
    **dict.fromkeys(NUMBERS, pl.Int64),  # null where the slice has none
    **dict.fromkeys(TEXTS, pl.UInt32),  # place in Timeline.texts; null where the slice has none
}
Columns = dict[str, pl.Series | Times]


class Timeline:
    """Slices, part by part, with the rows (`tracks.made`) and texts that they need: both grow while parts are made."""

    def __init__(self, of: Contents) -> None:
        self.of = of
        self.tracks = Tracks(of)
        self.texts: list[str] = []

    def parts(self) -> Iterator[pl.DataFrame]:
        """Yield slices (columns of SLICES, those that no slice has excepted), each row whole in one part.

        Slices of one row nest, and are in order of (row, start, longest first).
        """
        launched, calls = _flows(self.of)
        for device in self.of.activities:
            yield _frame([_idle(self, device)])
        yield _frame([_operations(self, launched)])
        yield _frame(_host(self, calls))

    def counters(self) -> Iterator[Counter]:
        """Yield what is no slice but a value over time."""
        for device in self.of.activities:
            yield from counters(self.of, device.device, self.tracks)

    def place(self, column: pl.Series) -> pl.Series:
        """Return where the text of each value of an Enum column stands in `texts`."""
        assert isinstance(column.dtype, pl.Enum)
        first = len(self.texts)
        self.texts.extend(column.dtype.categories)
        return (column.to_physical().cast(pl.Int64) + first).cast(pl.UInt32)


def _frame(parts: Sequence[Columns]) -> pl.DataFrame:
    frames = [
        pl.DataFrame([pl.Series(name, values).cast(SLICES[name]) for name, values in part.items()]) for part in parts
    ]
    return (
        pl.concat(frames, how="diagonal")
        .with_columns(pl.col("flow", "flows").fill_null(0), length=pl.col("start") - pl.col("end"))
        .sort("track", "start", "length", maintain_order=True)
        .drop("length")
    )


def _flows(of: Contents) -> tuple[tuple[Times, Times], tuple[Times, Times]]:
    """Number the arrows from launches to their work: (first, count) of each operation and of each call.

    The arrows of one call follow each other.
    """
    launch = of.operations["launch"].fill_null(-1).to_numpy()
    order = np.argsort(launch, kind="stable")
    order = order[np.searchsorted(launch[order], 0) :]
    number = np.zeros(len(launch), np.int64)
    number[order] = np.arange(1, len(order) + 1)
    call = of.api["row"].to_numpy()
    first = np.searchsorted(launch[order], call)
    count = np.searchsorted(launch[order], call, side="right") - first
    return (number, (number > 0).astype(np.int64)), (first + 1, count)


def _operations(line: Timeline, flows: tuple[Times, Times]) -> Columns:
    frame = line.of.operations
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    stream = frame["stream"].to_numpy().astype(np.int64)
    lane = flat(start, end, stream)
    track = _spread(line.tracks.stream, stream, lane)
    source = frame["source"].to_physical().to_numpy()
    category = np.array([CATEGORIES.index({"memcpy": "copy"}.get(name, name)) for name in SOURCES], np.uint8)[source]
    is_communication = frame["class"].to_physical().to_numpy() == CLASSES.index("communication")
    category[is_communication] = CATEGORIES.index("communication")
    return {
        "start": start,
        "end": end,
        "track": track,
        "category": category,
        "name": line.place(frame["name"]),
        "flow": flows[0],
        "flows": flows[1],
        "correlation": frame["correlation"].cast(pl.Int64),
        "bytes": frame.select(pl.when(pl.col("source").is_in(["memcpy", "memset"])).then("bytes"))["bytes"],
        "kind": line.place(frame["kind"].cast(pl.Enum(KINDS))),
        "memory": line.place(frame["memory"].cast(pl.Enum(MEMORIES))),
    }


def _spread(make: Callable[..., int], *keys: Times) -> Times:
    """Return the row for each place of `keys`, asking `make` once for each distinct combination."""
    sizes = [int(key.max(initial=0)) + 1 for key in keys]
    _, first, place = np.unique(np.ravel_multi_index(keys, sizes), return_index=True, return_inverse=True)
    found: Times = np.array([make(*(int(key[row]) for key in keys)) for row in first], np.int64)[place]
    return found


def _host(line: Timeline, flows: tuple[Times, Times]) -> tuple[Columns, Columns]:
    """Put ranges and calls into the rows of their threads, and what does not nest there into rows beside them."""
    of = line.of
    start, end, thread = (
        np.concatenate([of.ranges[name].to_numpy(), of.api[name].to_numpy()]).astype(np.int64)
        for name in ("start", "end", "thread")
    )
    is_call = np.repeat([0, 1], [len(of.ranges), len(of.api)])
    track = _spread(line.tracks.thread, thread)
    out = crossing(start, end, thread)
    if len(out):
        lane = flat(start[out], end[out], 2 * thread[out] + is_call[out])
        track[out] = _spread(line.tracks.aside, thread[out], is_call[out], lane)
    ranges: Columns = {
        "start": of.ranges["start"],
        "end": of.ranges["end"],
        "track": track[: len(of.ranges)],
        "category": np.full(len(of.ranges), CATEGORIES.index("nvtx"), np.uint8),
        "name": line.place(of.ranges["name"]),
        "domain": line.place(of.ranges["domain"]).set(of.ranges["domain"].cast(pl.String) == "", None),
    }
    calls: Columns = {
        "start": of.api["start"],
        "end": of.api["end"],
        "track": track[len(of.ranges) :],
        "category": np.full(len(of.api), CATEGORIES.index("cuda_api"), np.uint8),
        "name": line.place(of.api["name"]),
        "flow": flows[0],
        "flows": flows[1],
        "correlation": of.api["correlation"].cast(pl.Int64),
        "role": line.place(of.api["role"].cast(pl.Enum(ROLES))),
    }
    return ranges, calls


def _idle(line: Timeline, device: Activity) -> Columns:
    """Return the gaps of a device, cut by cause."""
    frame = line.of.gaps(device).frame
    lengths = np.stack([frame[name].to_numpy() for name in ORDER_IN_GAP], axis=1)
    end = (frame["start"].to_numpy()[:, None] + np.cumsum(lengths, axis=1)).reshape(-1)
    lengths = lengths.reshape(-1)
    rows = np.flatnonzero(lengths)
    cause = np.array([CAUSES.index(name) for name in ORDER_IN_GAP])[rows % len(ORDER_IN_GAP)]
    first = len(line.texts)
    line.texts.extend(CAUSES)
    return {
        "start": (end - lengths)[rows],
        "end": end[rows],
        "track": np.full(len(rows), line.tracks.idle(device.device)),
        "category": np.full(len(rows), CATEGORIES.index("idle")),
        "name": cause + first,
        "flow": np.zeros(len(rows), np.int64),
        "flows": np.zeros(len(rows), np.int64),
        "gap": rows // len(ORDER_IN_GAP),
    }
