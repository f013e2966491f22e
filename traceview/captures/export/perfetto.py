"""Perfetto's native trace: TracePacket messages with render stages, slices and counters, their arguments and arrows.

GPU work is in Perfetto's GPU data model (gpu_stages.py); everything else is track events with their tracks.

The field numbers are from protos/perfetto/trace in Perfetto's repository. Timestamps are ns on the capture's clock, so
that `ts` in trace_processor equals the time in the report. A capture with negative times is shifted to begin at 0.
A trace of several captures has a track for each, above its GPUs, with a slice that states the capture's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np
import polars as pl

from traceview.captures.export.contents import ExportContents
from traceview.captures.export.gpu_stages import ARGUMENTS as STAGE_ARGUMENTS
from traceview.captures.export.gpu_stages import (
    GpuNumbers,
    counter_packets,
    counter_series,
    gpu_info,
    stage_frame,
    stage_parts,
    stage_specifications,
)
from traceview.captures.export.slices import CATEGORIES, NUMBERS, TEXTS, SliceBuilder, Track
from traceview.captures.export.wire import Chunk, encoded, matrix, message, messages, text, uint, uints
from traceview.intervals import Times
from traceview.model.frozen import dataclass
from traceview.model.trace import KINDS, MEMORIES

BLOCK = 1 << 16  # slices or render stages
MAX_NAMES_PER_PACKET = 1 << 12
# TracePacket
TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS, DESCRIPTOR = 8, 10, 11, 12, 13, 60
STATE_CLEARED, NEEDS_STATE = 1, 2
# TrackDescriptor
UUID, NAME, PROCESS, THREAD, PARENT, ORDERING, RANK, MERGE, MERGE_KEY = 1, 2, 3, 4, 5, 11, 12, 15, 17
EXPLICIT, BY_KEY = 3, 3
# TrackEvent
CATEGORY_IIDS, ANNOTATION, TYPE, NAME_IID, TRACK_UUID = 3, 4, 9, 10, 11
GPU_CORRELATION, SUBMITTED = 3000, 1
BEGIN, END = 1, 2
# DebugAnnotation
ANNOTATION_NAME_IID, INT_VALUE, STRING_VALUE_IID = 1, 4, 17
# InternedData
EVENT_CATEGORIES, EVENT_NAMES, ANNOTATION_NAMES, ANNOTATION_STRINGS = 1, 2, 3, 29
# The same fields with a text in place of an interned id
CATEGORY, EVENT_NAME, ANNOTATION_NAME, STRING_VALUE, PROCESS_NAME = 22, 23, 10, 6, 6
ARGUMENTS = (*NUMBERS, *TEXTS)
MAX_PID = 1 << 22  # the largest on Linux


@dataclass(frozen=True, slots=True)
class PlacedCapture:
    """A capture in a trace of several. `to_trace` returns its times as times of the trace; `clock` describes them."""

    contents: ExportContents
    label: str
    to_trace: Callable[[Times], Times]
    clock: Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class _Place:
    """What keeps the packets, tracks and arrows of one capture apart from those of others.

    Tracks have their own sequence. A thread described on the event sequence would become the thread of all its events.
    """

    to_trace: Callable[[Times], Times]
    first_track: int = 0
    root: int = 0
    gpus: GpuNumbers = field(default_factory=GpuNumbers)

    @property
    def events(self) -> bytes:
        return uint(SEQUENCE, 2 * self.gpus.capture + 1)

    @property
    def tracks(self) -> bytes:
        return uint(SEQUENCE, 2 * self.gpus.capture + 2)

    def packet(self, *chunks: bytes) -> bytes:
        return message(1, self.events, *chunks)


def pieces(contents: ExportContents) -> Iterator[bytes]:
    """Yield the trace of one capture in pieces."""
    origin = min(contents.first, 0)
    yield from _capture_pieces(SliceBuilder(contents), _Place(lambda times: times - origin))


def merged_pieces(captures: Iterable[PlacedCapture], count: int) -> Iterator[bytes]:
    """Yield the trace of `count` captures in pieces. Each capture is dropped before the next is taken."""
    used_pids: set[int] = set()
    first_track = count
    first_gpu = 0
    for number, capture in enumerate(captures):
        pids = _distinct_pids(capture.contents, used_pids)
        gpus = GpuNumbers(number, first_gpu, capture.label, pids)
        place = _Place(capture.to_trace, first_track, number + 1, gpus)
        builder = SliceBuilder(capture.contents)
        yield _clock_slice(capture, place)
        yield from _capture_pieces(builder, place)
        first_track += len(builder.tracks.created)
        first_gpu += len(capture.contents.trace.devices)


def _distinct_pids(contents: ExportContents, used: set[int]) -> dict[int, int]:
    """Return a number for each process that no earlier capture uses, which is its own number if possible.

    Processes of two containers or nodes may have the same number. trace_processor would take them for one process.
    """
    pids = {}
    for process in contents.trace.threads["process"].unique().sort():
        pid = process
        if pid in used:
            pid = max(MAX_PID, *used) + 1
        used.add(pid)
        pids[process] = pid
    return pids


def _clock_slice(capture: PlacedCapture, place: _Place) -> bytes:
    """Return the track of a capture, and a slice on it that lasts as long as the capture and describes its clock."""
    descriptor = uint(UUID, place.root) + text(NAME, place.gpus.label)
    descriptor += uint(ORDERING, EXPLICIT) + uint(RANK, place.root)
    window = [device.window for device in capture.contents.activities]
    first, last = min(each.start for each in window), max(each.end for each in window)
    begin, end = (int(time) for time in capture.to_trace(np.array([first, last], np.int64)))
    event = uint(TRACK_UUID, place.root) + text(CATEGORY, "clock")
    event += text(EVENT_NAME, "clock")
    for name, value in capture.clock.items():
        field = text(STRING_VALUE, value) if isinstance(value, str) else uint(INT_VALUE, value)
        event += message(ANNOTATION, text(ANNOTATION_NAME, name), field)
    return b"".join(
        (
            message(1, place.tracks, message(DESCRIPTOR, descriptor)),
            place.packet(uint(FLAGS, STATE_CLEARED)),
            place.packet(uint(TIMESTAMP, begin), message(TRACK_EVENT, uint(TYPE, BEGIN), event)),
            place.packet(uint(TIMESTAMP, end), message(TRACK_EVENT, uint(TYPE, END), uint(TRACK_UUID, place.root))),
        )
    )


def _capture_pieces(builder: SliceBuilder, place: _Place) -> Iterator[bytes]:
    created, described = builder.tracks.created, 0
    event = place.gpus.events(builder.contents)
    launched = event[builder.launched]
    yield place.packet(uint(FLAGS, STATE_CLEARED), gpu_info(builder.contents, place.gpus))
    yield _interned_packet(place, EVENT_CATEGORIES, CATEGORIES, range(len(CATEGORIES)))
    yield _interned_packet(place, ANNOTATION_NAMES, ARGUMENTS, range(len(ARGUMENTS)))
    yield from _stage_packets(builder, place)
    for slices in builder.frames():
        for track in created[described:]:
            yield message(1, place.tracks, message(DESCRIPTOR, *_descriptor(track, place)))
        described = len(created)
        yield from _interned_texts(place, builder.texts, slices)
        for first in range(0, len(slices), BLOCK):
            yield _slice_packets(slices[first : first + BLOCK], place, launched)
    yield from _counter_packets(builder.contents, place)


def _stage_packets(builder: SliceBuilder, place: _Place) -> Iterator[bytes]:
    """Yield the render stages of a capture, and before them what they refer to."""
    contents = builder.contents
    for entry in stage_specifications(contents, place.gpus):
        yield place.packet(uint(FLAGS, NEEDS_STATE), message(INTERNED, entry))
    names = builder.add_enum(contents.operations["name"])
    yield from _interned_names(place, builder.texts, names)
    words = {word: number + 1 for number, word in enumerate((*KINDS, *MEMORIES), len(builder.texts))}
    builder.add_texts(tuple(words))
    yield _interned_packet(place, ANNOTATION_STRINGS, builder.texts, [number - 1 for number in words.values()])
    frame = stage_frame(contents, place.gpus, names.cast(pl.Int64) + 1)
    optional = [pl.col(name).is_not_null() for name in ("kernel", "waits_for", "grid_x", *STAGE_ARGUMENTS)]

    def packets(alike: pl.DataFrame) -> list[Chunk]:
        return _packet(place, alike["start"].to_numpy(), stage_parts(alike, words))

    for first in range(0, len(frame), BLOCK):
        yield encoded(frame[first : first + BLOCK], optional, packets)


def _descriptor(track: Track, place: _Place) -> Iterator[bytes]:
    yield uint(UUID, place.first_track + track.id)
    if track.parent:
        yield uint(PARENT, place.first_track + track.parent)
    elif place.root and track.kind == "device":
        yield uint(PARENT, place.root)
    yield uint(RANK, place.first_track + track.id)
    yield uint(ORDERING, EXPLICIT)
    if track.kind == "process":
        name = text(PROCESS_NAME, f"{place.gpus.label} {track.name}") if place.gpus.label else b""
        yield message(PROCESS, uint(1, place.gpus.pid(track.process)), name)
        return
    if track.kind == "thread":
        pid = place.gpus.pid(track.process)
        yield message(THREAD, uint(1, pid), uint(2, track.tid), text(5, track.name))
        return
    yield text(NAME, track.name)
    # A viewer merges the lanes of one stream, but not two streams of the same name.
    yield uint(MERGE, BY_KEY)
    yield uint(MERGE_KEY, place.first_track + track.lane_of)


def _interned_texts(place: _Place, texts: Sequence[str], slices: pl.DataFrame) -> Iterator[bytes]:
    """Yield the texts that these slices use. A text's id is its index + 1."""
    yield from _interned_names(place, texts, slices["name"])
    for name in TEXTS:
        if name in slices.columns:
            yield _interned_packet(
                place, ANNOTATION_STRINGS, texts, slices[name].unique().drop_nulls().sort().to_list()
            )


