"""Which physical GPU a (process, ordinal) pair is, where the export can say so (docs/decisions.md "Device")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from traceview.normalise.codes import different_rows
from traceview.normalise.identity import process_of
from traceview.read import raw

GPU_TABLES = (raw.KERNEL, raw.GRAPH, raw.MEMCPY, raw.MEMSET)
RAW_COLUMNS = ("globalPid", "deviceId", "contextId", "streamId")
KEY = ["process", "deviceId"]

Ran = Mapping[str, pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Devices:
    """`frame` is model.DEVICES; `pairs` gives the row of it for each (process, deviceId)."""

    frame: pl.DataFrame
    pairs: pl.DataFrame


def where_work_ran(tables: Mapping[str, pl.DataFrame]) -> Ran:
    """Return the different RAW_COLUMNS of each table of GPU work, 0 for null."""
    return {name: different_rows(tables[name], RAW_COLUMNS) for name in GPU_TABLES if name in tables}


def devices_of(tables: dict[str, pl.DataFrame], ran: Ran) -> Devices:
    """Return the devices that worked, by (first process, ordinal)."""
    pairs = _pairs(ran)
    gpus = tables.get("TARGET_INFO_GPU", pl.DataFrame())
    pairs = pairs.with_columns(_physical(pairs, tables, gpus).alias("physical"))
    devices = (
        pairs.group_by("physical", maintain_order=True)
        .agg(pl.col("deviceId").first(), pl.col("process").alias("processes"))
        .with_row_index("device")
        .with_columns(pl.col("device").cast(pl.Int32))
    )
    repeated = devices["deviceId"].is_duplicated().to_list()
    ids = [
        f"GPU {ordinal} (process {processes[0]})" if twice else f"GPU {ordinal}"
        for ordinal, processes, twice in zip(
            devices["deviceId"].to_list(), devices["processes"].to_list(), repeated, strict=True
        )
    ]
    names = _names(gpus)
    frame = devices.select(
        pl.Series("id", ids, dtype=pl.String),
        pl.col("deviceId").alias("device_id"),
        pl.Series("name", [names.get(one, "") for one in devices["deviceId"].to_list()], dtype=pl.String),
        pl.col("processes"),
    )
    rows = pairs.join(devices.select("physical", "device"), on="physical").select(*KEY, "device")
    return Devices(frame, rows)


def _pairs(ran: Ran) -> pl.DataFrame:
    empty = pl.DataFrame(schema={"process": pl.Int32, "deviceId": pl.Int64})
    found = [keys.select(process_of("globalPid").alias("process"), "deviceId") for keys in ran.values()]
    return pl.concat([empty, *found]).unique().sort(KEY)


def _physical(pairs: pl.DataFrame, tables: dict[str, pl.DataFrame], gpus: pl.DataFrame) -> pl.Series:
    """Return a key that two pairs share when they are the same GPU beyond doubt."""
    own = [f"{process}:{ordinal}" for process, ordinal in pairs.iter_rows()]
    said = tables.get("TARGET_INFO_CUDA_DEVICE", pl.DataFrame())
    key = "uuid" if "uuid" in said.columns else "gpuId"
    if len(said) and {"cudaId", "pid", key} <= set(said.columns):
        uuid = {(pid & 0xFFFFFF, ordinal): gpu for pid, ordinal, gpu in _complete(said.select("pid", "cudaId", key))}
        own = [str(uuid.get(pair, name)) for pair, name in zip(pairs.iter_rows(), own, strict=True)]
    elif len(gpus) == 1:
        # With a single GPU on the machine, every process's ordinal 0 is that one.
        own = [
            "the only one" if ordinal == 0 else name for (_, ordinal), name in zip(pairs.iter_rows(), own, strict=True)
        ]
    return pl.Series(own, dtype=pl.String)


def _complete(frame: pl.DataFrame) -> list[tuple[int, int, object]]:
    return frame.drop_nulls().rows()


def _names(gpus: pl.DataFrame) -> dict[int, str]:
    """Return a GPU name for each ordinal; one name for all where the machine has one kind."""
    if gpus.is_empty() or "name" not in gpus.columns:
        return {}
    kinds = gpus["name"].drop_nulls().unique().to_list()
    if len(kinds) == 1:
        return dict.fromkeys(range(1024), kinds[0])
    if "cuDevice" not in gpus.columns:
        return {}
    return dict(gpus.select("cuDevice", "name").drop_nulls().rows())
