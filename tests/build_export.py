"""Write a small nsys-like SQLite export by hand, for cases that no real capture has.

    build_export(path, kernels=[Kernel(10, 20)], api=[Call(5, 9)])

is one kernel and the call that launched it: every field has a default that fits the others (process 10,
thread 11, device 0, context 1, stream 7, correlation id 1). Names go through StringIds as in a real export; a
name that is an int is used as the string id itself. A value of any type is written as it is: damage is easy.

Tables without rows are not written, as nsys does; name one in `empty` to have it empty. `drop` takes away a
whole table ("StringIds") or a column of one ("NVTX_EVENTS.textId"). `statements` run last, for the rest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Value = Any  # whatever SQLite stores, the wrong types included


@dataclass(frozen=True)
class Kernel:
    start: Value = 10
    end: Value = 20
    name: Value = "gemm"
    correlation: Value = 1
    stream: Value = 7
    device: Value = 0
    process: Value = 10
    context: Value = 1


@dataclass(frozen=True)
class Copy:
    """`kind` is CUPTI's copyKind, `source` and `target` its memory kinds: pinned to device by default."""

    start: Value = 10
    end: Value = 20
    kind: Value = 1
    source: Value = 1
    target: Value = 2
    bytes: Value = 4096
    correlation: Value = 1
    stream: Value = 7
    device: Value = 0
    process: Value = 10
    context: Value = 1


@dataclass(frozen=True)
class Memset:
    start: Value = 10
    end: Value = 20
    bytes: Value = 64
    correlation: Value = 1
    stream: Value = 7
    device: Value = 0
    process: Value = 10
    context: Value = 1


@dataclass(frozen=True)
class Graph:
    start: Value = 10
    end: Value = 20
    graph: Value = 2
    correlation: Value = 1
    stream: Value = 7
    device: Value = 0
    process: Value = 10
    context: Value = 1


@dataclass(frozen=True)
class Call:
    start: Value = 5
    end: Value = 9
    name: Value = "cudaLaunchKernel_v7000"
    correlation: Value = 1
    thread: Value = 11
    process: Value = 10


@dataclass(frozen=True)
class Nvtx:
    """`text` is written in the row itself, `registered` through StringIds; `kind` 75 creates a domain."""

    start: Value = 0
    end: Value = 100
    text: Value = None
    registered: Value = None
    kind: Value = 59
    domain: Value = 0
    thread: Value = 11
    process: Value = 10


@dataclass(frozen=True)
class Overhead:
    start: Value = 0
    end: Value = 1


@dataclass(frozen=True)
class Sync:
    """`kind`: 1 event, 2 stream waits for event, 3 stream, 4 context."""

    kind: Value = 3
    correlation: Value = 1
    stream: Value = 7
    event: Value = 0
    process: Value = 10
    context: Value = 1


@dataclass(frozen=True)
class Record:
    event: Value = 0
    correlation: Value = 1
    stream: Value = 7
    process: Value = 10
    context: Value = 1


@dataclass(frozen=True)
class Gpu:
    """A row of TARGET_INFO_GPU: what the machine has, whoever used it."""

    number: Value = 0
    name: Value = "NVIDIA H200"
    uuid: Value = None
    device: Value = 0


@dataclass(frozen=True)
class CudaDevice:
    """A row of TARGET_INFO_CUDA_DEVICE: the physical GPU behind a process's ordinal."""

    device: Value = 0
    process: Value = 10
    uuid: Value = "GPU-1"
    number: Value = 0


@dataclass(frozen=True)
class Stream:
    """`flag`: 1 default, 2 non-blocking, 3 the null stream."""

    stream: Value = 7
    flag: Value = 2
    process: Value = 10
    context: Value = 1


@dataclass(frozen=True)
class NullStream:
    stream: Value = 7
    process: Value = 10
    context: Value = 1


@dataclass(frozen=True)
class NamedStream:
    name: Value = "copies"
    stream: Value = 7
    process: Value = 10
    context: Value = 1


@dataclass(frozen=True)
class ThreadName:
    name: Value = "python3"
    thread: Value = 11
    process: Value = 10


_ON_A_STREAM = {
    "start": "start",
    "end": "end",
    "deviceId": "device",
    "contextId": "context",
    "streamId": "stream",
    "correlationId": "correlation",
    "globalPid": "process",
}
_EVENT = {
    "contextId": "context",
    "streamId": "stream",
    "correlationId": "correlation",
    "globalPid": "process",
}
_A_STREAM = {"streamId": "stream", "processId": "process", "contextId": "context"}

