"""Decode a Perfetto trace with Perfetto's protobuf classes, and pair begins and ends as a viewer does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from traceview.captures.export import ExportContents, perfetto

BEGIN, END = 1, 2
GPU_CORRELATION, ARGUMENT_NAMES = 3000, 1001


class Slice(NamedTuple):
    """A slice or a render stage. `row` is the names of its tracks, outermost first, or of its GPU and queue.

    `events` are the ids of the render stages that a call submits, or the stage's own.
    """

    row: tuple[str, ...]
    category: str
    name: str
    start: int
    end: int
    arguments: tuple[tuple[str, int | str], ...]
    events: tuple[int, ...]


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
    (gpus,) = (packet.gpu_info.gpus for packet in trace.packet if _has(packet, "gpu_info"))
    stages = (packet for packet in trace.packet if _has(packet, "gpu_render_stage_event"))
    decoded = Decoded([_stage(packet, texts, [gpu.name for gpu in gpus]) for packet in stages], _counters(trace))
    for packet in events:
        event = packet.track_event
        row = open_on[event.track_uuid]
        if event.type == BEGIN:
            row.append(packet)
        else:
            assert event.type == END
            decoded.slices.append(_slice(names[event.track_uuid], row.pop(), packet.timestamp, texts))
    assert not any(open_on.values()), "a slice without an end"
    return decoded


def _stage(packet: Any, texts: dict[str, dict[int, str]], gpus: list[str]) -> Slice:
    event = packet.gpu_render_stage_event
    arguments: dict[str, int | str] = {}
    for entry in event.launch.args:
        integer = entry.HasField("int_value")
        value = entry.int_value if integer else texts["text"][entry.string_value_iid]
        arguments[texts["stage argument"][entry.name_iid]] = value
    return Slice(
        (gpus[event.gpu_id], texts["specification"][event.hw_queue_iid]),
        texts["specification"][event.stage_iid],
        texts["name"][event.name_iid],
        packet.timestamp,
        packet.timestamp + event.duration,
        tuple(arguments.items()),
        (event.event_id,),
    )


def _counters(trace: Any) -> list[tuple[tuple[str, ...], int, int]]:
    """Return (names, time, value) of each sample; its value holds from the sample before it."""
    packets = [packet for packet in trace.packet if _has(packet, "gpu_counter_event")]
    specs = [spec for packet in packets for spec in packet.gpu_counter_event.counter_descriptor.specs]
    names = {spec.counter_id: (spec.name,) for spec in specs}
    return [
        (names[entry.counter_id], packet.timestamp, entry.int_value)
        for packet in packets
        for entry in packet.gpu_counter_event.counters
    ]


def _has(packet: Any, field: str) -> bool:
    return bool(packet.HasField(field))


def _interned(tables: Iterable[Any]) -> dict[str, dict[int, str]]:
    kinds = ("category", "name", "argument", "text", "specification", "stage argument")
    decoded: dict[str, dict[int, str]] = {kind: {} for kind in kinds}
    for table in tables:
        decoded["category"] |= {entry.iid: entry.name for entry in table.event_categories}
        decoded["name"] |= {entry.iid: entry.name for entry in table.event_names}
        decoded["argument"] |= {entry.iid: entry.name for entry in table.debug_annotation_names}
        decoded["specification"] |= {entry.iid: entry.name for entry in table.gpu_specifications}
        decoded["stage argument"] |= _extension_names(table, ARGUMENT_NAMES)
        decoded["text"] |= {entry.iid: entry.str.decode() for entry in table.debug_annotation_string_values}
    return decoded


def _extension_names(table: Any, field: int) -> dict[int, str]:
    """Return the names of an extension field with entries (iid, name), which the classes do not know."""
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    entries = [
        pb.InternedComputeArgName.FromString(item.data) for item in _unknown(table) if item.field_number == field
    ]
    return {entry.iid: entry.name for entry in entries}


def _unknown(message: Any) -> Any:
    return pytest.importorskip("google.protobuf.unknown_fields").UnknownFieldSet(message)


def _submitted(event: Any) -> Iterable[int]:
    """Yield the ids in the event's GpuCorrelation, an extension."""
    empty = pytest.importorskip("google.protobuf.empty_pb2").Empty
    for item in _unknown(event):
        if item.field_number == GPU_CORRELATION:
            yield from (entry.data for entry in _unknown(empty.FromString(item.data)))


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
        tuple(_submitted(event)),
    )
