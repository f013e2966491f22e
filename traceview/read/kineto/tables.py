"""Converts events to the tables that nsys would have exported, so that everything after reading is the same."""

from __future__ import annotations

import re

import polars as pl

from traceview.read import raw
from traceview.read.kineto.events import METADATA, TraceEvents
from traceview.read.kineto.identity import TraceIdentity
from traceview.read.kineto.pieces import GPU_LIMITS, TraceGpu
from traceview.read.kineto.scopes import SCOPE, scope_table
from traceview.read.kineto.sizes import MATH, MEMORY, MESSAGE, math_table, memory_table, message_table

# CUpti_ActivitySynchronizationType, by Kineto's words for it.
SYNC_TYPES = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
NO_STREAM = 0xFFFFFFFF  # nsys writes this where Kineto writes -1
PUSH_POP = 59
STRINGS_SCHEMA = {"id": pl.Int64, "value": pl.String}
ALWAYS_PRESENT = (raw.KERNEL, raw.MEMCPY, raw.MEMSET, raw.RUNTIME, raw.NVTX)
# Names of copies, such as `Memcpy HtoD (Pageable -> Device)`: Kineto's words (cupti_strings.cpp) and the numbers of
# CUPTI's memcpy kinds and of nsys's ENUM_CUDA_MEM_KIND.
COPY_NAME = re.compile(r"Memcpy (\w+|<unknown>)(?: \((.+) -> (.+)\))?")
COPY_KINDS = {
    kind: number
    for number, kind in enumerate(
        ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"), start=1
    )
}
UNKNOWN_MEMORY = 7
MEMORIES = {
    "Pageable": 0,
    "Pinned": 1,
    "Device": 2,
    "Array": 3,
    "Managed": 4,
    "Device Static": 5,
    "Managed Static": 6,
}
WARP = 32
OPENING, CLOSING = "<([{", ">)]}"


def nsys_tables(events: TraceEvents, gpus: tuple[TraceGpu, ...]) -> dict[str, pl.DataFrame]:
    """Return the nsys tables that the events and GPUs fill."""
    frames, names = events.frames, events.names
    identity = TraceIdentity.from_events(frames)
    stream = {sort: _stream_events(frames[sort], identity) for sort in ("kernel", "memcpy", "memset", "sync", "event")}
    kernels = stream["kernel"].with_columns(
        (pl.col("name") + len(names)).alias("shortName"),
        pl.col("name").alias("demangledName"),
        pl.lit(0, pl.Int64).alias("staticSharedMemory"),
    )
    converted = {
        raw.KERNEL: kernels,
        raw.MEMCPY: _copies(stream["memcpy"], names),
        raw.MEMSET: stream["memset"],
        raw.RUNTIME: _host_events(frames["call"], identity, "nameId"),
        raw.NVTX: _host_events(frames["range"], identity, "textId").with_columns(
            pl.lit(PUSH_POP, pl.Int64).alias("eventType"),
            pl.lit(0, pl.Int64).alias("domainId"),
            pl.lit(None, pl.String).alias("text"),
        ),
        raw.OVERHEAD: frames["overhead"],
        raw.SYNCHRONIZATION: _synchronizations(stream["sync"], names),
        raw.CUDA_EVENT: _event_records(stream["event"], stream["sync"]),
        raw.SCOPES: scope_table(frames[SCOPE], identity),
        raw.MATH: math_table(frames[MATH], identity),
        raw.MESSAGES: message_table(frames[MESSAGE], identity),
        raw.MEMORY: memory_table(frames[MEMORY], identity),
    }
    present = {
        table: frame.select([column for column in raw.TABLES[table].columns if column in frame.columns])
        for table, frame in converted.items()
        if table in ALWAYS_PRESENT or len(frame)
    }
    return present | {
        "ThreadNames": _thread_names(frames[METADATA], identity, names),
        "TARGET_INFO_GPU": _gpu_table(gpus),
        raw.STRINGS: _strings(names, kernels["name"].unique().sort()),
    }


def _stream_events(events: pl.DataFrame, identity: TraceIdentity) -> pl.DataFrame:
    return events.with_columns(
        pl.coalesce("device", "pid").fill_null(0).alias("deviceId"),
        pl.col("context").fill_null(0).alias("contextId"),
        pl.coalesce("stream", "tid").fill_null(0).alias("streamId"),
        pl.col("correlation").fill_null(0).alias("correlationId"),
        identity.global_pid(events),
    )


def _host_events(events: pl.DataFrame, identity: TraceIdentity, name: str) -> pl.DataFrame:
    return events.with_columns(
        pl.col("correlation").fill_null(0).alias("correlationId"),
        pl.col("name").alias(name),
        identity.global_tid(events),
    )


