"""The typed frames that normalisation produces and measures read.

Times are int64 nanoseconds on the export's clock. Intervals are half-open, [start, end).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.model.frozen import dataclass
from traceview.model.names import loading_words
from traceview.model.program import PLAIN_CUDA, Program
from traceview.model.sizes import GPU_METRICS, MEMORY, SIZES, WorkSizes, empty_frame
from traceview.model.stacks import CAPTURES, EVIDENCE, SCOPES, HostEvidence

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

# A column of type pl.Enum (the class) accepts any set of categories; `.to_physical()` returns the codes. Integers have
# the smallest type that fits: a capture has tens of millions of rows here, but few devices, streams and threads
# (normalise/valid_rows.py has their limits).
OPERATIONS: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "class": OperationClass,
    "source": Source,  # the table it comes from; "graph" is a complete CUDA graph
    "kind": CopyKind,  # null unless it is a copy
    "memory": Memory,  # null unless it is a copy
    "bytes": pl.Int64,  # 0 for kernels
    "name": pl.Enum,  # a kernel's short name; "memcpy h2d", "memset", "CUDA graph 2"
    "process": pl.Int32,
    "device": pl.Int16,  # row of Trace.devices
    "stream": pl.Int16,  # row of Trace.streams
    "correlation": pl.UInt32,  # the type of CUPTI; 0 for none
    "launch": pl.Int32,  # row of Trace.api; null if not in the capture
    "shape": pl.UInt32,  # row of Trace.shapes; 0 unless it is a kernel
}
# Row 0 stands for operations that are not kernels, and is null in all columns.
SHAPES: Mapping[str, PolarsDataType] = {
    "name": pl.String,
    "demangled": pl.String,  # with namespaces, templates and parameters, if the capture has them
    **dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"), pl.Int64),
    "registers": pl.Int64,  # per thread
    "shared_bytes": pl.Int64,  # static and dynamic shared memory of a block
}
API: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.Enum,  # without its _vNNNN and _ptsz suffix
    "role": Role,  # the cause that idle time during the call gets (docs/definitions.md "Idle gaps")
    "implicit": pl.Boolean,  # synchronizes implicitly (docs/definitions.md "Synchronization")
    "thread": pl.Int16,  # row of Trace.threads
    "process": pl.Int32,
    "correlation": pl.UInt32,
}
RANGES: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,  # the end of the capture if `open`
    "name": pl.Enum,
    "domain": pl.Enum,  # "" for the default domain
    "thread": pl.Int16,  # row of Trace.threads
    "process": pl.Int32,
    "open": pl.Boolean,  # the capture ends before the range
}
OPENACC = "OpenACC"
# Domains of ranges. nsys itself writes those of PROFILER_DOMAINS, so Trace.ranges does not have them; a range of
# LIBRARY_DOMAINS is never an iteration.
PROFILER_DOMAINS = ("GIL Trace", "Python Backtrace")
TORCH_OPS = "PyTorch ops"  # the domain of ranges that `emit_nvtx` opens around ops
LIBRARY_DOMAINS = (
    TORCH_OPS,
    *("MPI", "NCCL", OPENACC, "TensorRT", "myelin-exec", "UCX", "NVSHMEM", "CCCL"),
    *("cuBLAS", "cuDNN", "cuFFT", "cuSOLVER", "cuSPARSE", "cuTENSOR"),
)
OVERHEAD: Mapping[str, PolarsDataType] = {"start": pl.Int64, "end": pl.Int64}
STREAM_EVENTS: Mapping[str, PolarsDataType] = {
    "kind": pl.Enum(("record", "wait", "synchronize")),
    "process": pl.Int32,
    "context": pl.Int64,
    "stream_id": pl.Int64,
    "event_id": pl.Int64,
    "launch": pl.Int32,  # row of Trace.api; null if not in the capture
}
FAILED: Mapping[str, PolarsDataType] = {"process": pl.Int32, "correlation": pl.UInt32}  # calls that failed
LOST: Mapping[str, PolarsDataType] = {  # launches without GPU work in the capture
    "launch": pl.Int32,  # row of Trace.api
    "queued": pl.Boolean,  # the work may have waited in its stream when the capture ended
}
PROJECTED: Mapping[str, PolarsDataType] = {
    "range": pl.Int64,  # row of Trace.ranges
    "device": pl.Int16,  # row of Trace.devices
    "start": pl.Int64,
    "end": pl.Int64,
    "operations": pl.Int64,
}
# How far a GPU's clock is ahead of the host's, by which its times are corrected, and two bounds; null if nothing shows
# it. `clock_contradictions` counts launches and waits that the offset does not fit. If they are many, the offset is
# null, and times of the GPU and of the host cannot be compared.
CLOCK_FIGURES: Mapping[str, PolarsDataType] = dict.fromkeys(
    ("clock_offset", "clock_low", "clock_high", "clock_contradictions"), pl.Int64
)
DEVICES: Mapping[str, PolarsDataType] = {
    "id": pl.String,  # its name in every report: "GPU 0", "GPU 0 (process 12)"
    "device_id": pl.Int64,  # its CUDA ordinal in its process
    "name": pl.String,  # "NVIDIA H200", or "" if unknown
    "processes": pl.List(pl.Int32),
    # Limits of the hardware; null if the capture does not have them.
    **dict.fromkeys(("sm_count", "warps_per_sm", "registers_per_sm", "shared_bytes_per_sm", "blocks_per_sm"), pl.Int64),
    "compute_capability": pl.Int64,  # 90 for 9.0
    **CLOCK_FIGURES,
}
STREAMS: Mapping[str, PolarsDataType] = {
    "stream_id": pl.Int64,
    "process": pl.Int32,
    "device": pl.Int32,  # row of Trace.devices
    "context": pl.Int64,
    "label": pl.String,  # "stream 7", "stream 7 (default)", or its name from NVTX
    "independent": pl.Boolean,  # created so that it does not wait for the default stream (cudaStreamNonBlocking)
}
THREADS: Mapping[str, PolarsDataType] = {"process": pl.Int32, "tid": pl.Int64, "name": pl.String}
FRAMES: Mapping[str, Mapping[str, PolarsDataType]] = {  # the frames of a Trace
    "operations": OPERATIONS,
    "api": API,
    "ranges": RANGES,
    "overhead": OVERHEAD,
    "stream_events": STREAM_EVENTS,
    "devices": DEVICES,
    "streams": STREAMS,
    "threads": THREADS,
    "shapes": SHAPES,
    "scopes": SCOPES,
    "captures": CAPTURES,
    "memory": MEMORY,
    "gpu_metrics": GPU_METRICS,
    "failed": FAILED,
    "lost": LOST,
}


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open time interval.

    Attributes:
        start: Its start, in ns on the capture's clock.
        end: Its end, in ns; it does not belong to the interval.
    """

    start: int
    end: int

    @property
    def length(self) -> int:
        """Length in ns."""
        return self.end - self.start

    def within(self, other: Window) -> Window:
        """Return what is inside another window; it is empty, at an edge of the other, where they do not overlap."""
        start = min(max(self.start, other.start), other.end)
        return Window(start, min(max(self.end, start), other.end))


