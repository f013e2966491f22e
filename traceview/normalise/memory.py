"""Memory that a program allocates on GPUs, and pinned memory of the host, over time."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from traceview.model.counters import MEMORY
from traceview.normalise.devices import DEVICE_KEY, Devices
from traceview.normalise.links import Links
from traceview.normalise.threads import Threads, process_of
from traceview.normalise.valid_rows import MAX_TIME
from traceview.read import raw
from traceview.read.kineto.sizes import TENSOR_MEMORY

# Names of memKind (ENUM_CUDA_MEM_KIND of nsys).
KINDS = {
    1: "pinned",
    2: "device",
    3: "array",
    4: "managed",
    5: "static",
    6: "static",
    TENSOR_MEMORY: "tensors",
}
ALLOCATED, FREED = 0, 1  # memoryOperationType
MAX_BYTES = 1 << 50


def memory_frame(
    tables: Mapping[str, pl.DataFrame], devices: Devices, links: Links, threads: Threads, api: pl.DataFrame
) -> pl.DataFrame:
    """Return model.MEMORY. A free of memory that was allocated before the capture is left out."""
    table = tables.get(raw.MEMORY, pl.DataFrame())
    if table.is_empty():
        return pl.DataFrame(schema=dict(MEMORY))
    kinds = pl.col("memKind").replace_strict(KINDS, default=None, return_dtype=MEMORY["kind"])
    events = (
        table.with_columns(process_of("globalPid").alias("process"), kinds.alias("kind"))
        .filter(pl.col("start").is_between(-MAX_TIME, MAX_TIME), pl.col("bytes").is_between(0, MAX_BYTES))
        .filter(pl.col("memoryOperationType").is_in([ALLOCATED, FREED]), pl.col("kind").is_not_null())
        .join(devices.pairs, on=DEVICE_KEY, maintain_order="left")
        .sort("start", maintain_order=True)
        .with_columns(pl.when(pl.col("memoryOperationType") == ALLOCATED).then("bytes").otherwise(0).alias("held"))
    )
    if "totalBytes" not in events.columns:
        events = events.with_columns(pl.lit(None, pl.Int64).alias("totalBytes"))
    lowest = pl.min_horizontal(pl.col("sum").min().over("device", "kind"), 0)
    return (
        events.with_columns(_change().alias("change"), _calling_threads(events, links, threads, api))
        .with_columns(pl.col("change").cum_sum().over("device", "kind").alias("sum"))
        .with_columns(pl.coalesce(pl.col("totalBytes"), pl.col("sum") - lowest).alias("total"))
        .filter((pl.col("held") > 0) | (pl.col("change") != 0))
        .select(
            "start",
            pl.col("device").cast(pl.Int16),
            "kind",
            "address",
            pl.col("held").alias("bytes"),
            "total",
            "thread",
        )
    )


def _change() -> pl.Expr:
    """Return the change of the memory in use: what an address holds now, less what it held before."""
    before = pl.col("held").shift(1).over("process", "device", "kind", "address").fill_null(0)
    signed = pl.when(pl.col("memoryOperationType") == ALLOCATED).then(pl.col("bytes")).otherwise(-pl.col("bytes"))
    return pl.when(pl.col("address").is_null()).then(signed).otherwise(pl.col("held") - before)


def _calling_threads(events: pl.DataFrame, links: Links, threads: Threads, api: pl.DataFrame) -> pl.Series:
    """Return the thread (row of Trace.threads) of each event; null if it is unknown."""
    if "globalTid" in events.columns:
        rows = threads.rows(events["globalTid"]).cast(pl.Int16)
        return rows.set(rows < 0, None).alias("thread")
    if "correlationId" not in events.columns or api.is_empty():
        return pl.Series("thread", [None] * len(events), dtype=pl.Int16)
    known = events.select(
        "process", pl.col("correlationId").fill_null(0).cast(pl.UInt32, strict=False).alias("correlation")
    )
    return api["thread"].gather(links.rows(known).cast(pl.UInt32)).alias("thread")
