"""Quantities over time: samples of a GPU's hardware counters, and memory that a program allocates.

Hardware counters (`nsys profile --gpu-metrics-devices=all`) get one name for each metric.
The names differ by the GPU and by the version of nsys: `SM Active`, later `SMs Active [Throughput %]`. Where a metric
has several quantities, only the share of the peak is read. `typeId & 0xFF` is the number of the GPU in
TARGET_INFO_GPU, as nsys's recipe gpu_metric_util_map reads it. Clocks are in Hz, written as 32 bits with a sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import polars as pl

from traceview.model.sizes import CLOCKS, GPU_METRICS, MEMORY, METRICS, SHARES, empty_frame
from traceview.normalise.api import Links
from traceview.normalise.devices import DEVICE_KEY, Devices
from traceview.normalise.threads import Threads, process_of
from traceview.normalise.valid_rows import MAX_TIME
from traceview.read import raw
from traceview.read.kineto.sizes import TENSOR_MEMORY

MEMORY_NAMES = ("dram", "vram", "gpu memory")
# Each column's hardware counter, and its names in the metric sets of nsys 2022 to 2025, in small letters.
NAMES: Mapping[str, tuple[str, ...]] = {
    "sm_active": ("sm active", "sms active"),  # sm__cycles_active
    "sm_issue": ("sm issue", "sm issue active"),  # sm__inst_executed_realtime
    "tensor_active": ("tensor active",),  # sm__pipe_tensor_cycles_active_realtime
    "warps": ("compute warps in flight", "compute warps"),  # tpc__warps_active_shader_cs_realtime
    # dram__read_throughput, dramc__read_throughput, and the same of writing
    "dram_read": tuple(f"{memory} read {what}" for memory in MEMORY_NAMES for what in ("bandwidth", "throughput")),
    "dram_write": tuple(f"{memory} write {what}" for memory in MEMORY_NAMES for what in ("bandwidth", "throughput")),
    "pcie_rx": ("pcie rx throughput", "pcie read throughput", "pcie read bandwidth"),  # pcie__read_bytes
    "pcie_tx": ("pcie tx throughput", "pcie write throughput", "pcie write bandwidth"),  # pcie__write_bytes
    # The parts of nvlrx__bytes and nvltx__bytes add up.
    "nvlink_rx": ("nvlink bytes received", "nvlink rx bandwidth"),
    "nvlink_tx": ("nvlink bytes transmitted", "nvlink tx bandwidth"),
    "gpc_clock_mhz": ("gpc clock frequency",),  # gpc__cycles_elapsed
    "sys_clock_mhz": ("sys clock frequency",),  # sys__cycles_elapsed
}
_COLUMN_OF = {name: column for column, names in NAMES.items() for name in names}
_NVLINK_PART = re.compile(r"nvlink ([rt]x) (requests|responses) (protocol|user) data")
READ_QUANTITIES = ("throughput %", "mhz")
MAX_SHARE = 200  # percent; a GPU that boosts can exceed its sustained peak, damage exceeds any limit
MAX_CLOCK = 10_000  # MHz
LIMITS = np.array([MAX_SHARE] * len(SHARES) + [MAX_CLOCK] * len(CLOCKS))
MAX_METRICS = 4096  # ids of metrics; nsys counts them from 0
ADDED = np.array([name.startswith("nvlink") for name in METRICS])


def metric_column(name: str) -> str | None:
    """Return the column of GPU_METRICS for a metric's name in a capture; None if it is not read."""
    text = name.lower()
    if text.endswith("]") and " [" in text:
        text, _, quantity = text[:-1].partition(" [")
        if quantity not in READ_QUANTITIES:
            return None
    part = _NVLINK_PART.fullmatch(text)
    return f"nvlink_{part[1]}" if part else _COLUMN_OF.get(text)