EVERYTHING = Window(-(1 << 62), 1 << 62)  # it begins before, and ends after, any event


@dataclass(frozen=True, slots=True)
class Note:
    """A remark on the data. `affects` names the figures and findings that it weakens."""

    id: str
    text: str
    affects: tuple[str, ...] = ()


MIN_LOST = 0.01  # share of the launches, above which figures are in doubt
MIN_STATED = 0.05  # share of the launches or of the rows from which an answer begins with it


@dataclass(frozen=True, slots=True)
class Trust:
    """What was mended, left out and lost of a capture (docs/definitions.md "May the capture be believed").

    Attributes:
        events: GPU operations, CUDA calls and ranges that are read.
        left_out: Rows that cannot be right, and were left out.
        cut: GPU operations whose duration cannot be; they end where the next of their stream begins.
        doubled: Rows of GPU work that are in the capture twice, and count once.
        launches: Launches that should have GPU work.
        lost: Those of them whose work the capture lacks.
        unrecorded: CUDA calls that the capture lacks, by their ids, if that is most calls for most of the time; else 0.
        clock: "agrees" with the host's, "corrected", "contradictory", or "unknown" without calls.
        driver: The version of the CUDA driver, if the capture says that its profiler does not support it.
        failed: Launches that failed and errors that ended all work, in words; "" for none.
        unread_tables: Tables with rows that nothing reads, whose name is a known one with a version.
    """

    events: int = 0
    left_out: int = 0
    cut: int = 0
    doubled: int = 0
    launches: int = 0
    lost: int = 0
    unrecorded: int = 0
    clock: str = "unknown"
    driver: str | None = None
    failed: str = ""
    unread_tables: tuple[str, ...] = ()

    @property
    def lost_fraction(self) -> float:
        """The share of the launches whose work the capture lacks."""
        return self.lost / max(self.launches, 1)

    @property
    def lost_everything(self) -> bool:
        """Whether the capture has launches and the work of none of them, or lacks most calls."""
        return 0 < self.launches == self.lost or self.unrecorded > 0

    @property
    def verdict(self) -> str:
        """One of "sound", "mended" (figures are those without what is wrong) and "doubtful"."""
        rows = max(self.events, 1)
        lost = self.unrecorded or self.lost_fraction > MIN_LOST or max(self.left_out, self.cut) > MIN_LOST * rows
        if lost or self.failed or self.unread_tables or self.clock == "contradictory":
            return "doubtful"
        return "mended" if self.left_out + self.cut + self.doubled or self.clock == "corrected" else "sound"


