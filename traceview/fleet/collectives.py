"""A rank's communication kernels in launch order, and the communicators that NCCL's NVTX payloads name.

NCCL writes the communicator's id into the payload of an NVTX range around each call. nsys exports payloads only on
request (`nsys export --include-blobs true`, in newer versions `--include-json true`): either as a blob in
NVTX_EVENTS.binaryData (a header of 32 bytes with domain and schema, then the payload in the layout of
NVTX_PAYLOAD_SCHEMA_ENTRIES) or as JSON in jsonText.
"""

from __future__ import annotations

import json
import re
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, Activity
from traceview.model.fleet import Channel, Collectives
from traceview.model.trace import Trace
from traceview.read.source import display_name
from traceview.read.sqlite.database import columns_of, open_read_only, real_tables

# NCCL's kernel names: ncclDevKernel_AllReduce_Sum_f32_RING_LL, ncclKernel_AllReduce_RING_LL_Sum_float.
KERNEL = re.compile(r"(?:nccl|rccl)(?:Dev)?Kernel_([A-Za-z]+)", re.IGNORECASE)
BEFORE_ALL = -(1 << 62)  # the step of collectives that were launched before the first iteration
MAX_COLLECTIVES = 10_000  # per rank
EMPTY = np.empty(0, np.int64)

COMMUNICATOR = "NCCL communicator ID"
HEADER = struct.Struct("<QQQQ")  # domain, schema, bytes of the payload, bytes in total
UNSIGNED = struct.Struct("<Q")
MAX_PAYLOADS = 2_000_000
MAX_PAYLOAD_BYTES = 4096
LOW_32_BITS = 0xFFFFFFFF
COMMUNICATOR_COLUMNS = {"start": pl.Int64, "process": pl.Int32, "tid": pl.Int64, "communicator": pl.String}


def collective_kind(kernel: str) -> str:
    """Return "AllReduce" for ncclDevKernel_AllReduce_Sum_f32_RING_LL, and other names unchanged."""
    match = KERNEL.match(kernel)
    return match[1] if match else kernel[:80]


def measure_collectives(
    trace: Trace, device: Activity, begin: Times, numbers: Times, communicators: pl.DataFrame
) -> Collectives:
    """Return the first MAX_COLLECTIVES collectives of one GPU.

    `begin` are the starts of the rank's iterations, ascending, and `numbers` their numbers. `communicators` is the
    result of communicator_calls. If it does not cover every kernel, streams serve as channels.
    """
    rows = device.rows[device.codes == COMMUNICATION]
    launched, thread = _launch_times_and_threads(trace, rows)
    order = np.argsort(launched, kind="stable")
    left_out = max(len(rows) - MAX_COLLECTIVES, 0)
    rows, launched, thread = (values[order][:MAX_COLLECTIVES] for values in (rows, launched, thread))
    operations = trace.operations
    start, end = (operations[name].to_numpy()[rows] for name in ("start", "end"))
    names = operations["name"].gather(rows).cast(pl.String)
    kinds = sorted({collective_kind(name) for name in names.unique()})
    kind = np.array([kinds.index(collective_kind(name)) for name in names], np.int64)
    channels, channel = _channels(trace, rows, launched, thread, communicators)
    step = np.concatenate([np.array([BEFORE_ALL], np.int64), numbers])[np.searchsorted(begin, launched, side="right")]
    return Collectives(
        kinds=tuple(kinds),
        channels=channels,
        start=start.astype(np.int64),
        end=end.astype(np.int64),
        hidden=intervals.covered_length(device.compute, start, end),
        step=step,
        kind=kind,
        channel=channel,
        left_out=left_out,
    )


def _launch_times_and_threads(trace: Trace, rows: Times) -> tuple[Times, Times]:
    """Return the start and the thread of each kernel's launch call; the kernel's own start and -1 if unknown."""
    launch = trace.operations["launch"].gather(rows)
    known = launch.is_not_null().to_numpy()
    at = launch.fill_null(0).to_numpy()
    start = trace.operations["start"].to_numpy()[rows]
    if not known.any():
        return start, np.full(len(rows), -1, np.int64)
    calls, threads = (trace.api[name].to_numpy() for name in ("start", "thread"))
    return np.where(known, calls[at], start), np.where(known, threads[at], -1).astype(np.int64)


