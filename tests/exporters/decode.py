"""Decode a Perfetto trace with Perfetto's protobuf classes, and pair begins and ends as a viewer does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from traceview.exporters import ExportContents, perfetto

BEGIN, END, COUNT = 1, 2, 4


class Slice(NamedTuple):
    """A slice. `row` is the names of its tracks, outermost first; `flows` its arrows."""

    row: tuple[str, ...]
    category: str
    name: str
    start: int
    end: int
    arguments: tuple[tuple[str, int | str], ...]
    flows: tuple[int, ...]


class Decoded(NamedTuple):
    slices: list[Slice]
    counters: list[tuple[tuple[str, ...], int, int]]


def decode(contents: ExportContents) -> Decoded:
    """Export and decode. Packets of equal time keep their order; an end closes the last open slice of its track."""
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = pb.Trace.FromString(b"".join(perfetto.pieces(contents)))
    descriptors = [packet for packet in trace.packet if _has(packet, "track_descriptor")]
    track_sequences = {packet.trusted_packet_sequence_id for packet in descriptors}
    others = [packet for packet in trace.packet if not _has(packet, "track_descriptor")]
    event_sequences = {packet.trusted_packet_sequence_id for packet in others}
    assert not track_sequences & event_sequences, "tracks need their own sequence"
    assert len(event_sequences) == 1, "text ids are valid on one sequence only"
    rows = {packet.track_descriptor.uuid: packet.track_descriptor for packet in descriptors}
    texts = _interned(packet.interned_data for packet in trace.packet if _has(packet, "interned_data"))
    events = sorted(
        (packet for packet in trace.packet if _has(packet, "track_event")), key=lambda packet: packet.timestamp
    )
    open_on: dict[int, list[Any]] = {uuid: [] for uuid in rows}
    names = {uuid: _names(rows, uuid) for uuid in rows}
    decoded = Decoded([], [])
    for packet in events:
        event = packet.track_event
        row = open_on[event.track_uuid]
        if event.type == BEGIN:
            row.append(packet)
        elif event.type == COUNT:
            decoded.counters.append((names[event.track_uuid], packet.timestamp, event.counter_value))
        else:
            assert event.type == END
            decoded.slices.append(_slice(names[event.track_uuid], row.pop(), packet.timestamp, texts))
    assert not any(open_on.values()), "a slice without an end"
    return decoded


def _has(packet: Any, field: str) -> bool:
    return bool(packet.HasField(field))


def _interned(tables: Iterable[Any]) -> dict[str, dict[int, str]]:
    decoded: dict[str, dict[int, str]] = {"category": {}, "name": {}, "argument": {}, "text": {}}
    for table in tables:
        decoded["category"] |= {entry.iid: entry.name for entry in table.event_categories}
        decoded["name"] |= {entry.iid: entry.name for entry in table.event_names}
        decoded["argument"] |= {entry.iid: entry.name for entry in table.debug_annotation_names}
        decoded["text"] |= {entry.iid: entry.str.decode() for entry in table.debug_annotation_string_values}
    return decoded


def _names(rows: dict[int, Any], uuid: int) -> tuple[str, ...]:
    row = rows[uuid]
    above = _names(rows, row.parent_uuid) if row.parent_uuid else ()
    own = row.name or row.thread.thread_name or f"process {row.process.pid}"
    return (*above, own)


def _slice(row: tuple[str, ...], begin: Any, end: int, texts: dict[str, dict[int, str]]) -> Slice:
    event = begin.track_event
    arguments = tuple(
        (
            texts["argument"][entry.name_iid],
            entry.int_value if entry.HasField("int_value") else texts["text"][entry.string_value_iid],
        )
        for entry in event.debug_annotations
    )
    (category,) = event.category_iids
    return Slice(
        row,
        texts["category"][category],
        texts["name"][event.name_iid],
        begin.timestamp,
        end,
        arguments,
        tuple(event.flow_ids),
    )
