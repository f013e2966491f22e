"""The result of every reader: the tables of nsys's SQLite export, with nsys's names of tables and columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from traceview.errors import DamagedExportError
from traceview.model.frozen import dataclass
from traceview.model.trace import Note, Window
from traceview.model.units import duration, quantity

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CUDA_EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
NVTX = "NVTX_EVENTS"
OVERHEAD = "PROFILER_OVERHEAD"
MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"  # torch.profiler's `[memory]` events become this table too
GPU_METRICS = "GPU_METRICS"
GPU_METRIC_NAMES = "TARGET_INFO_GPU_METRICS"
CUPTI_OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
STRINGS = "StringIds"
PROCESSES = "PROCESSES"
THREAD_NAMES = "ThreadNames"
# What the host did besides CUDA calls.
SYSTEM_CALLS = "OSRT_API"
VIDEO_CALLS = "NVVIDEO_DECODER_API"  # calls of NVDEC, which wait for the video engine
FILE_EVENTS = "OSRT_FILE_ACCESS_EVENTS"  # a system call on a file: the thread and start of the call
FILES = "OSRT_FILE_ACCESS_DESCRIPTORS"
SCHEDULING = "SCHED_EVENTS"
CPU_SAMPLES = "COMPOSITE_EVENTS"
CPU_STACKS = "SAMPLING_CALLCHAINS"
# The stacks of long system and CUDA calls, and the column of a call with the id of its stack.
SYSTEM_STACKS = "OSRT_CALLCHAINS"
CUDA_STACKS = "CUDA_CALLCHAINS"
STACK_ID = "callchainId"
NATIVE_STACKS = (CPU_STACKS, SYSTEM_STACKS, CUDA_STACKS)
# Python call stacks, which nsys exports as binary payloads of NVTX marks, and torch.profiler as events.
PYTHON_SAMPLES = "TRACEVIEW_PYTHON_SAMPLES"
PYTHON_STACKS = "TRACEVIEW_PYTHON_STACKS"
PYTHON_FRAMES = "TRACEVIEW_PYTHON_FRAMES"
STACKS = (*NATIVE_STACKS, PYTHON_SAMPLES, PYTHON_STACKS, PYTHON_FRAMES)  # names of functions and files of the program
MPI = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
OPENACC = (
    "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH",
    "CUPTI_ACTIVITY_KIND_OPENACC_DATA",
    "CUPTI_ACTIVITY_KIND_OPENACC_OTHER",
)
# Not tables of nsys: readers of other captures, or of payloads, fill them (normalise/sizes.py), and `redact` PROGRAM.
MATH = "TORCH_OPS"
SCOPES = "TORCH_SCOPES"
GRAPH_NODES = "CUDA_GRAPH_NODE_EVENTS"
GRAPH_NODE = "graphNodeId"  # column of kernels; read if the table GRAPH_NODES has the captures of nodes
MESSAGES = "COLLECTIVES"
NCCL_CALLS = "NCCL_CALLS"
PROGRAM = "TRACEVIEW_PROGRAM"

# eventType of NVTX_EVENTS.
RANGE_TYPES = PUSHED, STARTED = 59, 60
MARKED = 34
CATEGORY_NAMED = 33
THREAD_NAMED = 39
DOMAIN_CREATED = 75

ON_A_STREAM = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")

# The columns in which the launches of kernels differ, apart from times, streams and ids.
SHAPE_COLUMNS = (
    *("shortName", "demangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
)
SHAPE = "shape"
GPU_LIMITS = ("smCount", "maxWarpsPerSm", "maxRegistersPerSm", "maxShmemPerSm", "maxBlocksPerSm")

# The types of elements of a message: their names in PyTorch, in reports, and their bytes. COLLECTIVES has the row.
ELEMENTS = (
    ("Float", "fp32", 4),
    ("BFloat16", "bf16", 2),
    ("Half", "fp16", 2),
    ("Double", "fp64", 8),
    ("Byte", "uint8", 1),
    ("Char", "int8", 1),
    ("Short", "int16", 2),
    ("Int", "int32", 4),
    ("Long", "int64", 8),
    ("Bool", "bool", 1),
    ("ComplexFloat", "complex64", 8),
    ("ComplexDouble", "complex128", 16),
    ("Float8_e4m3fn", "fp8", 1),
    ("Float8_e5m2", "fp8", 1),
    ("Float8_e4m3fnuz", "fp8", 1),
    ("Float8_e5m2fnuz", "fp8", 1),
)

TIMES = ("start", "end")
NOT_A_TIME = -(1 << 63)


class WantedColumns(NamedTuple):
    """The columns that are read from a table: required, optional, and which of them hold text.

    `health` are optional columns whose absence is not noted, because old exports and other readers lack them.
    """

    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    health: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read if they exist."""
        return self.needed + self.optional + self.health