@dataclass(frozen=True, slots=True)
class ReportInfo:
    """The origin of a trace. `file` is a name without folders: reports contain no paths.

    `health` names what the profiler lost or did not record, and `passed` the checks that found nothing. `trust` has
    the numbers of both.
    """

    file: str
    nsys_version: str | None
    schema_version: str | None
    tables: Mapping[str, int]  # rows of each table that was read
    left_out: tuple[Note, ...] = ()  # what is missing or was left out
    profiler: str = "nsys"  # "nsys" or "torch.profiler"
    health: tuple[Note, ...] = ()
    stretch: str = ""  # which stretch of a capture larger than memory was read, in words
    passed: tuple[str, ...] = ()
    trust: Trust = Trust()

    @property
    def problems(self) -> tuple[str, ...]:
        """The texts of `left_out`, one line each."""
        return tuple(note.text for note in self.left_out)


def enum_texts(column: pl.Series) -> pl.Series:
    """Return the texts of an Enum column, by code."""
    assert isinstance(column.dtype, pl.Enum)
    return column.dtype.categories


def names_match(column: pl.Series, pattern: str) -> NDArray[np.bool_]:
    """Return which texts of an Enum column contain a match of a pattern, searched once in each distinct text."""
    matches: NDArray[np.bool_] = enum_texts(column).str.contains(pattern).to_numpy()
    return matches[column.to_physical().to_numpy()] if matches.any() else np.zeros(len(column), np.bool_)


def names_load_data(column: pl.Series) -> NDArray[np.bool_]:
    """Return which texts of an Enum column have words of data loading, searched once in each distinct text."""
    loads = np.array([bool(loading_words(text)) for text in enum_texts(column)], np.bool_)
    marks: NDArray[np.bool_] = loads[column.to_physical().to_numpy()]
    return marks


_checked: dict[tuple[str, int], weakref.ref[pl.DataFrame]] = {}