def _copies(copies: pl.DataFrame, names: tuple[str, ...]) -> pl.DataFrame:
    used = copies["name"].unique()
    rows = [(index, *copy_kind_and_memories(names[index])) for index in used.to_list()]
    schema = dict.fromkeys(("name", "copyKind", "srcKind", "dstKind"), pl.Int64)
    kinds = pl.DataFrame(rows, schema=schema, orient="row")
    return copies.join(kinds, on="name", how="left", maintain_order="left").with_columns(pl.col("bytes").fill_null(0))


def copy_kind_and_memories(name: str) -> tuple[int, int, int]:
    """Return copyKind, srcKind and dstKind; 0 and UNKNOWN_MEMORY if the name does not contain them."""
    match = COPY_NAME.fullmatch(name)
    if match is None:
        return 0, UNKNOWN_MEMORY, UNKNOWN_MEMORY
    kind, source, target = match.groups()
    return COPY_KINDS.get(kind, 0), MEMORIES.get(source, UNKNOWN_MEMORY), MEMORIES.get(target, UNKNOWN_MEMORY)


def _synchronizations(events: pl.DataFrame, names: tuple[str, ...]) -> pl.DataFrame:
    types = {
        index: SYNC_TYPES[names[index]] for index in events["name"].unique().to_list() if names[index] in SYNC_TYPES
    }
    sync_type = pl.col("name").replace_strict(types, default=None, return_dtype=pl.Int64)
    stream = pl.when(pl.col("streamId") < 0).then(pl.lit(NO_STREAM, pl.Int64)).otherwise(pl.col("streamId"))
    return events.with_columns(
        stream.alias("streamId"), sync_type.alias("syncType"), pl.col("wait_on_cuda_event_id").alias("eventId")
    ).filter(pl.col("syncType").is_not_null())


def _event_records(events: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the event records of the trace; if it has none, those that its waits name, each once."""
    if len(events):
        return events.with_columns(pl.col("event_id").alias("eventId"))
    columns = raw.TABLES[raw.CUDA_EVENT].columns
    named = waits.filter((pl.col("wait_on_stream") >= 0) & (pl.col("wait_on_cuda_event_record_corr_id") > 0))
    return (
        named.with_columns(
            pl.col("wait_on_stream").alias("streamId"),
            pl.col("wait_on_cuda_event_record_corr_id").alias("correlationId"),
            pl.col("wait_on_cuda_event_id").alias("eventId"),
        )
        .select(columns)
        .unique(maintain_order=True)
    )


def _thread_names(metadata: pl.DataFrame, identity: TraceIdentity, names: tuple[str, ...]) -> pl.DataFrame:
    """Return the threads of known processes with the indices of their names."""
    if "thread_name" not in names:
        return pl.DataFrame(schema={"nameId": pl.Int64, "globalTid": pl.Int64})
    named = metadata.filter(
        pl.col("name") == names.index("thread_name"), pl.col("pid").is_in(identity.processes["pid"].implode())
    )
    return named.select(pl.col("label").alias("nameId"), identity.global_tid(named))


def _gpu_table(gpus: tuple[TraceGpu, ...]) -> pl.DataFrame:
    rows = [(gpu.ordinal, gpu.name, gpu.ordinal, *map(gpu.limits.get, GPU_LIMITS), gpu.max_blocks) for gpu in gpus]
    schema = {"id": pl.Int64, "name": pl.String} | dict.fromkeys(
        ("cuDevice", *GPU_LIMITS.values(), "maxBlocksPerSm"), pl.Int64
    )
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col("maxWarpsPerSm") // WARP)


def _strings(names: tuple[str, ...], kernels: pl.Series) -> pl.DataFrame:
    """Return all names, followed by the short names of kernels."""
    full = pl.DataFrame(
        {"id": range(len(names)), "value": [_without_thread_id(name) for name in names]}, schema=STRINGS_SCHEMA
    )
    short = [(index + len(names), short_kernel_name(names[index])) for index in kernels.to_list()]
    return pl.concat([full, pl.DataFrame(short, schema=STRINGS_SCHEMA, orient="row")])


def _without_thread_id(name: str) -> str:
    """Return `python` for a thread that Kineto calls `thread 1102 (python)`."""
    if name.startswith("thread ") and name.endswith(")"):
        return name.partition(" (")[2][:-1] or name
    return name


def short_kernel_name(name: str) -> str:
    """Return a kernel's name as nsys shortens it: without parameters, templates, namespaces and return type.

    `void at::native::vectorized_elementwise_kernel<4, ...>(int, ...)` becomes `vectorized_elementwise_kernel`.
    """
    kept: list[str] = []
    depth = 0
    for letter in name.replace("(anonymous namespace)::", ""):
        if letter in OPENING:
            if depth == 0 and letter == "(":
                break
            depth += 1
        elif letter in CLOSING:
            depth -= 1
        elif depth == 0:
            kept.append(letter)
    plain = "".join(kept).strip().rsplit("::", 1)[-1].rsplit(" ", 1)[-1]
    return plain or name
