"""Devices, streams and the events that synchronize streams (docs/definitions.md "Identity")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from traceview.model.sizes import empty_frame
from traceview.model.trace import STREAM_EVENTS
from traceview.normalise.api import Links
from traceview.normalise.codes import distinct_rows
from traceview.normalise.threads import process_of
from traceview.read import raw

GPU_TABLES = (raw.KERNEL, raw.GRAPH, raw.MEMCPY, raw.MEMSET)
RAW_COLUMNS = ("globalPid", "deviceId", "contextId", "streamId")
DEVICE_KEY = ["process", "deviceId"]
STREAM_KEY = ["process", "device", "context", "stream_id"]
NULL_STREAM_FLAG = 3
LIMITS = dict(
    zip(
        ("sm_count", "warps_per_sm", "registers_per_sm", "shared_bytes_per_sm", "blocks_per_sm", "compute_capability"),
        (*raw.GPU_LIMITS, "computeCapability"),
        strict=True,
    )
)
WAIT = 2  # CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT

RawStreamIds = Mapping[str, pl.DataFrame]


class Devices(NamedTuple):
    """`frame` is model.DEVICES; `pairs` has the row of `frame` for each (process, deviceId)."""

    frame: pl.DataFrame
    pairs: pl.DataFrame


def raw_stream_ids(tables: Mapping[str, pl.DataFrame]) -> RawStreamIds:
    """Return the distinct RAW_COLUMNS of each table of GPU work, 0 for null."""
    return {name: distinct_rows(tables[name], RAW_COLUMNS) for name in GPU_TABLES if name in tables}


def devices_of(tables: dict[str, pl.DataFrame], stream_ids: RawStreamIds) -> Devices:
    """Return the devices that ran work, by (first process, ordinal)."""
    pairs = _process_device_pairs(stream_ids)
    gpus = tables.get("TARGET_INFO_GPU", pl.DataFrame())
    pairs = pairs.with_columns(_physical_gpus(pairs, tables, gpus).alias("physical"))
    devices = (
        pairs.group_by("physical", maintain_order=True)
        .agg(pl.col("deviceId").first(), pl.col("process").alias("processes"))
        .with_row_index("device")
        .with_columns(pl.col("device").cast(pl.Int32))
    )
    repeated = devices["deviceId"].is_duplicated().to_list()
    ids = [
        f"GPU {ordinal} (process {processes[0]})" if is_repeated else f"GPU {ordinal}"
        for ordinal, processes, is_repeated in zip(
            devices["deviceId"].to_list(), devices["processes"].to_list(), repeated, strict=True
        )
    ]
    ordinals = devices["deviceId"].to_list()
    names = _by_ordinal(gpus, "name")
    frame = devices.select(
        pl.Series("id", ids, dtype=pl.String),
        pl.col("deviceId").alias("device_id"),
        pl.Series("name", [names.get(ordinal, "") for ordinal in ordinals], dtype=pl.String),
        pl.col("processes"),
        *_limits(gpus, ordinals),
    )
    rows = pairs.join(devices.select("physical", "device"), on="physical").select(*DEVICE_KEY, "device")
    return Devices(frame, rows)


def _process_device_pairs(stream_ids: RawStreamIds) -> pl.DataFrame:
    empty = pl.DataFrame(schema={"process": pl.Int32, "deviceId": pl.Int64})
    pairs = [ids.select(process_of("globalPid").alias("process"), "deviceId") for ids in stream_ids.values()]
    return pl.concat([empty, *pairs]).unique().sort(DEVICE_KEY)


def _physical_gpus(pairs: pl.DataFrame, tables: dict[str, pl.DataFrame], gpus: pl.DataFrame) -> pl.Series:
    """Return a key for each pair; pairs share it if the export proves that they are the same GPU."""
    physical: dict[tuple[int, int], Any] = {}
    cuda_devices = tables.get("TARGET_INFO_CUDA_DEVICE", pl.DataFrame())
    column = "uuid" if "uuid" in cuda_devices.columns else "gpuId"
    if len(cuda_devices) and {"cudaId", "pid", column} <= set(cuda_devices.columns):
        rows = cuda_devices.select("pid", "cudaId", column).drop_nulls().rows()
        physical = {(pid & 0xFFFFFF, ordinal): gpu for pid, ordinal, gpu in rows}
    known = set(physical.values())
    if len(gpus) == 1 and len(known) < 2:
        # The machine has a single GPU: ordinal 0 of every process is this GPU, also of one that the export leaves out.
        only = known.pop() if known else "only GPU"
        physical = {pair: only for pair in pairs.iter_rows() if pair[1] == 0} | physical
    keys = [str(physical.get(pair, f"{pair[0]}:{pair[1]}")) for pair in pairs.iter_rows()]
    return pl.Series(keys, dtype=pl.String)


def _limits(gpus: pl.DataFrame, ordinals: list[int]) -> list[pl.Series]:
    """Return the columns of model.DEVICES with the limits of each ordinal's GPU; nsys 2021 writes 0 for unknown."""
    if {"computeMajor", "computeMinor"} <= set(gpus.columns):
        gpus = gpus.with_columns((10 * pl.col("computeMajor") + pl.col("computeMinor")).alias("computeCapability"))
    columns = []
    for name, source in LIMITS.items():
        values = _by_ordinal(gpus, source)
        columns.append(pl.Series(name, [values.get(ordinal) or None for ordinal in ordinals], dtype=pl.Int64))
    return columns


