"""Communicators, where an export names them: NCCL's own NVTX ranges with their payloads.

NCCL puts the communicator's id and the bytes of each call into the payload of an NVTX range. nsys exports
payloads only when asked (`nsys export --include-blobs true`, `--include-json true` of newer versions): as a blob in
NVTX_EVENTS.binaryData (a header of 32 bytes with domain and schema, then the payload as the schema in
NVTX_PAYLOAD_SCHEMA_ENTRIES lays it out) or as JSON in jsonText.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from traceview.read.source import display_name
from traceview.read.sqlite.database import columns_of, open_read_only, real_tables

COMMUNICATOR = "NCCL communicator ID"
HEADER = struct.Struct("<QQQQ")  # domain, schema, bytes of the payload, bytes of the whole
UNSIGNED = struct.Struct("<Q")
MOST = 2_000_000  # calls that are looked at
LONGEST = 4096  # bytes of one payload
LOW = 0xFFFFFFFF
PAYLOADS = {"start": pl.Int64, "process": pl.Int32, "tid": pl.Int64, "communicator": pl.String}


def communicators(export: Path) -> pl.DataFrame:
    """Return one row a NCCL call that names its communicator: start, process, tid, communicator; sorted by start."""
    with open_read_only(export) as connection:
        present = real_tables(connection, display_name(export))
        rows = list(_rows(connection, present)) if "NVTX_EVENTS" in present else []
    return pl.DataFrame(rows, schema=PAYLOADS, orient="row").sort("start", maintain_order=True)


def _rows(connection: sqlite3.Connection, present: dict[str, int]) -> Iterator[tuple[int, int, int, str]]:
    columns = columns_of(connection, "NVTX_EVENTS")
    if not {"start", "globalTid"} <= set(columns):
        return
    offsets = _offsets(connection, present)
    for column in ("binaryData", "jsonText"):
        if column not in columns or (column == "binaryData" and not offsets):
            continue
        query = (
            f"SELECT start, globalTid, CAST({column} AS BLOB) FROM NVTX_EVENTS WHERE {column} IS NOT NULL "
            f"AND length({column}) <= {LONGEST} AND typeof(start) = 'integer' "
            f"AND typeof(globalTid) = 'integer' LIMIT {MOST}"
        )
        for start, thread, payload in connection.execute(query):
            found = _of_blob(payload, offsets) if column == "binaryData" else _of_json(payload)
            if found is not None:
                yield start, (thread >> 24) & 0xFFFFFF, thread & 0xFFFFFF, found


def _offsets(connection: sqlite3.Connection, present: dict[str, int]) -> dict[tuple[int, int], int]:
    """Return where in the payload of each (domain, schema) the communicator stands."""
    if "NVTX_PAYLOAD_SCHEMA_ENTRIES" not in present:
        return {}
    wanted = {"domainId", "schemaId", "name", "offset"}
    if not wanted <= set(columns_of(connection, "NVTX_PAYLOAD_SCHEMA_ENTRIES")):
        return {}
    rows = connection.execute(
        'SELECT domainId, schemaId, coalesce("offset", 0) FROM NVTX_PAYLOAD_SCHEMA_ENTRIES WHERE name = ?',
        (COMMUNICATOR,),
    )
    return {(domain, schema): offset for domain, schema, offset in rows if isinstance(offset, int) and offset >= 0}


def _of_blob(blob: bytes, offsets: dict[tuple[int, int], int]) -> str | None:
    if len(blob) < HEADER.size:
        return None
    domain, schema, _, _ = HEADER.unpack_from(blob)
    offset = offsets.get((domain & LOW, schema & LOW))
    if offset is None or HEADER.size + offset + UNSIGNED.size > len(blob):
        return None
    return f"{UNSIGNED.unpack_from(blob, HEADER.size + offset)[0]:016x}"


def _of_json(text: bytes) -> str | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    value = found.get(COMMUNICATOR) if isinstance(found, dict) else None
    digits = str(value).replace(",", "")
    if isinstance(value, bool) or not digits.isascii() or not digits.isdigit() or len(digits) > 20:
        return None
    return f"{int(digits):016x}"
