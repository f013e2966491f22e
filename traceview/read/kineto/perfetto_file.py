"""Perfetto traces of torch.profiler (.pftrace), turned into the events of its JSON traces.

torch writes them since August 2026 (torch/profiler/_cupti/monitor_trace.py and torch/csrc/profiler/cupti/
monitor_pftrace.cpp): tracks of threads, one table of names and categories, slices of the host with the arguments of the
JSON, and a GPU render stage for each GPU operation. Of slices, all begins of a kind come before all their ends, in the
same order. The kinds of copies, the limits of GPUs, ranks and process groups are not in the file.
"""

from __future__ import annotations

import json
import mmap
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from traceview.errors import DamagedExportError, NotAnExportError, ReportError
from traceview.model.units import quantity
from traceview.read.kineto.events import relative_times, trace_events
from traceview.read.kineto.pieces import SEPARATOR, TraceDocument
from traceview.read.kineto.trace_file import OPEN_LIST, capture_of_events
from traceview.read.raw import RawCapture
from traceview.read.source import MAX_TEXT, DecodedSize, display_name

PACKET = 0x0A  # the key of Trace.packet
SLICE_BEGIN, SLICE_END = 1, 2  # TrackEvent.Type
PIECE_EVENTS = 20_000
STAGES: Mapping[str, str] = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
KEYS: Mapping[str, str] = {"device id": "device", "context id": "context", "stream id": "stream"}
LAUNCH_ARGUMENTS: Mapping[int, str] = {1: "registers per thread", 2: "shared memory"}  # _COMPUTE_ARGS
NOT_IN_PERFETTO = (
    "a Perfetto trace of torch has no kinds of copies (host to device, device to host), no pinned memory, no limits of "
    "the GPU and no rank; a JSON trace has: prof.export_chrome_trace('trace.json')"
)
OTHER_TRACE = "prof.export_chrome_trace('trace.json') writes one that needs no package"


def read_pftrace(path: Path) -> RawCapture:
    """Read a Perfetto trace of torch.profiler. Raises DamagedExportError, NotAnExportError or ReportError."""
    name = display_name(path)
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages
    except ImportError:
        raise ReportError(
            f"{name}: a Perfetto trace of torch.profiler, which needs the package perfetto: pip install "
            f"'traceview[pftrace]'; or {OTHER_TRACE}"
        ) from None
    from google.protobuf.message import DecodeError

    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            events = _Events(messages)
            decoded = trace_events(events.pieces(data), DecodedSize(name))
    except DecodeError:
        raise DamagedExportError(f"{name}: a damaged Perfetto trace; copy it again, or {OTHER_TRACE}") from None
    except OSError as error:
        raise ReportError(f"{name}: cannot be read ({error.strerror}); check its permissions") from None
    if not decoded.event_count:
        raise NotAnExportError(f"{name}: a Perfetto trace without events of torch.profiler; {OTHER_TRACE}")
    problems = [NOT_IN_PERFETTO, *([OPEN_LIST] if events.is_open else [])]
    if decoded.faults.left_out:
        problems.append(f"{quantity(decoded.faults.left_out, 'event')} of the trace left out: not events of torch")
    moved, first_ns = relative_times(decoded)
    return capture_of_events(path.name, moved, first_ns, TraceDocument((), 0, True, None), tuple(problems))


