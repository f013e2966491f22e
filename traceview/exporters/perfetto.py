"""Perfetto's native trace: TracePacket messages with the begin and end of slices, their tracks, arguments and arrows.

Messages are encoded in protobuf's wire format, a column at a time.

Messages of the same shape become a matrix of bytes with one message in each row. All varints of a column have the width
of the largest one (protobuf accepts padded varints). The messages of a matrix are therefore equally long, and no Python
code loops over them.

The field numbers are from protos/perfetto/trace in Perfetto's repository. Timestamps are ns on the capture's clock, so
that `ts` in trace_processor equals the time in the report. A capture with negative times is shifted to begin at 0.
A trace of several captures has a track for each, above its GPUs, with a slice that states the capture's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.exporters.contents import ExportContents
from traceview.exporters.slices import CATEGORIES, NUMBERS, TEXTS, Counter, SliceBuilder, Track
from traceview.intervals import Times

VARINT, FIXED64, BYTES = 0, 1, 2
Column = NDArray[np.uint8]  # (messages, bytes)
Part = bytes | Column  # the same bytes in every message, or a column


def number(value: int) -> bytes:
    """Return a varint; a negative number is encoded as its 64-bit two's complement, as in protobuf."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def key(field: int, kind: int) -> bytes:
    """Return the key of a field: its number and wire type."""
    return number(field << 3 | kind)


def uint(field: int, value: int) -> bytes:
    """Return a varint field."""
    return key(field, VARINT) + number(value)


def text(field: int, value: str) -> bytes:
    """Return a string field."""
    data = value.encode("utf-8", "replace")
    return key(field, BYTES) + number(len(data)) + data


def message(field: int, *parts: bytes) -> bytes:
    """Return a field that is a message."""
    data = b"".join(parts)
    return key(field, BYTES) + number(len(data)) + data