def _by_ordinal(gpus: pl.DataFrame, column: str) -> dict[int, Any]:
    """Return a column's value for each ordinal; the same value for all if all GPUs of the machine agree."""
    if gpus.is_empty() or column not in gpus.columns:
        return {}
    values = gpus[column].drop_nulls().unique().to_list()
    if len(values) == 1:
        return dict.fromkeys(range(1024), values[0])
    if "cuDevice" not in gpus.columns:
        return {}
    return dict(gpus.select("cuDevice", column).drop_nulls().rows())


def stream_frame(tables: dict[str, pl.DataFrame], stream_ids: RawStreamIds, devices: Devices) -> pl.DataFrame:
    """Return model.STREAMS: the streams that ran work, by STREAM_KEY. A stream's number is its row."""
    empty = pl.DataFrame(schema=dict.fromkeys(RAW_COLUMNS, pl.Int64))
    streams = (
        pl.concat([empty, *stream_ids.values()])
        .unique()
        .with_columns(process_of("globalPid").alias("process"))
        .join(devices.pairs, on=DEVICE_KEY)
        .select("process", "device", pl.col("contextId").alias("context"), pl.col("streamId").alias("stream_id"))
        .unique()
        .sort(STREAM_KEY)
    )
    default = _default_streams(tables)
    names = _nvtx_stream_names(tables)
    labels = [
        names.get(key) or f"stream {key[2]}{' (default)' if key in default else ''}"
        for key in streams.select("process", "context", "stream_id").iter_rows()
    ]
    return streams.select("stream_id", "process", "device", "context", pl.Series("label", labels, dtype=pl.String))


def _default_streams(tables: dict[str, pl.DataFrame]) -> set[tuple[int, int, int]]:
    keys: set[tuple[int, int, int]] = set()
    for name in ("TARGET_INFO_CUDA_STREAM", "TARGET_INFO_CUDA_NULL_STREAM"):
        table = tables.get(name, pl.DataFrame())
        if table.is_empty():
            continue
        if "flag" in table.columns:
            table = table.filter(pl.col("flag") == NULL_STREAM_FLAG)
        elif name == "TARGET_INFO_CUDA_STREAM":
            continue
        keys.update(table.select(pl.col("processId") & 0xFFFFFF, "contextId", "streamId").drop_nulls().rows())
    return keys


def _nvtx_stream_names(tables: dict[str, pl.DataFrame]) -> dict[tuple[int, int, int], str]:
    table = tables.get("TARGET_INFO_NVTX_CUDA_STREAM", pl.DataFrame())
    if not {"processId", "contextId", "streamId", "name"} <= set(table.columns):
        return {}
    rows = table.select(pl.col("processId") & 0xFFFFFF, "contextId", "streamId", "name").drop_nulls().rows()
    return {(process, context, stream): f"{name} (stream {stream})" for process, context, stream, name in rows}


def stream_events(tables: dict[str, pl.DataFrame], links: Links) -> pl.DataFrame:
    """Return model.STREAM_EVENTS (event records, stream waits, host synchronizations) in the order of the export."""
    parts = []
    for name in (raw.CUDA_EVENT, raw.SYNCHRONIZATION):
        table = tables.get(name, pl.DataFrame())
        if not table.is_empty():
            parts.append(_typed_events(table, name))
    if not parts:
        return empty_frame(STREAM_EVENTS)
    joined = pl.concat(parts)
    return joined.with_columns(links.rows(joined)).select(list(STREAM_EVENTS))


def _typed_events(table: pl.DataFrame, name: str) -> pl.DataFrame:
    kind = pl.lit("record")
    if name == raw.SYNCHRONIZATION:
        kind = pl.when(pl.col("syncType") == WAIT).then(pl.lit("wait")).otherwise(pl.lit("synchronize"))
    event = pl.col("eventId").fill_null(0) if "eventId" in table.columns else pl.lit(0, pl.Int64)
    return table.select(
        kind.cast(STREAM_EVENTS["kind"]).alias("kind"),
        process_of("globalPid").alias("process"),
        pl.col("contextId").fill_null(0).alias("context"),
        pl.col("streamId").fill_null(0).alias("stream_id"),
        event.alias("event_id"),
        pl.col("correlationId").fill_null(0).cast(pl.UInt32).alias("correlation"),
    )