class _Events:
    """Turns packets into the texts of events. `is_open` is set if the file ends inside a packet."""

    def __init__(self, messages: Any) -> None:
        self.messages = messages
        self.is_open = False
        self.threads: dict[int, tuple[int, int, str]] = {}
        self.names: dict[int, str] = {}
        self.categories: dict[int, str] = {}
        self.stages: dict[int, str] = {}
        self.begun: defaultdict[int, deque[tuple[int, Any]]] = defaultdict(deque)

    def pieces(self, data: mmap.mmap) -> Iterator[bytes]:
        """Yield texts of events with SEPARATOR between them. Raises protobuf's DecodeError."""
        texts: list[str] = []
        for packet in self._packets(data):
            texts.extend(json.dumps(event, default=_text) for event in self._events(packet))
            if len(texts) >= PIECE_EVENTS:
                yield chr(SEPARATOR).join(texts).encode("utf-8", "replace")
                texts = []
        if texts:
            yield chr(SEPARATOR).join(texts).encode("utf-8", "replace")

    def _packets(self, data: mmap.mmap) -> Iterator[Any]:
        place, size, parse = 0, len(data), self.messages.TracePacket.FromString
        while place < size:
            if data[place] != PACKET:
                parse(b"\xff")  # an invalid key: DecodeError
            length, shift, place = 0, 0, place + 1
            while place < size and shift < 35:
                length |= (data[place] & 0x7F) << shift
                shift, place = shift + 7, place + 1
                if data[place - 1] < 0x80:
                    break
            if place + length > size or length > MAX_TEXT:
                self.is_open = True
                return
            yield parse(data[place : place + length])
            place += length

    def _events(self, packet: Any) -> Iterator[dict[str, Any]]:
        if packet.HasField("track_descriptor"):
            yield from self._track(packet.track_descriptor)
        elif packet.HasField("interned_data"):
            interned = packet.interned_data
            self.names |= {entry.iid: entry.name for entry in interned.event_names}
            self.categories |= {entry.iid: entry.name for entry in interned.event_categories}
            self.stages |= {entry.iid: entry.name for entry in interned.gpu_specifications}
        elif packet.HasField("track_event"):
            yield from self._slice(packet.timestamp, packet.track_event)
        elif packet.HasField("gpu_render_stage_event"):
            yield from self._operation(packet.timestamp, packet.gpu_render_stage_event)

    def _track(self, track: Any) -> Iterator[dict[str, Any]]:
        if track.HasField("thread"):
            thread = track.thread
            self.threads[track.uuid] = thread.pid, thread.tid, thread.thread_name
            named = {"name": thread.thread_name}
            yield {"ph": "M", "name": "thread_name", "pid": thread.pid, "tid": thread.tid, "args": named}

    def _slice(self, time: int, event: Any) -> Iterator[dict[str, Any]]:
        if event.type == SLICE_BEGIN:
            self.begun[event.track_uuid].append((time, event))
        elif event.type == SLICE_END and self.begun[event.track_uuid]:
            start, begin = self.begun[event.track_uuid].popleft()
            pid, tid, thread = self.threads.get(begin.track_uuid, (0, 0, ""))
            arguments = {_text(entry.name): _value(entry) for entry in begin.debug_annotations}
            category = self.categories.get(next(iter(begin.category_iids), 0), "")
            if not category:  # torch gives synchronizations and the profiler's overhead none
                category = "cuda_sync" if "cuda_sync_kind" in arguments else "overhead" if thread == "Overhead" else ""
            name = self.names.get(begin.name_iid, "")
            yield _event(category, name, pid, tid, start, time - start, arguments)

    def _operation(self, time: int, stage: Any) -> Iterator[dict[str, Any]]:
        name = self.stages.get(stage.stage_iid, "")
        if name not in STAGES:
            return
        arguments = {KEYS.get(entry.name, _text(entry.name)): entry.value for entry in stage.extra_data}
        if stage.HasField("launch"):
            launch = stage.launch
            arguments["grid"] = [launch.grid_size.x, launch.grid_size.y, launch.grid_size.z]
            arguments["block"] = [launch.workgroup_size.x, launch.workgroup_size.y, launch.workgroup_size.z]
            arguments |= {
                LAUNCH_ARGUMENTS[each.name_iid]: each.uint_value
                for each in launch.args
                if each.name_iid in LAUNCH_ARGUMENTS
            }
        name = self.names.get(stage.name_iid, name)
        yield _event(STAGES[self.stages[stage.stage_iid]], name, stage.gpu_id, 0, time, stage.duration, arguments)


def _event(
    category: str, name: str, pid: int, tid: int, start: int, length: int, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an event as torch writes it to JSON: times in µs, here as texts, which keep each ns."""
    times = {
        key: f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03}" for key, ns in (("ts", start), ("dur", length))
    }
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": arguments}


def _value(annotation: Any) -> Any:
    """Return the value of an argument: a number, a text, a list or an object."""
    kind = annotation.WhichOneof("value")
    if kind is not None:
        return getattr(annotation, kind)
    if annotation.array_values:
        return [_value(entry) for entry in annotation.array_values]
    return {_text(entry.name): _value(entry) for entry in annotation.dict_entries}


def _text(value: object) -> str:
    """Return a text, which protobuf gives as bytes where it is not UTF-8; "" for a message."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
