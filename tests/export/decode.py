"""A Perfetto trace read back by Perfetto's own protobuf classes: slices as a viewer would pair them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from traceview.export import Contents, perfetto

BEGIN, END, COUNT = 1, 2, 4


class Slice(NamedTuple):
    """A slice with its row's names from the outermost in, its arguments, and its arrows."""

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


def decode(of: Contents) -> Decoded:
    """Export and read back; packets of one time keep their order, an end closes what began last on its row."""
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = pb.Trace.FromString(b"".join(perfetto.pieces(of)))
    of_rows = {packet.trusted_packet_sequence_id for packet in trace.packet if _is(packet, "track_descriptor")}
    of_the_rest = {packet.trusted_packet_sequence_id for packet in trace.packet if not _is(packet, "track_descriptor")}
    assert not of_rows & of_the_rest, "a thread described among the events would be taken for theirs"
    assert len(of_the_rest) == 1, "texts are numbered for one sequence"
    rows = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in trace.packet
        if _is(packet, "track_descriptor")
    }
    texts = _interned(packet.interned_data for packet in trace.packet if _is(packet, "interned_data"))
    events = sorted(
        (packet for packet in trace.packet if _is(packet, "track_event")), key=lambda packet: packet.timestamp
    )
    open_on: dict[int, list[Any]] = {uuid: [] for uuid in rows}
    names = {uuid: _names(rows, uuid) for uuid in rows}
    found = Decoded([], [])
    for packet in events:
        event = packet.track_event
        row = open_on[event.track_uuid]
        if event.type == BEGIN:
            row.append(packet)
        elif event.type == COUNT:
            found.counters.append((names[event.track_uuid], packet.timestamp, event.counter_value))
        else:
            assert event.type == END
            found.slices.append(_slice(names[event.track_uuid], row.pop(), packet.timestamp, texts))
    assert not any(open_on.values()), "a slice without an end"
    return found


def _is(packet: Any, field: str) -> bool:
    return bool(packet.HasField(field))


def _interned(tables: Iterable[Any]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {"category": {}, "name": {}, "argument": {}, "text": {}}
    for table in tables:
        found["category"] |= {one.iid: one.name for one in table.event_categories}
        found["name"] |= {one.iid: one.name for one in table.event_names}
        found["argument"] |= {one.iid: one.name for one in table.debug_annotation_names}
        found["text"] |= {one.iid: one.str.decode() for one in table.debug_annotation_string_values}
    return found


def _names(rows: dict[int, Any], uuid: int) -> tuple[str, ...]:
    row = rows[uuid]
    above = _names(rows, row.parent_uuid) if row.parent_uuid else ()
    own = row.name or row.thread.thread_name or f"process {row.process.pid}"
    return (*above, own)


def _slice(row: tuple[str, ...], begin: Any, end: int, texts: dict[str, dict[int, str]]) -> Slice:
    event = begin.track_event
    arguments = tuple(
        (
            texts["argument"][one.name_iid],
            one.int_value if one.HasField("int_value") else texts["text"][one.string_value_iid],
        )
        for one in event.debug_annotations
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