TABLES: Mapping[str, WantedColumns] = {
    KERNEL: WantedColumns((*ON_A_STREAM, "shortName"), SHAPE_COLUMNS[1:], health=(GRAPH_NODE,)),
    MEMCPY: WantedColumns((*ON_A_STREAM, "bytes", "copyKind"), ("srcKind", "dstKind")),
    MEMSET: WantedColumns(ON_A_STREAM, ("bytes",)),
    GRAPH: WantedColumns(ON_A_STREAM, ("graphId",)),
    RUNTIME: WantedColumns(("start", "end", "globalTid", "correlationId", "nameId"), health=("returnValue", STACK_ID)),
    SYNCHRONIZATION: WantedColumns(("contextId", "streamId", "correlationId", "globalPid", "syncType"), ("eventId",)),
    CUDA_EVENT: WantedColumns(("contextId", "streamId", "correlationId", "globalPid"), ("eventId",)),
    NVTX: WantedColumns(
        ("start", "end", "eventType", "globalTid"), ("text", "textId", "domainId"), text=("text",), health=("category",)
    ),
    OVERHEAD: WantedColumns(("start", "end")),
    CUPTI_OVERHEAD: WantedColumns(("start", "end", "overheadType"), ("globalTid",)),
    DIAGNOSTICS: WantedColumns(("text",), text=("text",)),
    MEMORY: WantedColumns(
        ("start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType"),
        health=("correlationId", "globalTid", "totalBytes"),
    ),
    GPU_METRICS: WantedColumns(("timestamp", "typeId", "metricId", "value")),
    GPU_METRIC_NAMES: WantedColumns(("typeId", "metricId", "metricName"), text=("metricName",)),
    **dict.fromkeys(MPI, WantedColumns(("start", "end", "globalTid", "textId"))),
    **dict.fromkeys(OPENACC, WantedColumns(("start", "end", "globalTid", "nameId"))),
    GRAPH_NODES: WantedColumns(("start", "globalTid", GRAPH_NODE), health=("originalGraphNodeId",)),
    SCOPES: WantedColumns(("start", "end", "globalTid", "nameId", "kind", "backward"), ("sequence", "forward_thread")),
    MATH: WantedColumns(("start", "end", "globalTid", "flops"), ("nameId", "textId", "bytes")),
    MESSAGES: WantedColumns(
        ("correlationId", "globalPid", "nameId", "textId", "groupSize", "elementType", "sentBytes", "receivedBytes")
    ),
    NCCL_CALLS: WantedColumns(
        ("start", "end", "globalTid", "name", "communicator", "bytes", "ranks"), text=("name", "communicator")
    ),
    PROGRAM: WantedColumns(("name", "value"), text=("name", "value")),
    STRINGS: WantedColumns(("id", "value"), text=("value",)),
    "TARGET_INFO_GPU": WantedColumns(
        (), ("id", "name", "cuDevice", "isDiscrete", *GPU_LIMITS, "computeMajor", "computeMinor"), ("name",)
    ),
    "TARGET_INFO_CUDA_DEVICE": WantedColumns((), ("gpuId", "cudaId", "pid", "uuid"), ("uuid",)),
    "TARGET_INFO_CUDA_STREAM": WantedColumns(("streamId", "processId", "contextId"), ("flag",)),
    "TARGET_INFO_CUDA_NULL_STREAM": WantedColumns(("streamId", "processId", "contextId")),
    "TARGET_INFO_NVTX_CUDA_STREAM": WantedColumns((), ("streamId", "processId", "contextId", "name"), ("name",)),
    THREAD_NAMES: WantedColumns(("nameId", "globalTid")),
    PROCESSES: WantedColumns(("globalPid",), ("name",), ("name",)),
    SYSTEM_CALLS: WantedColumns(("start", "end", "globalTid", "nameId"), (STACK_ID,)),
    VIDEO_CALLS: WantedColumns(("start", "end", "globalTid", "nameId")),
    FILE_EVENTS: WantedColumns(("fileAccessId", "threadId", "startedAt")),
    FILES: WantedColumns(("fileAccessId", "filePath"), text=("filePath",)),
    SCHEDULING: WantedColumns(("start", "isSchedIn", "globalTid")),
    CPU_SAMPLES: WantedColumns(("id", "start", "globalTid")),
    **dict.fromkeys(NATIVE_STACKS, WantedColumns(("id", "symbol", "module", "stackDepth"))),
    PYTHON_SAMPLES: WantedColumns(("start", "end", "globalTid", "category", "holdsGil", "stack")),
    PYTHON_STACKS: WantedColumns(("parent", "frame")),
    PYTHON_FRAMES: WantedColumns(("functionId", "fileId", "line")),
}

