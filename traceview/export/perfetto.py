"""Perfetto's native trace: TracePacket messages with a slice's begin and end, its row, its arguments and its arrows.

Field numbers: protos/perfetto/trace in Perfetto's repository. A timestamp is the event's time on the capture's
clock, in ns, so that trace_processor's `ts` is what the report says; a capture whose clock is below zero is moved
to begin at 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.export import wire
from traceview.export.contents import Contents
from traceview.export.throughput import Counter
from traceview.export.timeline import CATEGORIES, NUMBERS, TEXTS, Timeline
from traceview.export.tracks import Track
from traceview.intervals import Times

BLOCK = 1 << 16
NAMES_AT_ONCE = 1 << 12
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
ON_THE_SEQUENCE = wire.uint(SEQUENCE, 1)
# Rows are described on a sequence of their own: a thread described among the events would be taken for theirs.
OF_ROWS = wire.uint(SEQUENCE, 2)


def pieces(of: Contents) -> Iterator[bytes]:
    """Yield a trace in pieces."""
    line, origin, told = Timeline(of), min(of.first, 0), 0
    yield _packet(wire.uint(FLAGS, STATE_CLEARED))
    yield _table(EVENT_CATEGORIES, CATEGORIES, range(len(CATEGORIES)))
    yield _table(ANNOTATION_NAMES, ARGUMENTS, range(len(ARGUMENTS)))
    for slices in line.parts():
        yield from _descriptors(line.tracks.made[told:])
        told = len(line.tracks.made)
        yield from _texts(line.texts, slices)
        for first in range(0, len(slices), BLOCK):
            yield _sliced(slices[first : first + BLOCK], origin)
    for counter in line.counters():
        yield from _descriptors(line.tracks.made[told:])
        told = len(line.tracks.made)
        yield _counted(counter, origin)


def _packet(*parts: bytes) -> bytes:
    return wire.message(1, ON_THE_SEQUENCE, *parts)


def _descriptors(tracks: Sequence[Track]) -> Iterator[bytes]:
    return (wire.message(1, OF_ROWS, wire.message(DESCRIPTOR, *_descriptor(track))) for track in tracks)


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
    # Lanes of one stream are one row to the eye; two streams of one name are not.
    yield wire.uint(MERGE, BY_KEY)
    yield wire.uint(MERGE_KEY, track.lane_of)
    if track.kind == "counter":
        yield wire.message(COUNTER, wire.uint(3, BYTES_UNIT))


def _texts(texts: Sequence[str], slices: pl.DataFrame) -> Iterator[bytes]:
    """Number the texts that these slices use; a number is the text's place, from 1."""
    used = slices["name"].unique().sort()
    for first in range(0, len(used), NAMES_AT_ONCE):
        yield _table(EVENT_NAMES, texts, used[first : first + NAMES_AT_ONCE].to_list())
    for name in TEXTS:
        if name in slices.columns:
            yield _table(ANNOTATION_STRINGS, texts, slices[name].unique().drop_nulls().sort().to_list())


def _table(field: int, texts: Sequence[str], places: Sequence[int]) -> bytes:
    entries = [wire.message(field, wire.uint(1, place + 1), wire.text(2, texts[place])) for place in places]
    return _packet(wire.uint(FLAGS, NEEDS_STATE), wire.message(INTERNED, *entries))


def _counted(counter: Counter, origin: int) -> bytes:
    event = [wire.uint(TYPE, COUNT) + wire.uint(TRACK_UUID, counter.track), *wire.uints(COUNTER_VALUE, counter.value)]
    return wire.matrix(len(counter.at), _event(counter.at - origin, event)).tobytes()


def _event(at: Times, event: list[wire.Part]) -> list[wire.Part]:
    head = ON_THE_SEQUENCE + wire.uint(FLAGS, NEEDS_STATE)
    return wire.messages(1, [head, *wire.uints(TIMESTAMP, at), *wire.messages(TRACK_EVENT, event)])


def _sliced(block: pl.DataFrame, origin: int) -> bytes:
    """Return the begins and ends of some slices, those with the same arguments and as many arrows at a time.

    A slice's end follows its begin at once: trace_processor sorts by time and keeps the order of what has
    the same, and an end closes the slice that began last.
    """
    shape = block["flows"].to_numpy().astype(np.int64) << len(ARGUMENTS)
    for place, name in enumerate(ARGUMENTS):
        if name not in block.columns:
            continue
        shape |= block[name].is_not_null().to_numpy().astype(np.int64) << place
    groups = []
    for one in np.unique(shape):
        rows = np.flatnonzero(shape == one)
        groups.append((rows, _pairs(block[rows], origin)))
    return wire.interleaved(len(block), groups).tobytes()


def _pairs(alike: pl.DataFrame, origin: int) -> NDArray[np.uint8]:
    """Return a begin and an end a row, of slices with the same arguments and as many arrows."""
    row = wire.uints(TRACK_UUID, alike["track"].to_numpy())
    begin: list[wire.Part] = [
        wire.uint(TYPE, BEGIN),
        *row,
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
    end = [wire.uint(TYPE, END), *row]
    times = (alike[name].to_numpy() - origin for name in ("start", "end"))
    parts = [part for at, event in zip(times, (begin, end), strict=True) for part in _event(at, event)]
    return wire.matrix(len(alike), parts)
