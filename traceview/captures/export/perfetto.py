"""Perfetto's native trace: TracePacket messages with render stages, slices and counters, their arguments and arrows.

GPU work is in Perfetto's GPU data model (gpu_stages.py); everything else is track events with their tracks.

The field numbers are from protos/perfetto/trace in Perfetto's repository. Timestamps are ns on the capture's clock, so
that `ts` in trace_processor equals the time in the report. A capture with negative times is shifted to begin at 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from traceview.captures.export.contents import ExportContents
from traceview.captures.export.gpu_stages import ARGUMENTS as STAGE_ARGUMENTS
from traceview.captures.export.gpu_stages import (
    FIRST_STAGE,
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
ARGUMENTS = (*NUMBERS, *TEXTS)
# Tracks have their own sequence. A thread described on the event sequence would become the thread of all its events.
ON_EVENTS, ON_TRACKS = uint(SEQUENCE, 1), uint(SEQUENCE, 2)


def pieces(contents: ExportContents) -> Iterator[bytes]:
    """Yield the trace of a capture in pieces."""
    builder, origin = SliceBuilder(contents), min(contents.first, 0)
    created, described = builder.tracks.created, 0
    launched = FIRST_STAGE + builder.launched
    yield message(1, ON_EVENTS, uint(FLAGS, STATE_CLEARED), gpu_info(contents))
    yield _interned_packet(EVENT_CATEGORIES, CATEGORIES, range(len(CATEGORIES)))
    yield _interned_packet(ANNOTATION_NAMES, ARGUMENTS, range(len(ARGUMENTS)))
    yield from _stage_packets(builder, origin)
    for slices in builder.frames():
        for track in created[described:]:
            yield message(1, ON_TRACKS, message(DESCRIPTOR, *_descriptor(track)))
        described = len(created)
        yield from _interned_texts(builder.texts, slices)
        for first in range(0, len(slices), BLOCK):
            yield _slice_packets(slices[first : first + BLOCK], origin, launched)
    yield from _counter_packets(contents, origin)


def _stage_packets(builder: SliceBuilder, origin: int) -> Iterator[bytes]:
    """Yield the render stages of a capture, and before them what they refer to."""
    contents = builder.contents
    for entry in stage_specifications(contents):
        yield message(1, ON_EVENTS, uint(FLAGS, NEEDS_STATE), message(INTERNED, entry))
    names = builder.add_enum(contents.operations["name"])
    yield from _interned_names(builder.texts, names)
    words = {word: number + 1 for number, word in enumerate((*KINDS, *MEMORIES), len(builder.texts))}
    builder.add_texts(tuple(words))
    yield _interned_packet(ANNOTATION_STRINGS, builder.texts, [number - 1 for number in words.values()])
    frame = stage_frame(contents, names.cast(pl.Int64) + 1)
    optional = [pl.col(name).is_not_null() for name in ("kernel", "grid_x", *STAGE_ARGUMENTS)]

    def packets(alike: pl.DataFrame) -> list[Chunk]:
        return _packet(alike["start"].to_numpy() - origin, stage_parts(alike, words))

    for first in range(0, len(frame), BLOCK):
        yield encoded(frame[first : first + BLOCK], optional, packets)


def _descriptor(track: Track) -> Iterator[bytes]:
    yield uint(UUID, track.id)
    if track.parent:
        yield uint(PARENT, track.parent)
    yield uint(RANK, track.id)
    yield uint(ORDERING, EXPLICIT)
    if track.kind == "process":
        yield message(PROCESS, uint(1, track.process))
        return
    if track.kind == "thread":
        yield message(THREAD, uint(1, track.process), uint(2, track.tid), text(5, track.name))
        return
    yield text(NAME, track.name)
    # A viewer merges the lanes of one stream, but not two streams of the same name.
    yield uint(MERGE, BY_KEY)
    yield uint(MERGE_KEY, track.lane_of)


def _interned_texts(texts: Sequence[str], slices: pl.DataFrame) -> Iterator[bytes]:
    """Yield the texts that these slices use. A text's id is its index + 1."""
    yield from _interned_names(texts, slices["name"])
    for name in TEXTS:
        if name in slices.columns:
            yield _interned_packet(ANNOTATION_STRINGS, texts, slices[name].unique().drop_nulls().sort().to_list())


def _interned_names(texts: Sequence[str], names: pl.Series) -> Iterator[bytes]:
    used = names.unique().sort()
    for first in range(0, len(used), MAX_NAMES_PER_PACKET):
        yield _interned_packet(EVENT_NAMES, texts, used[first : first + MAX_NAMES_PER_PACKET].to_list())


def _interned_packet(field: int, texts: Sequence[str], indices: Sequence[int]) -> bytes:
    entries = [message(field, uint(1, index + 1), text(2, texts[index])) for index in indices]
    return message(1, ON_EVENTS, uint(FLAGS, NEEDS_STATE), message(INTERNED, *entries))


def _counter_packets(contents: ExportContents, origin: int) -> Iterator[bytes]:
    for number, counter in enumerate(counter_series(contents)):
        descriptor, at, samples = counter_packets(counter, number, counter.device or 0)
        yield message(1, ON_EVENTS, uint(TIMESTAMP, int(at[0]) - origin), descriptor)
        yield matrix(len(at), _packet(at - origin, samples)).tobytes()


def _packet(at: Times, chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return a packet of the events' sequence for each row, at its time in the trace."""
    return messages(1, [ON_EVENTS + uint(FLAGS, NEEDS_STATE), *uints(TIMESTAMP, at), *chunks])


def _slice_packets(block: pl.DataFrame, origin: int, launched: Times) -> bytes:
    """Return the begin and end packets of slices.

    Slices with the same arguments and the same number of launched operations are encoded together. The end of a slice
    directly follows its begin: trace_processor sorts by time with a stable sort, and an end closes the slice that began
    last.
    """
    known = [pl.col(name).is_not_null() for name in ARGUMENTS if name in block.columns]
    alike = [*known, *(pl.col(name) for name in ("launched",) if name in block.columns)]
    return encoded(block, alike, lambda same: _begin_end_pairs(same, origin, launched))


def _begin_end_pairs(alike: pl.DataFrame, origin: int, launched: Times) -> list[Chunk]:
    """Return a begin and an end packet for each slice; all have the same arguments and launch as many operations."""
    track = uints(TRACK_UUID, alike["track"].to_numpy().astype(np.int64))
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
        for chunk in _packet(alike[name].to_numpy() - origin, messages(TRACK_EVENT, event))
    ]