def _interned_names(place: _Place, texts: Sequence[str], names: pl.Series) -> Iterator[bytes]:
    used = names.unique().sort()
    for first in range(0, len(used), MAX_NAMES_PER_PACKET):
        yield _interned_packet(place, EVENT_NAMES, texts, used[first : first + MAX_NAMES_PER_PACKET].to_list())


def _interned_packet(place: _Place, field: int, texts: Sequence[str], indices: Sequence[int]) -> bytes:
    entries = [message(field, uint(1, index + 1), text(2, texts[index])) for index in indices]
    return place.packet(uint(FLAGS, NEEDS_STATE), message(INTERNED, *entries))


def _counter_packets(contents: ExportContents, place: _Place) -> Iterator[bytes]:
    for number, counter in enumerate(counter_series(contents)):
        descriptor, at, samples = counter_packets(counter, number, place.gpus.first_gpu + (counter.device or 0))
        yield place.packet(uint(TIMESTAMP, int(place.to_trace(at[:1])[0])), descriptor)
        yield matrix(len(at), _packet(place, at, samples)).tobytes()


def _packet(place: _Place, at: Times, chunks: Sequence[Chunk]) -> list[Chunk]:
    head = place.events + uint(FLAGS, NEEDS_STATE)
    return messages(1, [head, *uints(TIMESTAMP, place.to_trace(at)), *chunks])