def _channels(
    trace: Trace, rows: Times, launched: Times, thread: Times, communicators: pl.DataFrame
) -> tuple[tuple[Channel, ...], Times]:
    """Return the distinct channels, and the index of each kernel's channel."""
    streams = trace.operations["stream"].to_numpy()[rows]
    ids = trace.streams["stream_id"].to_numpy()
    names = _kernel_communicators(trace, launched, thread, communicators)
    if names is None:
        used = np.unique(streams)
        return tuple(Channel(None, int(ids[row])) for row in used), np.searchsorted(used, streams).astype(np.int64)
    distinct = sorted(set(names))
    index_of = {name: index for index, name in enumerate(distinct)}
    channel = np.array([index_of[name] for name in names], np.int64)
    # A communicator may use several streams; its first one identifies the channel.
    return tuple(Channel(name, int(ids[streams[channel == index_of[name]][0]])) for name in distinct), channel


def _kernel_communicators(
    trace: Trace, launched: Times, thread: Times, communicators: pl.DataFrame
) -> list[str] | None:
    """Return each kernel's communicator: that of the last NCCL call of its thread before the launch.

    A group of calls launches at its end, so its last call decides. None if any kernel's communicator is unknown.
    """
    if communicators.is_empty() or len(launched) == 0 or (thread < 0).any():
        return None
    threads = (
        trace.threads.select("process", "tid").with_row_index("thread").with_columns(pl.col("thread").cast(pl.Int64))
    )
    calls = communicators.join(threads, on=["process", "tid"]).select("start", "thread", "communicator").sort("start")
    launches = pl.DataFrame({"start": launched, "thread": thread}).with_row_index("row").sort("start")
    joined = launches.join_asof(calls, on="start", by="thread", strategy="backward", check_sortedness=False).sort("row")
    return None if joined["communicator"].null_count() else joined["communicator"].to_list()


def communicator_calls(export: Path) -> pl.DataFrame:
    """Return start, process, tid and communicator of each NCCL call that names its communicator, sorted by start."""
    with open_read_only(export) as connection:
        present = real_tables(connection, display_name(export))
        rows = list(_communicator_rows(connection, present)) if "NVTX_EVENTS" in present else []
    return pl.DataFrame(rows, schema=COMMUNICATOR_COLUMNS, orient="row").sort("start", maintain_order=True)


def _communicator_rows(
    connection: sqlite3.Connection, present: dict[str, int]
) -> Iterator[tuple[int, int, int, str]]:
    columns = columns_of(connection, "NVTX_EVENTS")
    if not {"start", "globalTid"} <= set(columns):
        return
    offsets = _communicator_offsets(connection, present)
    for column in ("binaryData", "jsonText"):
        if column not in columns or (column == "binaryData" and not offsets):
            continue
        query = (
            f"SELECT start, globalTid, CAST({column} AS BLOB) FROM NVTX_EVENTS WHERE {column} IS NOT NULL "
            f"AND length({column}) <= {MAX_PAYLOAD_BYTES} AND typeof(start) = 'integer' "
            f"AND typeof(globalTid) = 'integer' LIMIT {MAX_PAYLOADS}"
        )
        for start, thread, payload in connection.execute(query):
            is_blob = column == "binaryData"
            communicator = _communicator_in_blob(payload, offsets) if is_blob else _communicator_in_json(payload)
            if communicator is not None:
                yield start, (thread >> 24) & 0xFFFFFF, thread & 0xFFFFFF, communicator


def _communicator_offsets(connection: sqlite3.Connection, present: dict[str, int]) -> dict[tuple[int, int], int]:
    """Return the communicator's offset in the payload, by (domain, schema)."""
    if "NVTX_PAYLOAD_SCHEMA_ENTRIES" not in present:
        return {}
    needed = {"domainId", "schemaId", "name", "offset"}
    if not needed <= set(columns_of(connection, "NVTX_PAYLOAD_SCHEMA_ENTRIES")):
        return {}
    rows = connection.execute(
        'SELECT domainId, schemaId, coalesce("offset", 0) FROM NVTX_PAYLOAD_SCHEMA_ENTRIES WHERE name = ?',
        (COMMUNICATOR,),
    )
    return {(domain, schema): offset for domain, schema, offset in rows if isinstance(offset, int) and offset >= 0}


def _communicator_in_blob(blob: bytes, offsets: dict[tuple[int, int], int]) -> str | None:
    if len(blob) < HEADER.size:
        return None
    domain, schema, _, _ = HEADER.unpack_from(blob)
    offset = offsets.get((domain & LOW_32_BITS, schema & LOW_32_BITS))
    if offset is None or HEADER.size + offset + UNSIGNED.size > len(blob):
        return None
    return f"{UNSIGNED.unpack_from(blob, HEADER.size + offset)[0]:016x}"


def _communicator_in_json(text: bytes) -> str | None:
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError):
        return None
    value = payload.get(COMMUNICATOR) if isinstance(payload, dict) else None
    digits = str(value).replace(",", "")
    if isinstance(value, bool) or not digits.isascii() or not digits.isdigit() or len(digits) > 20:
        return None
    return f"{int(digits):016x}"
