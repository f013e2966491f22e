"""The wire format, decoded by protobuf, and merged matrices against joined messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview.captures.export import wire

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(INT64, st.integers(0, 300)), min_size=1, max_size=20))
def test_columns_decode(rows: list[tuple[int, int]]) -> None:
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    value, number = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    event = wire.messages(
        11,
        [
            *wire.uints(30, value),
            *wire.uints(12, number + 1),
            *wire.uints(11, number),
        ],
    )
    data = wire.matrix(len(rows), wire.messages(1, event))
    trace = pb.Trace.FromString(data.tobytes())
    events = [packet.track_event for packet in trace.packet]
    assert [(event.counter_value, event.track_uuid) for event in events] == rows
    assert [list(event.extra_counter_values) for event in events] == [[number + 1] for _, number in rows]


@given(INT64)
def test_number_decodes(value: int) -> None:
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    assert pb.TrackEvent.FromString(wire.uint(30, value)).counter_value == value


@given(st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=30))
def test_interleaved_messages_keep_their_order(messages: list[bytes]) -> None:
    widths = np.array([len(message) for message in messages])
    groups = []
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        joined = b"".join(messages[row] for row in rows)
        groups.append((rows, np.frombuffer(joined, np.uint8).reshape(len(rows), int(width))))
    assert wire.interleaved(len(messages), groups).tobytes() == b"".join(messages)