GPU_WORK = (KERNEL, MEMCPY, MEMSET, GRAPH)
# The columns of the largest tables that hold at most 32 bits, and that code which joins them expects to be narrow.
NARROW: Mapping[str, Mapping[str, type[np.integer[Any]]]] = {
    KERNEL: {"correlationId": np.uint32},
    RUNTIME: {"correlationId": np.uint32, "nameId": np.int32},
}
# Every figure needs the times in these tables; an export without the others is still useful.
ESSENTIAL = (*GPU_WORK, RUNTIME, NVTX, OVERHEAD)


def wanted_columns(
    present: Sequence[str], table: str, problems: list[str], *, file: str, remedy: str
) -> list[str] | None:
    """Return the columns of a table that are read, in the order of TABLES; None if a required column is missing.

    Missing columns are added to `problems`. Raises DamagedExportError, with `file` and `remedy`, if the table is one
    that the analysis cannot do without.
    """
    wanted = TABLES[table]
    missing = [column for column in wanted.needed if column not in present]
    if missing and table in (*ESSENTIAL, STRINGS):
        raise DamagedExportError(f"{file}: the table {table} has no column {missing[0]!r}; {remedy}")
    if missing:
        problems.append(f"{table} has no column {missing[0]!r} and was left out")
        return None
    absent = [repr(column) for column in wanted.optional if column not in present]
    if table in ESSENTIAL and absent:
        problems.append(f"{table} has no column {', '.join(absent)}")
    return [column for column in wanted.columns if column in present]


def known_table(table: str) -> str | None:
    """Return the table that a name with a version stands for, as CUPTI_ACTIVITY_KIND_KERNEL_V3 does; None for none."""
    name = re.sub(r"_V\d+$", "", table)
    return name if name != table and name in TABLES and table not in TABLES else None


def problem_of_unread(table: str) -> str:
    """Return the note on a table that known_table knows: "CUPTI_ACTIVITY_KIND_KERNEL_V3 is not read: ..."."""
    return f"{table} has rows and is ignored: this version reads {known_table(table)} alone; report the version of nsys"


def creates_domain(name: str) -> pl.Expr:
    """Return which rows of NVTX_EVENTS create the domain with this name."""
    return (pl.col("eventType") == DOMAIN_CREATED) & (pl.col("text") == name)