# Each table's columns, and the field that fills each.
TABLES: Mapping[str, Mapping[str, str]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": {**_ON_A_STREAM, "demangledName": "name", "shortName": "name"},
    "CUPTI_ACTIVITY_KIND_MEMCPY": {
        **_ON_A_STREAM,
        "bytes": "bytes",
        "copyKind": "kind",
        "srcKind": "source",
        "dstKind": "target",
    },
    "CUPTI_ACTIVITY_KIND_MEMSET": {**_ON_A_STREAM, "bytes": "bytes"},
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": {**_ON_A_STREAM, "graphId": "graph"},
    "CUPTI_ACTIVITY_KIND_RUNTIME": {
        "start": "start",
        "end": "end",
        "globalTid": "thread",
        "correlationId": "correlation",
        "nameId": "name",
    },
    "NVTX_EVENTS": {
        "start": "start",
        "end": "end",
        "eventType": "kind",
        "text": "text",
        "globalTid": "thread",
        "textId": "registered",
        "domainId": "domain",
    },
    "PROFILER_OVERHEAD": {"start": "start", "end": "end"},
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": {**_EVENT, "syncType": "kind", "eventId": "event"},
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": {**_EVENT, "eventId": "event"},
    "TARGET_INFO_GPU": {"id": "number", "name": "name", "uuid": "uuid", "cuDevice": "device"},
    "TARGET_INFO_CUDA_DEVICE": {"gpuId": "number", "cudaId": "device", "pid": "process", "uuid": "uuid"},
    "TARGET_INFO_CUDA_STREAM": {**_A_STREAM, "flag": "flag"},
    "TARGET_INFO_CUDA_NULL_STREAM": _A_STREAM,
    "TARGET_INFO_NVTX_CUDA_STREAM": {**_A_STREAM, "name": "name"},
    "ThreadNames": {"nameId": "name", "globalTid": "thread"},
}
_THROUGH_STRINGS = ("demangledName", "shortName", "nameId", "textId")


def build_export(
    path: Path,
    *,
    kernels: Sequence[Kernel] = (),
    copies: Sequence[Copy] = (),
    memsets: Sequence[Memset] = (),
    graphs: Sequence[Graph] = (),
    api: Sequence[Call] = (),
    nvtx: Sequence[Nvtx] = (),
    overhead: Sequence[Overhead] = (),
    syncs: Sequence[Sync] = (),
    records: Sequence[Record] = (),
    gpus: Sequence[Gpu] = (),
    cuda_devices: Sequence[CudaDevice] = (),
    streams: Sequence[Stream] = (),
    null_streams: Sequence[NullStream] = (),
    named_streams: Sequence[NamedStream] = (),
    threads: Sequence[ThreadName] = (),
    empty: Iterable[str] = (),
    drop: Iterable[str] = (),
    statements: Iterable[str] = (),
) -> Path:
    """Write the export and return its path; a file that is there already is replaced."""
    rows_of = (
        kernels, copies, memsets, graphs, api, nvtx, overhead, syncs, records,
        gpus, cuda_devices, streams, null_streams, named_streams, threads,
    )  # fmt: skip
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    with connection:
        strings: dict[str, int] = {}
        for (table, columns), rows in zip(TABLES.items(), rows_of, strict=True):
            if rows or table in set(empty):
                _write(connection, table, columns, rows, strings)
        _strings(connection, strings)
    with connection:
        for what in drop:
            table, _, column = what.partition(".")
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}" if column else f"DROP TABLE {table}")
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def _write(
    connection: sqlite3.Connection,
    table: str,
    columns: Mapping[str, str],
    rows: Sequence[object],
    strings: dict[str, int],
) -> None:
    texts = ("text", "uuid") if table == "NVTX_EVENTS" else ("name", "uuid")
    declared = ", ".join(f'"{column}" {"TEXT" if column in texts else "INTEGER"}' for column in columns)
    connection.execute(f"CREATE TABLE {table} ({declared})")
    values = [tuple(_value(row, column, field, strings) for column, field in columns.items()) for row in rows]
    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", values)


def _value(row: object, column: str, field: str, strings: dict[str, int]) -> Value:
    value = getattr(row, field)
    if column in _THROUGH_STRINGS and isinstance(value, str):
        return strings.setdefault(value, 3 * len(strings) + 5)  # sparse ids, as nsys has them
    if column == "globalPid" and value is not None:
        return 1 << 48 | value << 24  # above the process nsys packs the machine
    if column == "globalTid" and value is not None:
        return 1 << 48 | getattr(row, "process") << 24 | value  # noqa: B009
    return value


def _strings(connection: sqlite3.Connection, strings: Mapping[str, int]) -> None:
    connection.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in strings.items()])
    connection.execute("CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT)")
    connection.executemany(
        "INSERT INTO META_DATA_EXPORT VALUES (?, ?)",
        [("EXPORT_PRODUCT_VERSION", "2024.2.3.38"), ("EXPORT_SCHEMA_VERSION", "3.11.1")],
    )
