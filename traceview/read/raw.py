"""What a reader hands on: the tables as the export has them, columns by their own names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from traceview.errors import DamagedExportError

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CUDA_EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
NVTX = "NVTX_EVENTS"
OVERHEAD = "PROFILER_OVERHEAD"
STRINGS = "StringIds"
MPI = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
OPENACC = (
    "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH",
    "CUPTI_ACTIVITY_KIND_OPENACC_DATA",
    "CUPTI_ACTIVITY_KIND_OPENACC_OTHER",
)

# eventType of NVTX_EVENTS.
RANGE_TYPES = PUSHED, STARTED = 59, 60
DOMAIN_CREATED = 75

ON_A_STREAM = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")

TIMES = ("start", "end")
NOT_A_TIME = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Table:
    """What is wanted of a table: columns it must have, columns it may have, and which of them hold text."""

    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()
    text: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read where they exist."""
        return self.needed + self.optional


TABLES: Mapping[str, Table] = {
    KERNEL: Table((*ON_A_STREAM, "shortName")),
    MEMCPY: Table((*ON_A_STREAM, "bytes", "copyKind"), ("srcKind", "dstKind")),
    MEMSET: Table(ON_A_STREAM, ("bytes",)),
    GRAPH: Table(ON_A_STREAM, ("graphId",)),
    RUNTIME: Table(("start", "end", "globalTid", "correlationId", "nameId")),
    SYNCHRONIZATION: Table(("contextId", "streamId", "correlationId", "globalPid", "syncType"), ("eventId",)),
    CUDA_EVENT: Table(("contextId", "streamId", "correlationId", "globalPid"), ("eventId",)),
    NVTX: Table(("start", "end", "eventType", "globalTid"), ("text", "textId", "domainId"), text=("text",)),
    OVERHEAD: Table(("start", "end")),
    **dict.fromkeys(MPI, Table(("start", "end", "globalTid", "textId"))),
    **dict.fromkeys(OPENACC, Table(("start", "end", "globalTid", "nameId"))),
    STRINGS: Table(("id", "value"), text=("value",)),
    "TARGET_INFO_GPU": Table((), ("id", "name", "uuid", "busLocation", "cuDevice"), ("name", "uuid", "busLocation")),
    "TARGET_INFO_CUDA_DEVICE": Table((), ("gpuId", "cudaId", "pid", "uuid"), ("uuid",)),
    "TARGET_INFO_CUDA_STREAM": Table(("streamId", "processId", "contextId"), ("flag",)),
    "TARGET_INFO_CUDA_NULL_STREAM": Table(("streamId", "processId", "contextId")),
    "TARGET_INFO_NVTX_CUDA_STREAM": Table((), ("streamId", "processId", "contextId", "name"), ("name",)),
    "ThreadNames": Table(("nameId", "globalTid")),
}

# These carry times that every figure needs; without the others an export still says something.
ESSENTIAL = (KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME, NVTX, OVERHEAD)


def wanted_columns(
    present: Sequence[str], table: str, problems: list[str], *, file: str, remedy: str
) -> list[str] | None:
    """Return which columns of a table are read, in the order of TABLES; None where one that it needs is missing.

    What is missing is added to `problems`. Raises DamagedExportError, with `file` and `remedy`, where nothing
    can be said without it.
    """
    wanted = TABLES[table]
    missing = [column for column in wanted.needed if column not in present]
    if missing and table in (*ESSENTIAL, STRINGS):
        raise DamagedExportError(f"{file}: the table {table} has no column {missing[0]!r}; {remedy}")
    if missing:
        problems.append(f"{table} has no column {missing[0]!r} and was left out")
        return None
    if table in ESSENTIAL:
        problems.extend(f"{table} has no column {one!r}" for one in wanted.optional if one not in present)
    return [column for column in wanted.columns if column in present]


@dataclass(frozen=True, slots=True)
class RawCapture:
    """One export, as read: `tables` holds those of TABLES that exist, each with the columns that exist.

    Whole numbers are Int64 and texts String. A value of another type is null there and its row is counted in
    `problems`, but a time of another type is NOT_A_TIME: null is a range that the capture cut off. `profiler` is
    what made it; another one's capture is brought into these tables by its reader.
    """

    file: str
    nsys_version: str | None
    schema_version: str | None
    tables: Mapping[str, pl.DataFrame]
    problems: tuple[str, ...] = ()
    profiler: str = "nsys"
