"""Streams: (process, device, context, stream id), with what the export calls them (METRICS.md "Identity")."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from traceview.normalise.devices import RAW_COLUMNS, Devices, Ran
from traceview.normalise.identity import process_of

KEY = ["process", "device", "context", "stream_id"]
NULL_STREAM = 3


@dataclass(frozen=True, slots=True)
class Streams:
    """`frame` is model.STREAMS; a stream is its row number."""

    frame: pl.DataFrame


def streams_of(tables: dict[str, pl.DataFrame], ran: Ran, devices: Devices) -> Streams:
    """Return the streams that worked, by (process, device, context, stream id)."""
    empty = pl.DataFrame(schema=dict.fromkeys(RAW_COLUMNS, pl.Int64))
    streams = (
        pl.concat([empty, *ran.values()])
        .unique()
        .with_columns(process_of("globalPid").alias("process"))
        .join(devices.pairs, on=["process", "deviceId"])
        .select("process", "device", pl.col("contextId").alias("context"), pl.col("streamId").alias("stream_id"))
        .unique()
        .sort(KEY)
    )
    default = _default_streams(tables)
    given = _given_names(tables)
    labels = [
        given.get(key) or f"stream {key[2]}{' (default)' if key in default else ''}"
        for key in streams.select("process", "context", "stream_id").iter_rows()
    ]
    frame = streams.select("stream_id", "process", "device", "context", pl.Series("label", labels, dtype=pl.String))
    return Streams(frame)


def _default_streams(tables: dict[str, pl.DataFrame]) -> set[tuple[int, int, int]]:
    found: set[tuple[int, int, int]] = set()
    for name in ("TARGET_INFO_CUDA_STREAM", "TARGET_INFO_CUDA_NULL_STREAM"):
        table = tables.get(name, pl.DataFrame())
        if table.is_empty():
            continue
        if "flag" in table.columns:
            table = table.filter(pl.col("flag") == NULL_STREAM)
        elif name == "TARGET_INFO_CUDA_STREAM":
            continue
        keys = table.select(pl.col("processId") & 0xFFFFFF, "contextId", "streamId").drop_nulls()
        found.update(keys.rows())
    return found


def _given_names(tables: dict[str, pl.DataFrame]) -> dict[tuple[int, int, int], str]:
    table = tables.get("TARGET_INFO_NVTX_CUDA_STREAM", pl.DataFrame())
    if not {"processId", "contextId", "streamId", "name"} <= set(table.columns):
        return {}
    rows = table.select(pl.col("processId") & 0xFFFFFF, "contextId", "streamId", "name").drop_nulls().rows()
    return {(process, context, stream): f"{name} (stream {stream})" for process, context, stream, name in rows}
