"""Perfetto's native trace: TracePacket messages with the begin and end of slices, their tracks, arguments and arrows.

The field numbers are from protos/perfetto/trace in Perfetto's repository. Timestamps are ns on the capture's clock, so
that `ts` in trace_processor equals the time in the report. A capture with negative times is shifted to begin at 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.export import wire
from traceview.export.contents import ExportContents
from traceview.export.slices import CATEGORIES, NUMBERS, TEXTS, Counter, SliceBuilder
from traceview.export.tracks import Track
from traceview.intervals import Times

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
ARGUMENTS = (*NUMBERS, *TEXTS)
EVENT_SEQUENCE = wire.uint(SEQUENCE, 1)
# Tracks have their own sequence. A thread described on the event sequence would become the thread of all its events.
TRACK_SEQUENCE = wire.uint(SEQUENCE, 2)


def pieces(contents: ExportContents) -> Iterator[bytes]:
    """Yield the trace in pieces."""
    builder, origin, described = SliceBuilder(contents), min(contents.first, 0), 0
    created = builder.tracks.created
    yield _packet(wire.uint(FLAGS, STATE_CLEARED))
    yield _interned_packet(EVENT_CATEGORIES, CATEGORIES, range(len(CATEGORIES)))
    yield _interned_packet(ANNOTATION_NAMES, ARGUMENTS, range(len(ARGUMENTS)))
    for slices in builder.parts():
        yield from _descriptors(created[described:])
        described = len(created)
        yield from _interned_texts(builder.texts, slices)
        for first in range(0, len(slices), BLOCK):
            yield _slice_packets(slices[first : first + BLOCK], origin)
    for counter in builder.counters():
        yield from _descriptors(created[described:])
        described = len(created)
        yield _counter_packets(counter, origin)


def _packet(*parts: bytes) -> bytes:
    return wire.message(1, EVENT_SEQUENCE, *parts)


def _descriptors(tracks: Sequence[Track]) -> Iterator[bytes]:
    return (wire.message(1, TRACK_SEQUENCE, wire.message(DESCRIPTOR, *_descriptor(track))) for track in tracks)


def _descriptor(track: Track) -> Iterator[bytes]:
    yield wire.uint(UUID, track.id)
    if track.parent:
        yield wire.uint(PARENT, track.parent)
    yield wire.uint(RANK, track.id)
    yield wire.uint(ORDERING, EXPLICIT)
    if track.kind == "process":
        yield wire.message(PROCESS, wire.uint(1, track.process))
        return
    if track.kind == "thread":
        yield wire.message(THREAD, wire.uint(1, track.process), wire.uint(2, track.tid), wire.text(5, track.name))
        return
    yield wire.text(NAME, track.name)
    # A viewer merges the lanes of one stream, but not two streams of the same name.
    yield wire.uint(MERGE, BY_KEY)
    yield wire.uint(MERGE_KEY, track.lane_of)
    if track.kind == "counter":
        yield wire.message(COUNTER, wire.uint(3, BYTES_UNIT))


def _interned_texts(texts: Sequence[str], slices: pl.DataFrame) -> Iterator[bytes]:
    """Yield the texts that these slices use. A text's id is its index + 1."""
    used = slices["name"].unique().sort()
    for first in range(0, len(used), MAX_NAMES_PER_PACKET):
        yield _interned_packet(EVENT_NAMES, texts, used[first : first + MAX_NAMES_PER_PACKET].to_list())
    for name in TEXTS:
        if name in slices.columns:
            yield _interned_packet(ANNOTATION_STRINGS, texts, slices[name].unique().drop_nulls().sort().to_list())


def _interned_packet(field: int, texts: Sequence[str], places: Sequence[int]) -> bytes:
    entries = [wire.message(field, wire.uint(1, place + 1), wire.text(2, texts[place])) for place in places]
    return _packet(wire.uint(FLAGS, NEEDS_STATE), wire.message(INTERNED, *entries))


def _counter_packets(counter: Counter, origin: int) -> bytes:
    event = [wire.uint(TYPE, COUNT) + wire.uint(TRACK_UUID, counter.track), *wire.uints(COUNTER_VALUE, counter.value)]
    return wire.matrix(len(counter.at), _event_packet(counter.at - origin, event)).tobytes()


def _event_packet(at: Times, event: list[wire.Part]) -> list[wire.Part]:
    head = EVENT_SEQUENCE + wire.uint(FLAGS, NEEDS_STATE)
    return wire.messages(1, [head, *wire.uints(TIMESTAMP, at), *wire.messages(TRACK_EVENT, event)])


def _slice_packets(block: pl.DataFrame, origin: int) -> bytes:
    """Return the begin and end packets of slices.

    Slices with the same arguments and the same number of arrows are encoded together. The end of a slice directly
    follows its begin: trace_processor sorts by time with a stable sort, and an end closes the slice that began last.
    """
    shape = block["flows"].to_numpy().astype(np.int64) << len(ARGUMENTS)
    for place, name in enumerate(ARGUMENTS):
        if name not in block.columns:
            continue
        shape |= block[name].is_not_null().to_numpy().astype(np.int64) << place
    groups = []
    for value in np.unique(shape):
        rows = np.flatnonzero(shape == value)
        groups.append((rows, _begin_end_pairs(block[rows], origin)))
    return wire.interleaved(len(block), groups).tobytes()


def _begin_end_pairs(alike: pl.DataFrame, origin: int) -> NDArray[np.uint8]:
    """Return a begin and an end packet for each slice; all have the same arguments and number of arrows."""
    track = wire.uints(TRACK_UUID, alike["track"].to_numpy())
    begin: list[wire.Part] = [
        wire.uint(TYPE, BEGIN),
        *track,
        *wire.uints(CATEGORY_IIDS, alike["category"].to_numpy() + 1),
        *wire.uints(NAME_IID, alike["name"].to_numpy() + 1),
    ]
    for place, name in enumerate(ARGUMENTS):
        if name in alike.columns and alike[name].null_count() == 0:
            value = alike[name].to_numpy()
            field = wire.uints(STRING_VALUE_IID, value + 1) if name in TEXTS else wire.uints(INT_VALUE, value)
            begin += wire.messages(ANNOTATION, [wire.uint(ANNOTATION_NAME_IID, place + 1), *field])
    arrows = alike["flow"].to_numpy().astype(np.int64)[:, None] + np.arange(int(alike["flows"][0]))
    begin += wire.fixed64s(FLOW_IDS, arrows)
    end = [wire.uint(TYPE, END), *track]
    times = (alike[name].to_numpy() - origin for name in ("start", "end"))
    parts = [part for at, event in zip(times, (begin, end), strict=True) for part in _event_packet(at, event)]
    return wire.matrix(len(alike), parts)