def varints(values: NDArray[np.integer[Any]]) -> Column:
    """Return the varints of a column, all of one width."""
    left = values.astype(np.int64).view(np.uint64)
    width = max(1, -(-int(left.max(initial=0)).bit_length() // 7))
    out = np.empty((len(left), width), np.uint8)
    for index in range(width):
        out[:, index] = left & np.uint64(0x7F)
        left = left >> np.uint64(7)
    out[:, :-1] |= 0x80
    return out


def uints(field: int, values: NDArray[np.integer[Any]]) -> list[Part]:
    """Return a varint field with a value for each message."""
    return [key(field, VARINT), varints(values)]


def fixed64s(field: int, values: NDArray[np.integer[Any]]) -> list[Part]:
    """Return a repeated fixed64 field; `values` has the shape (messages, repetitions)."""
    count, times = values.shape
    head = np.frombuffer(key(field, FIXED64), np.uint8)
    out = np.empty((count, times, len(head) + 8), np.uint8)
    out[:, :, : len(head)] = head
    out[:, :, len(head) :] = np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(count, times, 8)
    return [out.reshape(count, -1)]


def messages(field: int, parts: Sequence[Part]) -> list[Part]:
    """Return a field that is a message with these parts."""
    return [key(field, BYTES) + number(width(parts)), *parts]


def width(parts: Sequence[Part]) -> int:
    """Return the number of bytes of the parts in each message."""
    return sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)


def matrix(count: int, parts: Sequence[Part]) -> Column:
    """Return the matrix of `count` messages with these parts."""
    out = np.empty((count, width(parts)), np.uint8)
    at = 0
    for part in parts:
        data = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        out[:, at : at + data.shape[-1]] = data
        at += data.shape[-1]
    return out


def interleaved(count: int, groups: Sequence[tuple[NDArray[np.int64], Column]]) -> NDArray[np.uint8]:
    """Merge matrices of several widths into one byte array.

    Each group is (rows, matrix): the indices of its messages among the `count` messages, and their bytes.
    """
    if len(groups) == 1:
        return groups[0][1].reshape(-1)
    widths = np.zeros(count, np.int64)
    for rows, column in groups:
        widths[rows] = column.shape[1]
    begins = np.cumsum(widths) - widths
    out = np.empty(int(widths.sum()), np.uint8)
    for rows, column in groups:
        as_one = np.dtype((np.void, column.shape[1]))
        # A view of `out` with a message at every byte offset, so that each message is copied in one step.
        places = np.ndarray(len(out) - column.shape[1] + 1, as_one, out, strides=(1,))
        places[begins[rows]] = column.view(as_one).reshape(-1)
    return out


BLOCK = 1 << 16  # slices
MAX_NAMES_PER_PACKET = 1 << 12
# TracePacket
TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS, DESCRIPTOR = 8, 10, 11, 12, 13, 60
STATE_CLEARED, NEEDS_STATE = 1, 2
# TrackDescriptor
UUID, NAME, PROCESS, THREAD, PARENT, COUNTER, ORDERING, RANK, MERGE, MERGE_KEY = 1, 2, 3, 4, 5, 8, 11, 12, 15, 17
EXPLICIT, BY_KEY, BYTES_UNIT = 3, 3, 3
# TrackEvent
CATEGORY_IIDS, ANNOTATION, TYPE, NAME_IID, TRACK_UUID, COUNTER_VALUE, FLOW_IDS = 3, 4, 9, 10, 11, 30, 47
BEGIN, END, COUNT = 1, 2, 4
# DebugAnnotation
ANNOTATION_NAME_IID, INT_VALUE, STRING_VALUE_IID = 1, 4, 17
# InternedData
EVENT_CATEGORIES, EVENT_NAMES, ANNOTATION_NAMES, ANNOTATION_STRINGS = 1, 2, 3, 29
# The same fields with a text in place of an interned id
CATEGORY, EVENT_NAME, ANNOTATION_NAME, STRING_VALUE, PROCESS_NAME = 22, 23, 10, 6, 6
ARGUMENTS = (*NUMBERS, *TEXTS)
FLOWS_PER_CAPTURE = 1 << 32
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

    number: int
    to_trace: Callable[[Times], Times]
    first_track: int = 0
    root: int = 0
    label: str = ""
    pids: Mapping[int, int] | None = None

    @property
    def events(self) -> bytes:
        return uint(SEQUENCE, 2 * self.number + 1)

    @property
    def tracks(self) -> bytes:
        return uint(SEQUENCE, 2 * self.number + 2)

    def packet(self, *parts: bytes) -> bytes:
        return message(1, self.events, *parts)

    def pid(self, process: int) -> int:
        return process if self.pids is None else self.pids.get(process, process)


def pieces(contents: ExportContents) -> Iterator[bytes]:
    """Yield the trace of one capture in pieces."""
    origin = min(contents.first, 0)
    yield from _capture_pieces(SliceBuilder(contents), _Place(0, lambda times: times - origin))


def merged_pieces(captures: Iterable[PlacedCapture], count: int) -> Iterator[bytes]:
    """Yield the trace of `count` captures in pieces. Each capture is dropped before the next is taken."""
    used_pids: set[int] = set()
    first_track = count
    for number, capture in enumerate(captures):
        pids = _distinct_pids(capture.contents, used_pids)
        place = _Place(number, capture.to_trace, first_track, number + 1, capture.label, pids)
        builder = SliceBuilder(capture.contents)
        yield _clock_slice(capture, place)
        yield from _capture_pieces(builder, place)
        first_track += len(builder.tracks.created)


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
    descriptor = uint(UUID, place.root) + text(NAME, place.label)
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
            place.packet(
                uint(TIMESTAMP, end),
                message(TRACK_EVENT, uint(TYPE, END), uint(TRACK_UUID, place.root)),
            ),
        )
    )


def _capture_pieces(builder: SliceBuilder, place: _Place) -> Iterator[bytes]:
    created, described = builder.tracks.created, 0
    yield place.packet(uint(FLAGS, STATE_CLEARED))
    yield _interned_packet(place, EVENT_CATEGORIES, CATEGORIES, range(len(CATEGORIES)))
    yield _interned_packet(place, ANNOTATION_NAMES, ARGUMENTS, range(len(ARGUMENTS)))
    for slices in builder.parts():
        yield from _descriptors(created[described:], place)
        described = len(created)
        yield from _interned_texts(place, builder.texts, slices)
        for first in range(0, len(slices), BLOCK):
            yield _slice_packets(slices[first : first + BLOCK], place)
    for counter in builder.counters():
        yield from _descriptors(created[described:], place)
        described = len(created)
        yield _counter_packets(counter, place)


def _descriptors(tracks: Sequence[Track], place: _Place) -> Iterator[bytes]:
    return (message(1, place.tracks, message(DESCRIPTOR, *_descriptor(track, place))) for track in tracks)


