"""The typed frames that readers and normalisation produce, and every measure reads.

Times are int64 nanoseconds on the export's own clock. Intervals are half-open, [start, end).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from polars._typing import PolarsDataType


CLASSES = ("compute", "communication", "copy", "memset")
KINDS = ("h2d", "d2h", "d2d", "h2h", "p2p", "um_h2d", "um_d2h", "um_d2d", "other")
MEMORIES = ("pageable", "pinned", "managed", "device", "unknown")
SOURCES = ("kernel", "graph", "memcpy", "memset")
ROLES = ("sync", "blocking_copy", "memory", "api")

OperationClass = pl.Enum(CLASSES)
CopyKind = pl.Enum(KINDS)
Memory = pl.Enum(MEMORIES)
Source = pl.Enum(SOURCES)
Role = pl.Enum(ROLES)

# Columns typed pl.Enum (the class, not an instance) hold names: any set of categories is accepted,
# `.to_physical()` gives the code. Whole numbers are no wider than what they count: of these rows there are tens of
# millions, of devices, streams and threads few (normalise/plausible.py says how many at most).
OPERATIONS: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "class": OperationClass,
    "source": Source,  # which table it came from; "graph" is a whole CUDA graph
    "kind": CopyKind,  # null for what is not a copy
    "memory": Memory,  # null for what is not a copy
    "bytes": pl.Int64,  # 0 for kernels
    "name": pl.Enum,  # a kernel's short name; "memcpy h2d", "memset", "CUDA graph 2"
    "process": pl.Int32,
    "device": pl.Int16,  # row of Trace.devices
    "stream": pl.Int16,  # row of Trace.streams
    "correlation": pl.UInt32,  # as wide as CUPTI's; 0 for none
    "launch": pl.Int32,  # row of Trace.api; null where the capture lacks it
}
API: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.Enum,  # without its _vNNNN and _ptsz suffix
    "role": Role,  # what docs/definitions.md "Idle gaps" calls it while it holds the thread
    "implicit": pl.Boolean,  # blocks although its name does not say so ("Synchronization")
    "thread": pl.Int16,  # row of Trace.threads
    "process": pl.Int32,
    "correlation": pl.UInt32,
}
RANGES: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,  # the end of the capture where `open`
    "name": pl.Enum,
    "domain": pl.Enum,  # "" for the default domain
    "thread": pl.Int16,  # row of Trace.threads
    "process": pl.Int32,
    "open": pl.Boolean,  # the capture ended before the range did
}
OPENACC = "OpenACC"  # the domain of what its runtime did, which no program named: never an iteration
OVERHEAD: Mapping[str, PolarsDataType] = {"start": pl.Int64, "end": pl.Int64}
STREAM_EVENTS: Mapping[str, PolarsDataType] = {
    "kind": pl.Enum(("record", "wait", "synchronize")),
    "process": pl.Int32,
    "context": pl.Int64,
    "stream_id": pl.Int64,
    "event_id": pl.Int64,
    "launch": pl.Int32,  # row of Trace.api; null where the capture lacks it
}
PROJECTED: Mapping[str, PolarsDataType] = {
    "range": pl.Int64,  # row of Trace.ranges
    "device": pl.Int32,  # row of Trace.devices
    "start": pl.Int64,
    "end": pl.Int64,
    "operations": pl.Int64,
}
DEVICES: Mapping[str, PolarsDataType] = {
    "id": pl.String,  # what every report calls it: "GPU 0", "GPU 0 (process 12)"
    "device_id": pl.Int64,  # the CUDA ordinal its process uses
    "name": pl.String,  # "NVIDIA H200", or "" where the capture does not say
    "processes": pl.List(pl.Int32),
}
STREAMS: Mapping[str, PolarsDataType] = {
    "stream_id": pl.Int64,
    "process": pl.Int32,
    "device": pl.Int32,  # row of Trace.devices
    "context": pl.Int64,
    "label": pl.String,  # "stream 7", "stream 7 (default)" or the name NVTX gave it
}
THREADS: Mapping[str, PolarsDataType] = {
    "process": pl.Int32,
    "tid": pl.Int64,
    "name": pl.String,
}


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open stretch of time, in ns."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Length in ns."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ReportInfo:
    """Where a trace came from. `file` is a bare name: paths never reach a report."""

    file: str
    nsys_version: str | None
    schema_version: str | None
    tables: Mapping[str, int]  # rows of each table that was read
    problems: tuple[str, ...] = ()  # one line each: what the capture lacks or what was left out
    profiler: str = "nsys"  # or "torch.profiler"


def _check(frame_name: str, frame: pl.DataFrame, schema: Mapping[str, PolarsDataType]) -> None:
    for name, wanted in schema.items():
        if name not in frame.columns:
            raise TypeError(f"{frame_name} lacks the column {name!r}")
        if frame.schema[name] != wanted:
            raise TypeError(f"{frame_name}.{name} is {frame.schema[name]}, not {wanted}")


@dataclass(frozen=True, slots=True)
class Trace:
    """One capture, normalised: every version and oddity of the export ends before this.

    `operations`, `api` and `ranges` are sorted by (start, end). Rows refer to each other by row
    number (`launch`, `thread`, `stream`, `device`). `window` narrows every measure when set.

    Raises TypeError when a frame lacks a column or has it in another type.
    """

    info: ReportInfo
    operations: pl.DataFrame
    api: pl.DataFrame
    ranges: pl.DataFrame
    overhead: pl.DataFrame
    stream_events: pl.DataFrame
    devices: pl.DataFrame
    streams: pl.DataFrame
    threads: pl.DataFrame
    window: Window | None = None

    def __post_init__(self) -> None:
        _check("operations", self.operations, OPERATIONS)
        _check("api", self.api, API)
        _check("ranges", self.ranges, RANGES)
        _check("overhead", self.overhead, OVERHEAD)
        _check("stream_events", self.stream_events, STREAM_EVENTS)
        _check("devices", self.devices, DEVICES)
        _check("streams", self.streams, STREAMS)
        _check("threads", self.threads, THREADS)

    def with_window(self, window: Window) -> Trace:
        """Return the same trace, with every measure narrowed to `window`."""
        return replace(self, window=window)