def gpu_metric_frame(tables: Mapping[str, pl.DataFrame], devices: Devices) -> pl.DataFrame:
    """Return model.GPU_METRICS. Samples of GPUs that did none of the captured work are left out."""
    samples, names = (tables.get(name, pl.DataFrame()) for name in (raw.GPU_METRICS, raw.GPU_METRIC_NAMES))
    parts = [empty_frame(GPU_METRICS)]
    if samples.is_empty() or names.is_empty():
        return parts[0]
    columns = [metric_column(name or "") for name in names["metricName"].to_list()]
    known = names.with_columns(pl.Series("column", columns, dtype=pl.String)).filter(
        pl.col("column").is_not_null() & pl.col("metricId").is_between(0, MAX_METRICS - 1)
    )
    sources = known.select("typeId", (pl.col("typeId") & 0xFF).alias("gpu")).unique("gpu", keep="first")
    for source, device in sources.join(_gpus_of_devices(tables, devices), on="gpu").select("typeId", "device").rows():
        metrics = dict(known.filter(pl.col("typeId") == source).select("metricId", "column").rows())
        own = samples.filter(
            (pl.col("typeId") == source) & pl.col("timestamp").is_between(-MAX_TIME, MAX_TIME),
            pl.col("value").is_not_null() & pl.col("metricId").is_not_null(),
        )
        offset = devices.frame["clock_offset"][device] or 0
        part = _with_ends(_samples(own, metrics)).with_columns(
            pl.col("start", "end") - offset, pl.lit(device, pl.Int16).alias("device")
        )
        parts.append(part.select(list(GPU_METRICS)))
    return pl.concat(parts).sort("device", "start")


def _samples(rows: pl.DataFrame, metrics: Mapping[int, str]) -> pl.DataFrame:
    """Return the samples of one GPU: `start` and METRICS. `metrics` has the column of each metric's id."""
    columns = np.full(MAX_METRICS + 1, -1, np.int8)  # the last is for any other id
    columns[list(metrics)] = [METRICS.index(name) for name in metrics.values()]
    start, number, value = (rows[name].to_numpy() for name in ("timestamp", "metricId", "value"))
    column = columns[np.where((number < 0) | (number > MAX_METRICS), MAX_METRICS, number)]
    value = np.where(column >= len(SHARES), (value & 0xFFFFFFFF) // 1_000_000, value)
    valid = (column >= 0) & (value >= 0) & (value <= LIMITS[column])
    moments, row = np.unique(start[valid], return_inverse=True)
    cell, size = row * len(METRICS) + column[valid], len(moments) * len(METRICS)
    count = np.bincount(cell, minlength=size).reshape(-1, len(METRICS))
    total = np.bincount(cell, weights=value[valid], minlength=size).reshape(-1, len(METRICS))
    mean = np.minimum(np.rint(np.where(ADDED, total, total / np.maximum(count, 1))), LIMITS).astype(np.int16)
    filled = {name: pl.Series(mean[:, at]).set(pl.Series(count[:, at] == 0), None) for at, name in enumerate(METRICS)}
    return pl.DataFrame({"start": moments, **filled}, schema_overrides={"start": pl.Int64})


def _with_ends(samples: pl.DataFrame) -> pl.DataFrame:
    """Add the end: a sample lasts until the next, but no longer than two periods, because samples can be lost."""
    start = samples["start"].to_numpy()
    if len(start) < 2:
        return samples.clear().with_columns(pl.col("start").alias("end"))
    steps = np.diff(start)
    period = int(np.median(steps))
    lengths = np.minimum(np.append(steps, period), 2 * period)
    return samples.with_columns(pl.Series("end", start + lengths)).filter(pl.col("end") > pl.col("start"))


def _gpus_of_devices(tables: Mapping[str, pl.DataFrame], devices: Devices) -> pl.DataFrame:
    """Return the columns gpu (the number in TARGET_INFO_GPU) and device (row of Trace.devices), each gpu once."""
    gpus = tables.get("TARGET_INFO_GPU", pl.DataFrame())
    cuda_devices = tables.get("TARGET_INFO_CUDA_DEVICE", pl.DataFrame())
    schema = {"gpu": pl.Int64, "device": pl.Int32}
    known = pl.DataFrame(schema=schema)
    if {"gpuId", "cudaId", "pid"} <= set(cuda_devices.columns):
        ordinals = cuda_devices.select(
            pl.col("gpuId").alias("gpu"),
            (pl.col("pid") & 0xFFFFFF).cast(pl.Int32).alias("process"),
            pl.col("cudaId").alias("deviceId"),
        )
        known = ordinals.join(devices.pairs, on=DEVICE_KEY).select("gpu", "device")
    if known.is_empty() and {"id", "cuDevice"} <= set(gpus.columns):
        ordinals = gpus.select(pl.col("id").alias("gpu"), pl.col("cuDevice").alias("deviceId"))
        known = ordinals.join(devices.pairs, on="deviceId").select("gpu", "device")
    if known.is_empty() and len(devices.frame) == 1:
        known = tables[raw.GPU_METRICS].select((pl.col("typeId") & 0xFF).alias("gpu"), device=pl.lit(0, pl.Int32))
        known = known.unique() if known["gpu"].n_unique() == 1 else known.clear()
    return known.drop_nulls().unique("gpu", keep="first", maintain_order=True).cast(schema)  # type: ignore[arg-type]


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
        return empty_frame(MEMORY)
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