def has_domain(nvtx: pl.DataFrame | None, name: str) -> bool:
    """Return whether NVTX_EVENTS names a domain."""
    return nvtx is not None and "text" in nvtx.columns and not nvtx.filter(creates_domain(name)).is_empty()


def problem_of_rows(table: str, count: int, what: str) -> str:
    """Return the note on `count` rows of a table: "1 row of NVTX_EVENTS left out: ..."."""
    return f"{quantity(count, 'row')} of {table} {what}"


def as_stored(column: pl.Series) -> pl.Series:
    """Return a column in a type that SQLite stores: Int64, Float64 or String; values of other types are empty blobs.

    Bytes that are not UTF-8 become replacement characters. Equal categories and equal bytes share one text: a repeated
    text costs 16 bytes.
    """
    kind = column.dtype
    if kind in (pl.Int64, pl.Float64, pl.String):
        return column
    if kind == pl.UInt64:
        return column.reinterpret(signed=True)
    if kind.is_integer() or kind in (pl.Boolean, pl.Null):
        return column.cast(pl.Int64)
    if kind.is_float():
        return column.cast(pl.Float64)
    if kind in (pl.Binary, pl.Categorical, pl.Enum):
        texts = column.unique().drop_nulls()
        values = [text.decode("utf-8", "replace") for text in texts] if kind == pl.Binary else texts.cast(pl.String)
        return column.replace_strict(texts, values, default=None, return_dtype=pl.String)
    return column.to_frame().select(pl.when(column.is_not_null()).then(pl.lit(b"")).alias(column.name)).to_series()


TORCH_PROFILER = "torch.profiler"  # RawCapture.profiler of its traces


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group of torch.distributed: its name and backend, its size, and its ranks where the trace has them."""

    name: str
    backend: str
    size: int | None
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DistributedInfo:
    """What a trace says of its run (`distributedInfo`); None for what it does not say."""

    rank: int | None
    world_size: int | None
    groups: tuple[ProcessGroup, ...]


class Wanted(NamedTuple):
    """The part of a capture that a user wants: texts of times (model/times.py), or the name of an NVTX range."""

    start: str | None = None
    end: str | None = None
    range_name: str | None = None


class Stretch(NamedTuple):
    """What is read of a capture: a window of its time `whole`, and the row ids [first, stop) by table."""

    window: Window
    whole: Window
    rows: Mapping[str, tuple[int, int]]

    @property
    def words(self) -> str:
        """Say which part of the capture was read, as in "of 41.0 s, 12.0 to 19.1 s were read"."""
        first, last = (moment - self.whole.start for moment in (self.window.start, self.window.end))
        return f"of {duration(self.whole.length)}, {duration(first)} to {duration(last)} were read"

    @property
    def note(self) -> Note:
        """What a report says of it."""
        remedy = "choose another stretch with --from, --to or --range, or use a machine with more memory"
        return Note("stretch", f"the capture does not fit into memory: {self.words}; {remedy}")


class RawCapture(NamedTuple):
    """One capture as read: `tables` holds the TABLES that exist, each with the wanted columns that exist.

    Integers are Int64, or narrower in the columns NARROW, and texts String. A value of another type is null, and its
    row is counted in `problems`; a time of another type is NOT_A_TIME, because a null end means a range that was open
    when the capture ended. `profiler` is the program that made the capture; readers of other profilers' captures
    convert them to these tables.

    A reader may return the SHAPE_COLUMNS of kernels apart: `shapes` then has them, and the column SHAPE of KERNEL has
    the row in it. `stretch` is the part of a capture larger than memory that was read.
    """

    file: str
    nsys_version: str | None
    schema_version: str | None
    tables: Mapping[str, pl.DataFrame]
    problems: tuple[str, ...] = ()
    profiler: str = "nsys"
    shapes: pl.DataFrame | None = None
    stretch: Stretch | None = None
    distributed: DistributedInfo | None = None