def _check(frame_name: str, frame: pl.DataFrame, schema: Mapping[str, PolarsDataType]) -> None:
    key = frame_name, id(frame)
    known = _checked.get(key)
    if known is not None and known() is frame:
        return  # most frames of a changed trace are those of the trace before
    columns = frame.schema
    for name, dtype in schema.items():
        if name not in columns:
            raise TypeError(f"{frame_name} has no column {name!r}")
        if columns[name] != dtype:
            raise TypeError(f"{frame_name}.{name} is {columns[name]}, not {dtype}")
    _checked[key] = weakref.ref(frame, lambda _: _checked.pop(key, None))


@dataclass(frozen=True, slots=True)
class Trace:
    """One normalised capture, independent of the export's version and format.

    `operations`, `api` and `ranges` are sorted by (start, end). The columns `launch`, `thread`, `stream`, `device`
    and `shape` are row numbers in other frames. Columns of times are in ns, of sizes in bytes (`FRAMES` has them all).

    Attributes:
        info: The file, the profiler, and what the capture lacks.
        operations: Kernels, copies, memsets and graphs of the GPUs.
        api: CUDA calls of the host.
        ranges: NVTX ranges, or those of torch.profiler.
        overhead: Time that the profiler itself takes.
        stream_events: Events that streams record and wait for.
        devices: The GPUs, with the properties that the capture states.
        streams: The streams by process, context and id.
        threads: The threads of the host.
        shapes: Grids and blocks of kernels.
        program: The kind of the program, and what says so.
        window: The time, in ns, that every measure is restricted to; None for all.
        evidence: Samples, scheduling and system calls of threads.
        sizes: Sizes of the inputs of operations, which a torch.profiler trace can have.
        scopes: Modules and operations of torch.profiler.
        memory: Allocations, in bytes.
        gpu_metrics: Samples of the GPU's counters.
        captures: CUDA graphs while they are captured.
        failed: Calls that returned an error.
        lost: Launches whose GPU work the capture lacks.

    Raises:
        TypeError: A column is missing or has another type.
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
    shapes: pl.DataFrame
    program: Program = PLAIN_CUDA
    window: Window | None = None
    evidence: HostEvidence = field(default_factory=HostEvidence)
    sizes: WorkSizes = field(default_factory=WorkSizes)
    scopes: pl.DataFrame = field(default_factory=lambda: empty_frame(SCOPES))
    memory: pl.DataFrame = field(default_factory=lambda: empty_frame(MEMORY))
    gpu_metrics: pl.DataFrame = field(default_factory=lambda: empty_frame(GPU_METRICS))
    captures: pl.DataFrame = field(default_factory=lambda: empty_frame(CAPTURES))
    failed: pl.DataFrame = field(default_factory=lambda: empty_frame(FAILED))
    lost: pl.DataFrame = field(default_factory=lambda: empty_frame(LOST))

    def __post_init__(self) -> None:
        for owner, schemas in ((self, FRAMES), (self.evidence, EVIDENCE), (self.sizes, SIZES)):
            for name, schema in schemas.items():
                _check(name, getattr(owner, name), schema)

    def __repr__(self) -> str:
        rows = {name: len(getattr(self, name)) for name in FRAMES}
        filled = ", ".join(f"{name} {count:,}" for name, count in rows.items() if count)
        return f"Trace of {self.info.file}, {self.info.profiler}\n  rows: {filled}\n  columns: the schema of each frame"

    @property
    def span(self) -> Window:
        """The time from the first to the last event, or the window."""
        if self.window is not None:
            return self.window
        frames = (self.operations, self.api, self.ranges)
        starts = [int(frame["start"].to_numpy()[0]) for frame in frames if len(frame)]
        ends = [int(frame["end"].to_numpy().max()) for frame in frames if len(frame)]
        return Window(min(starts, default=0), max(ends, default=1))

    @property
    def own_calls(self) -> pl.DataFrame:
        """The rows of `api` that begin in the window."""
        if self.window is None:
            return self.api
        first, last = np.searchsorted(self.api["start"].to_numpy(), (self.window.start, self.window.end)).tolist()
        return self.api[first:last]

    def with_window(self, window: Window) -> Trace:
        """Return the same trace, with every measure restricted to `window`."""
        return replace(self, window=window)