def _slice_packets(block: pl.DataFrame, place: _Place, launched: Times) -> bytes:
    """Return the begin and end packets of slices.

    Slices with the same arguments and the same number of launched operations are encoded together. The end of a slice
    directly follows its begin: trace_processor sorts by time with a stable sort, and an end closes the slice that began
    last.
    """
    known = [pl.col(name).is_not_null() for name in ARGUMENTS if name in block.columns]
    alike = [*known, *(pl.col(name) for name in ("launched",) if name in block.columns)]
    return encoded(block, alike, lambda same: _begin_end_pairs(same, place, launched))


def _begin_end_pairs(alike: pl.DataFrame, place: _Place, launched: Times) -> list[Chunk]:
    """Return a begin and an end packet for each slice; all have the same arguments and launch as many operations."""
    track = uints(TRACK_UUID, place.first_track + alike["track"].to_numpy().astype(np.int64))
    begin: list[Chunk] = [
        uint(TYPE, BEGIN),
        *track,
        *uints(CATEGORY_IIDS, alike["category"].to_numpy() + 1),
        *uints(NAME_IID, alike["name"].to_numpy() + 1),
    ]
    for index, name in enumerate(ARGUMENTS):
        if name in alike.columns and alike[name].null_count() == 0:
            value = alike[name].to_numpy()
            field = uints(STRING_VALUE_IID, value + 1) if name in TEXTS else uints(INT_VALUE, value)
            begin += messages(ANNOTATION, [uint(ANNOTATION_NAME_IID, index + 1), *field])
    if "launched" in alike.columns and (count := int(alike["launched"][0])):
        first = alike["first_launched"].to_numpy()
        submitted = [chunk for row in range(count) for chunk in uints(SUBMITTED, launched[first + row])]
        begin += messages(GPU_CORRELATION, submitted)
    return [
        chunk
        for name, event in (("start", begin), ("end", [uint(TYPE, END), *track]))
        for chunk in _packet(place, alike[name].to_numpy(), messages(TRACK_EVENT, event))
    ]