def _descriptor(track: Track, place: _Place) -> Iterator[bytes]:
    yield uint(UUID, place.first_track + track.id)
    if track.parent:
        yield uint(PARENT, place.first_track + track.parent)
    elif place.root and track.kind == "device":
        yield uint(PARENT, place.root)
    yield uint(RANK, place.first_track + track.id)
    yield uint(ORDERING, EXPLICIT)
    if track.kind == "process":
        name = text(PROCESS_NAME, f"{place.label} {track.name}") if place.label else b""
        yield message(PROCESS, uint(1, place.pid(track.process)), name)
        return
    if track.kind == "thread":
        pid = place.pid(track.process)
        yield message(THREAD, uint(1, pid), uint(2, track.tid), text(5, track.name))
        return
    yield text(NAME, track.name)
    # A viewer merges the lanes of one stream, but not two streams of the same name.
    yield uint(MERGE, BY_KEY)
    yield uint(MERGE_KEY, place.first_track + track.lane_of)
    if track.kind == "counter":
        yield message(COUNTER, uint(3, BYTES_UNIT))


def _interned_texts(place: _Place, texts: Sequence[str], slices: pl.DataFrame) -> Iterator[bytes]:
    """Yield the texts that these slices use. A text's id is its index + 1."""
    used = slices["name"].unique().sort()
    for first in range(0, len(used), MAX_NAMES_PER_PACKET):
        yield _interned_packet(place, EVENT_NAMES, texts, used[first : first + MAX_NAMES_PER_PACKET].to_list())
    for name in TEXTS:
        if name in slices.columns:
            yield _interned_packet(
                place, ANNOTATION_STRINGS, texts, slices[name].unique().drop_nulls().sort().to_list()
            )


def _interned_packet(place: _Place, field: int, texts: Sequence[str], indices: Sequence[int]) -> bytes:
    entries = [message(field, uint(1, index + 1), text(2, texts[index])) for index in indices]
    return place.packet(uint(FLAGS, NEEDS_STATE), message(INTERNED, *entries))


def _counter_packets(counter: Counter, place: _Place) -> bytes:
    track = uint(TRACK_UUID, place.first_track + counter.track)
    event = [uint(TYPE, COUNT) + track, *uints(COUNTER_VALUE, counter.value)]
    return matrix(len(counter.at), _event_packet(place, counter.at, event)).tobytes()


def _event_packet(place: _Place, at: Times, event: list[Part]) -> list[Part]:
    head = place.events + uint(FLAGS, NEEDS_STATE)
    return messages(1, [head, *uints(TIMESTAMP, place.to_trace(at)), *messages(TRACK_EVENT, event)])


def _slice_packets(block: pl.DataFrame, place: _Place) -> bytes:
    """Return the begin and end packets of slices.

    Slices with the same arguments and the same number of arrows are encoded together. The end of a slice directly
    follows its begin: trace_processor sorts by time with a stable sort, and an end closes the slice that began last.
    """
    shape = block["flows"].to_numpy().astype(np.int64) << len(ARGUMENTS)
    for index, name in enumerate(ARGUMENTS):
        if name not in block.columns:
            continue
        shape |= block[name].is_not_null().to_numpy().astype(np.int64) << index
    groups = []
    for value in np.unique(shape):
        rows = np.flatnonzero(shape == value)
        groups.append((rows, _begin_end_pairs(block[rows], place)))
    return interleaved(len(block), groups).tobytes()


def _begin_end_pairs(alike: pl.DataFrame, place: _Place) -> NDArray[np.uint8]:
    """Return a begin and an end packet for each slice; all have the same arguments and number of arrows."""
    track = uints(TRACK_UUID, place.first_track + alike["track"].to_numpy().astype(np.int64))
    begin: list[Part] = [
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
    begin += fixed64s(FLOW_IDS, _arrows(alike, place))
    end = [uint(TYPE, END), *track]
    parts = [
        part
        for name, event in (("start", begin), ("end", end))
        for part in _event_packet(place, alike[name].to_numpy(), event)
    ]
    return matrix(len(alike), parts)


def _arrows(alike: pl.DataFrame, place: _Place) -> Times:
    """Return the numbers of the arrows at each slice: to or from its launches, and to the other ranks."""
    own = place.number * FLOWS_PER_CAPTURE + alike["flow"].to_numpy().astype(np.int64)[:, None]
    arrows = own + np.arange(int(alike["flows"][0]))
    if "collective" not in alike.columns or alike["collective"].null_count():
        return arrows
    # Below 0, so that no arrow of a launch has the number.
    return np.column_stack([arrows, -1 - alike["collective"].to_numpy()])
