"""A real SQLite export in the other forms that nsys writes: hand-made, for CI has no nsys that captured a GPU.

The real ones of nsys 2024.2.3 were compared by hand (docs/inputs.md). Both hold what nsys puts in them: an HDF5 file
has no null, a json export has the records alone.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from traceview.read.parquet import META
from traceview.read.raw import TABLES

PLACES = ("correlationId", "deviceId", "contextId", "streamId", "globalPid")


def tables(export: Path) -> Iterator[tuple[str, list[str], list[tuple[Any, ...]]]]:
    connection = sqlite3.connect(f"{export.as_uri()}?mode=ro", uri=True)
    present = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in present:
        if table in TABLES or table in META:
            cursor = connection.execute(f'SELECT * FROM "{table}"')
            yield table, [name for name, *_ in cursor.description], cursor.fetchall()
    connection.close()


def as_hdf(export: Path, out: Path) -> Path:
    import h5py

    with h5py.File(out, "w") as file:
        for table, columns, rows in tables(export):
            texts = TABLES[table].text if table in TABLES else ()
            is_text = [
                name in texts or any(isinstance(row[at], str) for row in rows) for at, name in enumerate(columns)
            ]
            kinds = [h5py.special_dtype(vlen=bytes) if text else np.dtype("<i8") for text in is_text]
            plain = [
                tuple(
                    (value or "").encode() if text else int(value or 0)
                    for value, text in zip(row, is_text, strict=True)
                )
                for row in rows
            ]
            made = np.array(plain, np.dtype(list(zip(columns, kinds, strict=True))))
            file.create_dataset(table, data=made, maxshape=(None,), chunks=(4096,), compression="gzip")
    return out


def as_json(export: Path, out: Path) -> Path:
    found = {table: [dict(zip(columns, row, strict=True)) for row in rows] for table, columns, rows in tables(export)}
    texts = {row["id"]: row["value"] for row in found["StringIds"]}
    strings = [texts.get(place, "") for place in range(max(texts) + 1)]
    threads = [{"nameIdx": str(row["nameId"]), "globalTid": str(row["globalTid"])} for row in found["ThreadNames"]]
    lines = [{"data": strings, "files": []}, *records(found), {"data": threads}]
    out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return out


def records(found: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    def named(row: dict[str, Any], **names: str) -> dict[str, Any]:
        return {name: str(row[column]) for name, column in names.items() if row.get(column) is not None}

    for table, kind, part, fields in (
        ("KERNEL", 79, "kernel", {"shortName": "shortName"}),
        (
            "MEMCPY",
            80,
            "memcpy",
            {"sizebytes": "bytes", "copyKind": "copyKind", "srcKind": "srcKind", "dstKind": "dstKind"},
        ),
        ("MEMSET", 80, "memset", {"sizebytes": "bytes"}),
        ("GRAPH_TRACE", 130, "graph", {"graphId": "graphId"}),
        ("SYNCHRONIZATION", 106, "sync", {"eventId": "eventId", "syncType": "syncType"}),
        ("CUDA_EVENT", 127, "cudaEventRecord", {"eventId": "eventId"}),
    ):
        for row in found.get(f"CUPTI_ACTIVITY_KIND_{table}", []):
            place = named(row, startNs="start", endNs="end", **dict(zip(PLACES, PLACES, strict=True)))
            yield {"Type": kind, "CudaEvent": place | {part: named(row, **fields)}}
    call = {"startNs": "start", "endNs": "end", "name": "nameId", "globalTid": "globalTid"}
    for row in found.get("CUPTI_ACTIVITY_KIND_RUNTIME", []):
        event = named(row, **call, correlationId="correlationId", eventClass="eventClass")
        yield {"Type": 48, "TraceProcessEvent": event}
    for row in found.get("PROFILER_OVERHEAD", []):
        yield {"Type": 48, "TraceProcessEvent": named(row, **call) | {"eventClass": 3, "correlationId": 0}}
    for row in found.get("NVTX_EVENTS", []):
        names = {"Text": "text", "TextId": "textId", "DomainId": "domainId", "GlobalTid": "globalTid"}
        event = named(row, Type="eventType", Timestamp="start", EndTimestamp="end", **names)
        yield {"Type": row["eventType"], "NvtxEvent": event}
