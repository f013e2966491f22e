"""Writes an export of nsys as torch.profiler would have written the same run: a hand-made fixture.

No run can be captured by both profilers at once: only converted events allow an exact comparison. Layout and words are
Kineto's (libkineto/src/output_json.cpp and cupti_strings.cpp). Graphs without nodes, unified memory and ranges of other
domains, which Kineto does not record, are left out.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]
EPOCH = 1_712_195_495_000_000_000
KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
MARK = re.compile('"@([0-9.]+)@"')
SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}


def microseconds(ns: int) -> str:
    """Return µs with three decimals as a mark that `written` turns into a number: json has no decimals."""
    return f"@{ns // 1000}.{ns % 1000:03}@"


def as_kineto(export: Path, out: Path, *, clock: int = 0, base: int | None = EPOCH, compact: bool = False) -> Path:
    """Write `export` to `out`; `clock` is added to every time, `base` is baseTimeNanoseconds (None: absent)."""
    connection = sqlite3.connect(f"{export.as_uri()}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    with_clock: Event = {} if base is None else {"baseTimeNanoseconds": base}
    gpus = [gpu(row) for row in rows(connection, "TARGET_INFO_GPU")]
    document = {"schemaVersion": 1, "deviceProperties": gpus, **with_clock, "traceEvents": "EVENTS"}
    before, after = json.dumps(document | {"traceName": "/home/ada/trace.json"}).split('"EVENTS"')
    made = [written(event, compact) for event in events(connection, clock)]
    out.write_text(before + "[" + (",".join(made)) + "]" + after, encoding="utf-8")
    connection.close()
    return out


def gpu(row: sqlite3.Row) -> Event:
    """Return a GPU with its limits; Kineto does not write how many blocks an SM holds."""
    return {
        "id": row["id"],
        "name": row["name"],
        "numSms": row["smCount"],
        "computeMajor": row["computeMajor"],
        "computeMinor": row["computeMinor"],
        "maxThreadsPerMultiprocessor": 32 * row["maxWarpsPerSm"],
        "regsPerMultiprocessor": row["maxRegistersPerSm"],
        "sharedMemPerMultiprocessor": row["maxShmemPerSm"],
    }


def written(event: Event, compact: bool) -> str:
    if compact:
        text = json.dumps(event, sort_keys=True, separators=(",", ":"))
    else:
        text = "\n  " + json.dumps(event).replace(', "ts"', ',\n    "ts"')
    return MARK.sub(r"\1", text)


def rows(connection: sqlite3.Connection, table: str, where: str = "1") -> list[sqlite3.Row]:
    try:
        return connection.execute(f"SELECT * FROM {table} WHERE {where}").fetchall()
    except sqlite3.OperationalError:
        return []


def events(connection: sqlite3.Connection, clock: int) -> Iterator[Event]:
    texts = dict(connection.execute("SELECT id, value FROM StringIds"))
    yield from on_gpu(connection, texts, clock)
    yield from on_host(connection, texts, clock)
    yield from synchronizations(connection, clock)
    yield from names_of_threads(connection, texts)
    yield {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": microseconds(clock)}


def complete(row: sqlite3.Row, category: str, name: str, clock: int, where: tuple[int, int], args: Event) -> Event:
    pid, tid = where
    times = {"ts": microseconds(row["start"] + clock), "dur": microseconds(row["end"] - row["start"])}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": args}


def on_gpu(connection: sqlite3.Connection, texts: dict[int, str], clock: int) -> Iterator[Event]:
    def made(row: sqlite3.Row, category: str, name: str, **more: Any) -> Event:
        args = {"External id": 7, "device": row["deviceId"], "context": row["contextId"], "stream": row["streamId"]}
        args |= {"correlation": row["correlationId"]} | more
        return complete(row, category, name, clock, (row["deviceId"], row["streamId"]), args)

    for row in rows(connection, "CUPTI_ACTIVITY_KIND_KERNEL"):
        launch: Event = {name: [row[f"{name}{axis}"] for axis in "XYZ"] for name in ("grid", "block")}
        launch |= {"registers per thread": row["registersPerThread"], "queued": 0}
        launch |= {"shared memory": row["staticSharedMemory"] + row["dynamicSharedMemory"]}
        yield made(row, "kernel", texts[row["demangledName"]], **launch)
    for row in rows(connection, "CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind <= 10"):
        name = f"Memcpy {KINDS[row['copyKind']]} ({MEMORIES[row['srcKind']]} -> {MEMORIES[row['dstKind']]})"
        yield made(row, "gpu_memcpy", name, bytes=row["bytes"], **{"memory bandwidth (GB/s)": 1.5})
    for row in rows(connection, "CUPTI_ACTIVITY_KIND_MEMSET"):
        yield made(row, "gpu_memset", "Memset (Device)", bytes=row["bytes"])


def on_host(connection: sqlite3.Connection, texts: dict[int, str], clock: int) -> Iterator[Event]:
    def made(row: sqlite3.Row, category: str, name: str, **args: Any) -> Event:
        return complete(row, category, name, clock, ids(row["globalTid"]), args)

    for row in rows(connection, "CUPTI_ACTIVITY_KIND_RUNTIME"):
        name = texts[row["nameId"]]
        category = "cuda_runtime" if name.startswith("cuda") else "cuda_driver"
        yield made(row, category, name, cbid=1, correlation=row["correlationId"])
        # An operator around each call, and the flow that Kineto draws: neither is of interest.
        yield made(row, "cpu_op", 'aten::"add" {[\\', **{"Input Dims": [[1], []], "ts": 5, "cat": "kernel"})
        flow = {"ph": "s", "id": 3, "pid": 1, "tid": 1, "ts": microseconds(row["start"] + clock)}
        yield flow | {"cat": "ac2g", "name": "ac2g"}
    for row in rows(connection, "NVTX_EVENTS", "eventType IN (59, 60) AND end IS NOT NULL"):
        yield made(row, "user_annotation", row["text"] if row["text"] is not None else texts[row["textId"]])
    for row in rows(connection, "PROFILER_OVERHEAD"):
        yield complete(row, "overhead", "Instrumentation", clock, (-1, 0), {})


def synchronizations(connection: sqlite3.Connection, clock: int) -> Iterator[Event]:
    for row in rows(connection, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"):
        stream = -1 if row["streamId"] == 0xFFFFFFFF else row["streamId"]
        args = {"context": row["contextId"], "stream": stream, "correlation": row["correlationId"], "device": 0}
        waits = {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1, "wait_on_cuda_event_id": row["eventId"]}
        yield complete(row, "cuda_sync", SYNCS[row["syncType"]], clock, (0, abs(stream)), args | waits)
    for row in rows(connection, "CUPTI_ACTIVITY_KIND_CUDA_EVENT"):
        args = {"event_id": row["eventId"], "stream": row["streamId"], "correlation": row["correlationId"]}
        event = {"ph": "X", "cat": "cuda_event", "name": "cudaEvent", "pid": 0, "tid": row["streamId"]}
        yield event | {"ts": 0, "dur": 1, "args": args | {"context": row["contextId"], "device": 0}}


def names_of_threads(connection: sqlite3.Connection, texts: dict[int, str]) -> Iterator[Event]:
    for row in rows(connection, "ThreadNames"):
        pid, tid = ids(row["globalTid"])
        args = {"name": f"thread {tid} ({texts[row['nameId']]})"}
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": args}


def ids(thread: int) -> tuple[int, int]:
    return thread >> 24 & 0xFFFFFF, thread & 0xFFFFFF
