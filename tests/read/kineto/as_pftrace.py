"""Writes a JSON trace of torch.profiler as the Perfetto trace that torch would write of the same run.

In the order of torch/csrc/profiler/cupti/monitor_pftrace.cpp (August 2026): clocks, tracks, the table of names, slices
of each kind (all begins, then all ends), GPU operations. A GPU operation has the arguments of `_RENDER_EXTRA` in
torch/profiler/_cupti/monitor_trace.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

STAGES = {"kernel": (1, "Kernel"), "gpu_memcpy": (2, "Memcpy"), "gpu_memset": (3, "Memset")}
SLICES = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "overhead", "cuda_sync")
WITHOUT_CATEGORY = ("overhead", "cuda_sync")
EXTRA = {"device": "device id", "context": "context id", "stream": "stream id", "correlation": "correlation"}
EXTRA |= {"bytes": "bytes", "graph id": "graph id"}


def as_pftrace(document: dict[str, Any]) -> bytes:
    """Return the bytes of a Perfetto trace, not compressed."""
    base = document.get("baseTimeNanoseconds", 0)
    clocks = [{"clock_id": 6, "timestamp": base}, {"clock_id": 1, "timestamp": base}]
    # torch writes fields in the order in which it sets them, protobuf in that of their numbers.
    fields = ({"timestamp": base}, {"trusted_packet_sequence_id": 1}, {"clock_snapshot": {"clocks": clocks}})
    first = b"".join(pb.TracePacket(**field).SerializeToString() for field in fields)
    rest = b"".join(pb.Trace(packet=[packet]).SerializeToString() for packet in _packets(document, base))
    return bytes((0x0A, len(first))) + first + rest


def _packets(document: dict[str, Any], base: int) -> Iterator[Any]:
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    slices = [event for event in events if event.get("cat") in SLICES]
    names, categories = ({text: at for at, text in enumerate(dict.fromkeys(texts), 1)} for texts in _texts(events))
    tracks = {place: at for at, place in enumerate(dict.fromkeys(map(_place, slices)), 1)}
    for (pid, tid, name), uuid in tracks.items():
        thread = {"pid": pid & 0x7FFFFFFF, "tid": tid & 0x7FFFFFFF, "thread_name": name}
        yield pb.TracePacket(track_descriptor={"uuid": uuid, "thread": thread})
    interned = {
        "event_names": [{"iid": at, "name": text} for text, at in names.items()],
        "event_categories": [{"iid": at, "name": text} for text, at in categories.items()],
        "gpu_specifications": [{"iid": at, "name": name} for at, name in STAGES.values()],
    }
    yield pb.TracePacket(trusted_packet_sequence_id=1, interned_data=interned)
    for kind in SLICES:
        own = [event for event in slices if event["cat"] == kind]
        for event in own:
            begin = {"type": 1, "track_uuid": tracks[_place(event)], "name_iid": names[event["name"]]}
            begin |= {} if kind in WITHOUT_CATEGORY else {"category_iids": [categories[kind]]}
            arguments = event.get("args", {}) | ({"cuda_sync_kind": event["name"]} if kind == "cuda_sync" else {})
            begin["debug_annotations"] = [{"name": key, **_annotation(value)} for key, value in arguments.items()]
            yield pb.TracePacket(timestamp=base + _ns(event["ts"]), track_event=begin)
        for event in own:
            end = {"type": 2, "track_uuid": tracks[_place(event)]}
            yield pb.TracePacket(timestamp=base + _ns(event["ts"]) + _ns(event["dur"]), track_event=end)
    for event in events:
        if event.get("cat") in STAGES:
            yield pb.TracePacket(timestamp=base + _ns(event["ts"]), gpu_render_stage_event=_stage(event, names))


def _texts(events: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    return [event["name"] for event in events], [event["cat"] for event in events if event["cat"] in SLICES]


def _place(event: dict[str, Any]) -> tuple[int, int, str]:
    if event["cat"] == "overhead":
        return -1, 0, "Overhead"
    return int(event["pid"]), int(event["tid"]), f"thread {event['tid']}"


def _stage(event: dict[str, Any], names: dict[str, int]) -> dict[str, Any]:
    arguments = event["args"]
    extra = [{"name": key, "value": str(arguments[name])} for name, key in EXTRA.items() if name in arguments]
    stage = {"stage_iid": STAGES[event["cat"]][0], "duration": _ns(event["dur"]), "gpu_id": arguments["device"]}
    stage["extra_data"] = extra
    if event["cat"] != "kernel":
        return stage
    sizes = {
        key: dict(zip("xyz", arguments[name], strict=True))
        for key, name in (("grid_size", "grid"), ("workgroup_size", "block"))
    }
    launch = [
        {"name_iid": at, "uint_value": arguments[name]}
        for at, name in ((1, "registers per thread"), (2, "shared memory"))
    ]
    return {**stage, "name_iid": names[event["name"]], "launch": {**sizes, "args": launch}}


def _annotation(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"bool_value": value}
    if isinstance(value, (int, float)):
        return {"int_value" if isinstance(value, int) else "double_value": value}
    if isinstance(value, list):
        return {"array_values": [_annotation(inner) for inner in value]}
    return {"string_value": str(value)}


def _ns(microseconds: float | str) -> int:
    return round(Decimal(str(microseconds)) * 1000)
