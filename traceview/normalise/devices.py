"""Devices, streams and the events that synchronize streams (docs/definitions.md "Identity"); clocks of devices.

The offset between the clock of each GPU and that of the host (docs/definitions.md "Clocks of a device"): an operation
starts after the call that launched it, and ends before a call that waited for it returns. All launches and waits
together bound how far the GPU's clock is ahead of the host's. The upper bound comes from launches that found the GPU
idle, because they have the smallest latency.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import Times, adjoining, rows_by_code
from traceview.model.sizes import empty_frame
from traceview.model.trace import CLOCK_FIGURES, STREAM_EVENTS
from traceview.normalise.api import ASYNC_COPY, BLOCKING_COPY, Links, without_suffix
from traceview.normalise.codes import distinct_rows, integers, texts_of
from traceview.normalise.threads import process_of
from traceview.normalise.valid_rows import sort_by_time
from traceview.read import raw

GPU_TABLES = (raw.KERNEL, raw.GRAPH, raw.MEMCPY, raw.MEMSET)
RAW_COLUMNS = ("globalPid", "deviceId", "contextId", "streamId")
DEVICE_KEY = ["process", "deviceId"]
ADAPTER = "^Microsoft Basic "
MIG = "MIG-"  # the uuid of a slice begins so
STREAM_KEY = ["process", "device", "context", "stream_id"]
NON_BLOCKING_FLAG, NULL_STREAM_FLAG = 2, 3  # CUpti_ActivityStreamFlag
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
    gpus = without_adapters(tables.get("TARGET_INFO_GPU", pl.DataFrame()))
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
    names, slices = _by_ordinal(gpus, "name"), devices["physical"].str.starts_with(MIG).to_list()
    texts = [names.get(ordinal, "") + " (MIG slice)" * mig for ordinal, mig in zip(ordinals, slices, strict=True)]
    # The table has the limits of the whole GPU, not those of a slice.
    known = [-1 if mig else ordinal for ordinal, mig in zip(ordinals, slices, strict=True)]
    frame = devices.select(
        pl.Series("id", ids, dtype=pl.String),
        pl.col("deviceId").alias("device_id"),
        pl.Series("name", texts, dtype=pl.String),
        pl.col("processes"),
        *_limits(gpus, known),
    )
    rows = pairs.join(devices.select("physical", "device"), on="physical").select(*DEVICE_KEY, "device")
    return Devices(frame, rows)


def without_adapters(gpus: pl.DataFrame) -> pl.DataFrame:
    """Return TARGET_INFO_GPU without display adapters: they have no SMs where other GPUs have some.

    Windows lists its own, "Microsoft Basic Render Driver".
    """
    if not {"smCount", "name"} <= set(gpus.columns):
        return gpus
    has_sms = pl.col("smCount").fill_null(0) > 0
    is_adapter = ~has_sms & (has_sms.any() | pl.col("name").fill_null("").str.contains(ADAPTER))
    return gpus.filter(~is_adapter)


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
    alone = _flagged_streams(tables, "TARGET_INFO_CUDA_STREAM", NON_BLOCKING_FLAG)
    independent = [key in alone for key in streams.select("process", "context", "stream_id").iter_rows()]
    return streams.select("stream_id", "process", "device", "context").with_columns(
        pl.Series("label", labels, dtype=pl.String), pl.Series("independent", independent, dtype=pl.Boolean)
    )


def _default_streams(tables: dict[str, pl.DataFrame]) -> set[tuple[int, int, int]]:
    names = ("TARGET_INFO_CUDA_STREAM", "TARGET_INFO_CUDA_NULL_STREAM")
    return set().union(*(_flagged_streams(tables, name, NULL_STREAM_FLAG) for name in names))


def _flagged_streams(tables: dict[str, pl.DataFrame], name: str, flag: int) -> set[tuple[int, int, int]]:
    """Return the process, context and id of streams with a flag; a table of null streams may have no flags."""
    table = tables.get(name, pl.DataFrame())
    if table.is_empty() or ("flag" not in table.columns and name == "TARGET_INFO_CUDA_STREAM"):
        return set()
    if "flag" in table.columns:
        table = table.filter(pl.col("flag") == flag)
    return set(table.select(pl.col("processId") & 0xFFFFFF, "contextId", "streamId").drop_nulls().rows())


def _nvtx_stream_names(tables: dict[str, pl.DataFrame]) -> dict[tuple[int, int, int], str]:
    table = tables.get("TARGET_INFO_NVTX_CUDA_STREAM", pl.DataFrame())
    if not {"processId", "contextId", "streamId", "name"} <= set(table.columns):
        return {}
    rows = table.select(pl.col("processId") & 0xFFFFFF, "contextId", "streamId", "name").drop_nulls().rows()
    return {(process, context, stream): f"{name} (stream {stream})" for process, context, stream, name in rows}


def stream_events(tables: dict[str, pl.DataFrame], links: Links) -> pl.DataFrame:
    """Return model.STREAM_EVENTS (event records, stream waits, host synchronizations) in the order of the export."""
    events = []
    for name in (raw.CUDA_EVENT, raw.SYNCHRONIZATION):
        table = tables.get(name, pl.DataFrame())
        if not table.is_empty():
            events.append(_typed_events(table, name))
    if not events:
        return empty_frame(STREAM_EVENTS)
    joined = pl.concat(events)
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


TIMED_TABLES = (*GPU_TABLES, raw.RUNTIME)
CLOCK_TABLES = (*TIMED_TABLES, raw.SYNCHRONIZATION)
# The smallest launch latency is 3.5 to 8 us on 22 of 32 GPUs in samples/ and in captures of nsys 2021 to 2026.
LAUNCH_NS = 4_000
MAX_LATENCY = 1_000_000  # docs/definitions.md: with a larger smallest latency, the clocks disagree
# Waits end up to 7 us before the copies that they wait for in a capture of nsys 2026 whose clocks agree.
NOISE_NS = 20_000
MIN_UNDELAYED, MIN_GAP_NS = 20, 10_000  # launches after a gap of this length, which show a clock without any wait
DAMAGED_PART = 100  # a hundredth of the launches and waits, or one, may be damaged
MAX_SAMPLED_BITS = 18  # the evidence is that of about 2^18 calls and operations
BLOCK_BITS = 10  # a sample has whole blocks of correlation ids: work that was launched one after another
HASH = 2_654_435_761  # Knuth's multiplicative hash of 32 bits
DEVICE_TO_HOST, PAGEABLE = 2, 0  # CUpti_ActivityMemcpyKind, CUpti_ActivityMemoryKind
# The names of the calls that show when work ended.
CALLS = {
    "copies": (ASYNC_COPY, BLOCKING_COPY),
    "of_stream": (re.compile(r"(?:cuda|cu)StreamSynchronize"),),
    "of_context": (re.compile(r"cudaDeviceSynchronize|cuCtxSynchronize"),),
}
# The columns of a wait's row in SYNCHRONIZATION that identify the work it waits for. The type of the row is not enough:
# nsys 2024 gives some rows of cudaStreamWaitEvent that of a synchronization.
WAITS = {"of_stream": ("process", "contextId", "streamId"), "of_context": ("process", "contextId")}
COLUMNS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(GPU_TABLES, (*raw.TIMES, *RAW_COLUMNS, "correlationId")),
    raw.RUNTIME: (*raw.TIMES, "globalTid", "correlationId", "nameId"),
    raw.SYNCHRONIZATION: ("globalPid", "contextId", "streamId", "correlationId"),
}
COPY_COLUMNS = ("copyKind", "dstKind")
KEY = "key"  # process and correlation id as one number, by which joins are twice as fast


class ClockBounds(NamedTuple):
    """How far a GPU's clock is ahead of the host's, in ns, and two bounds; None where nothing shows it.

    `contradictions` counts the launches and waits that the offset does not fit, or that no offset fits if it is None.
    """

    offset: int | None
    low: int | None
    high: int | None
    contradictions: int = 0


def sampled_bits(events: int) -> int:
    """Return how many bits of a hash select the events that show the clocks, of `events` calls and operations."""
    return max((max(events, 1) - 1).bit_length() - MAX_SAMPLED_BITS, 0)


def clock_rows(name: str, table: pl.DataFrame, bits: int) -> pl.DataFrame:
    """Return the rows of a table of CLOCK_TABLES that show the clocks: those of a sample of the correlation ids.

    Columns: COLUMNS of the table, for copies also COPY_COLUMNS.
    """
    rows = table.select(*COLUMNS[name], *(column for column in COPY_COLUMNS if column in table.columns))
    if bits == 0:
        return rows
    blocks = integers(rows["correlationId"]).astype(np.uint32) >> np.uint32(BLOCK_BITS)
    return rows[np.flatnonzero((blocks * np.uint32(HASH)) >> np.uint32(32 - bits) == 0)]


def clock_tables(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return clock_rows of the tables of a complete capture."""
    bits = sampled_bits(sum(len(tables[name]) for name in TIMED_TABLES if name in tables))
    return {name: clock_rows(name, tables[name], bits) for name in CLOCK_TABLES if len(tables.get(name, ())) > 0}


def measure_clocks(
    rows: Mapping[str, pl.DataFrame], pairs: pl.DataFrame, tables: dict[str, pl.DataFrame], failed: pl.DataFrame | None
) -> list[ClockBounds]:
    """Return the clock of each device, from the result of clock_tables.

    `pairs` are those of Devices. `tables` has the names of calls, and `failed` the calls that failed (process,
    correlation), which may not have waited.
    """
    count = 0 if pairs.is_empty() else int(pairs["device"].to_numpy().max()) + 1
    if raw.RUNTIME not in rows or count == 0:
        return [ClockBounds(None, None, None)] * count
    calls = _calls(rows[raw.RUNTIME], tables, failed)
    work = pl.concat([_work(rows[name]) for name in GPU_TABLES if name in rows]).join(pairs, on=DEVICE_KEY)
    launched = work.filter(pl.col("correlationId") != 0).join(calls, on=KEY)
    launched = launched.with_columns(
        latency=pl.col("start") - pl.col("call_start"), after_call=pl.col("start") - pl.col("call_end")
    )
    ends = pl.concat([_copies_to_host(launched), *_waits(rows, launched, calls)])
    clocks = zip(_by_device(launched, count), _by_device(ends, count), strict=True)
    return _with_common_offset([_bounds(*evidence) for evidence in clocks])


def _by_device(frame: pl.DataFrame, count: int) -> Iterator[pl.DataFrame]:
    rows = dict(rows_by_code(frame["device"].to_numpy()))
    for device in range(count):
        yield frame[adjoining(rows[device])] if device in rows else frame.clear()


def _with_common_offset(clocks: list[ClockBounds]) -> list[ClockBounds]:
    """Return the clocks with one offset where one is within all bounds: then the clock of the host is the wrong one."""
    bounds = [(clock.low, clock.high) for clock in clocks if clock.low is not None and clock.high is not None]
    if len(bounds) < len(clocks) or not all(clock.offset for clock in clocks):
        return clocks
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    if low > high:
        return clocks
    return [clock._replace(offset=high - min(LAUNCH_NS, (high - low) // 2)) for clock in clocks]


def _with_key(rows: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the rows with `process` and KEY; `column` has their globalPid or globalTid."""
    numbered = rows.with_columns(process_of(column).alias("process"), pl.col("correlationId").fill_null(0))
    return numbered.with_columns(_key("correlationId"))


def _key(correlation: str) -> pl.Expr:
    return (pl.col("process").cast(pl.Int64) * (1 << 32) + pl.col(correlation).cast(pl.Int64)).alias(KEY)


def _calls(rows: pl.DataFrame, tables: dict[str, pl.DataFrame], failed: pl.DataFrame | None) -> pl.DataFrame:
    """Return the first call with each KEY: call_start, call_end, and whether its name is one of each of CALLS."""
    calls = _with_key(rows, "globalTid").sort("start").filter(pl.col(KEY).is_first_distinct())
    if failed is not None:
        calls = calls.join(failed.select(_key("correlation")), on=KEY, how="anti")
    ids = calls["nameId"].fill_null(0)
    used = ids.unique()
    texts = pl.Series([without_suffix(name) for name in texts_of(used, tables)], dtype=pl.String)
    names = pl.DataFrame({"nameId": used}).with_columns(
        texts.str.contains(f"^(?:{'|'.join(pattern.pattern for pattern in patterns)})$").alias(kind)
        for kind, patterns in CALLS.items()
    )
    return calls.select(KEY, ids, call_start="start", call_end="end").join(names, on="nameId").drop("nameId")


def _work(rows: pl.DataFrame) -> pl.DataFrame:
    """Return operations with the columns that show clocks; `to_pageable` marks copies that block until they end."""
    is_copy = set(COPY_COLUMNS) <= set(rows.columns)
    to_pageable = (pl.col("copyKind") == DEVICE_TO_HOST) & (pl.col("dstKind") == PAGEABLE) if is_copy else pl.lit(False)
    ids = [pl.col(name).fill_null(0) for name in RAW_COLUMNS[1:]]
    return _with_key(rows, "globalPid").select(
        "process", "correlationId", KEY, *ids, *raw.TIMES, to_pageable=to_pageable.fill_null(False)
    )


def _copies_to_host(launched: pl.DataFrame) -> pl.DataFrame:
    """Return how much later than its call each copy to pageable memory ends (device, ahead)."""
    copies = launched.filter("copies", "to_pageable")
    return copies.select("device", ahead=pl.col("end") - pl.col("call_end"))


def _waits(rows: Mapping[str, pl.DataFrame], launched: pl.DataFrame, calls: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield how much later than each wait the work ends that it waited for (device, ahead)."""
    if raw.SYNCHRONIZATION not in rows:
        return
    ids = [pl.col(name).fill_null(0) for name in RAW_COLUMNS[2:]]
    waits = _with_key(rows[raw.SYNCHRONIZATION], "globalPid").with_columns(ids).join(calls, on=KEY)
    before = launched.sort("call_end")
    for kind, keys in WAITS.items():
        reach = before.select(*keys, "device", at="call_end", reach=pl.col("end").cum_max().over(keys))
        joined = (
            waits.filter(kind)
            .sort("call_start")
            .join_asof(reach, left_on="call_start", right_on="at", by=keys, check_sortedness=False)
        )
        yield joined.drop_nulls("device").select("device", ahead=pl.col("reach") - pl.col("call_end"))


def _bounds(launched: pl.DataFrame, ends: pl.DataFrame) -> ClockBounds:
    """Return the clock of a device from its launches (latency) and the waits for its work (ahead)."""
    latency, ahead = launched["latency"].to_numpy(), ends["ahead"].to_numpy()
    if len(latency) == 0:
        return ClockBounds(None, None, None)
    high, low = int(latency.min()), int(ahead.max()) if len(ahead) else None
    if low is not None and low - high > MAX_LATENCY:
        # Some times are damaged: the others may agree on an offset.
        high, low = _without_smallest(latency), -_without_smallest(-ahead)
        if low - high > MAX_LATENCY:
            return ClockBounds(None, high, low, int((ahead - high > MAX_LATENCY).sum()))
    if low is None and high < 0 <= _without_smallest(latency):
        high = int(latency[latency >= 0].min())  # no wait confirms the few launches that are impossible
    offset, low = _offset(high, low, launched)
    wrong = int((latency < offset - MAX_LATENCY).sum() + (ahead > offset + MAX_LATENCY).sum())
    return ClockBounds(offset, low if low is None else min(low, high, offset), max(low or high, high, offset), wrong)


def _without_smallest(values: Times) -> int:
    """Return the smallest value after those that may be damaged."""
    rank = min(max(len(values) // DAMAGED_PART, 1), len(values) - 1)
    return int(np.partition(values, rank)[rank])


def _offset(high: int, low: int | None, launched: pl.DataFrame) -> tuple[int, int | None]:
    """Return how far a clock is ahead, and the lower bound; the clocks agree where it is 0."""
    is_late = high > MAX_LATENCY and (low is None or low < -MAX_LATENCY // 2) and _are_undelayed(launched, high)
    if not is_late and high >= 0 and (low is None or low <= NOISE_NS):
        return 0, low
    low = high - MAX_LATENCY if low is None else max(low, high - MAX_LATENCY)
    return (high + low) // 2 if low > high else high - min(LAUNCH_NS, (high - low) // 2), low


def _are_undelayed(launched: pl.DataFrame, smallest: int) -> bool:
    """Return whether launches that found the GPU idle have about the smallest latency, so that nothing delayed them.

    In a queue that is never empty, each latency is as long as the work before it, and gaps are short. A launch call
    that itself takes long, as the first one of a large graph, shows no late clock.
    """
    block = pl.struct("process", pl.col("correlationId").cast(pl.Int64) // (1 << BLOCK_BITS))
    ordered = launched.sort("start").with_columns(block=block)
    gap = pl.col("start") - pl.col("end").cum_max().shift()
    undelayed = ordered.filter(pl.col("block") == pl.col("block").shift(), gap >= MIN_GAP_NS)
    latency, after_call = (undelayed[end].to_numpy() for end in ("latency", "after_call"))
    return (
        len(latency) >= MIN_UNDELAYED
        and bool(np.median(latency) - smallest <= MAX_LATENCY)
        and bool(after_call.min() > MAX_LATENCY // 2)
    )


def with_clocks(devices: Devices, clocks: Sequence[ClockBounds]) -> Devices:
    """Return the devices with the columns of model.DEVICES that describe their clocks."""
    values = zip(*clocks, strict=True) if clocks else [()] * len(CLOCK_FIGURES)
    columns = zip(CLOCK_FIGURES.items(), values, strict=True)
    return devices._replace(
        frame=devices.frame.with_columns(pl.Series(name, list(own), dtype=kind) for (name, kind), own in columns)
    )


def with_mended_clocks(
    operations: pl.DataFrame,
    cut: pl.DataFrame,
    devices: Devices,
    rows: Mapping[str, pl.DataFrame],
    tables: dict[str, pl.DataFrame],
    failed: pl.DataFrame | None,
) -> tuple[pl.DataFrame, Devices]:
    """Measure the clocks again after the work in `cut` (lost_events.Mended), whose wrong ends hid them.

    `rows`, `tables` and `failed` are those of measure_clocks. A clock that was corrected stays so.
    """
    if cut.is_empty() or (devices.frame["clock_offset"].fill_null(0) != 0).any():
        return operations, devices
    ends = cut.select("start", correlationId="correlation", mended="end")
    mended = {
        name: table.join(ends, on=["start", "correlationId"], how="left", maintain_order="left").with_columns(
            end=pl.coalesce("mended", "end")
        )
        if name in GPU_TABLES
        else table
        for name, table in rows.items()
    }
    devices = with_clocks(devices, measure_clocks(mended, devices.pairs, tables, failed))
    offsets = devices.frame["clock_offset"].fill_null(0)
    if not (offsets != 0).any():
        return operations, devices
    ahead = offsets.gather(operations["device"])
    return sort_by_time(operations.with_columns(pl.col(raw.TIMES) - ahead)), devices


def with_corrected_times(tables: Mapping[str, pl.DataFrame], devices: Devices) -> dict[str, pl.DataFrame]:
    """Return the tables, with the times of GPU work on the host's clock."""
    offsets = devices.frame["clock_offset"].fill_null(0)
    if not (offsets != 0).any():
        return dict(tables)
    ahead = devices.pairs.select(*DEVICE_KEY, ahead=offsets.gather(devices.pairs["device"]))
    key = [process_of("globalPid").alias("process"), pl.col("deviceId").fill_null(0)]
    corrected = {}
    for name in set(GPU_TABLES) & set(tables):
        of_rows = tables[name].select(key).join(ahead, on=DEVICE_KEY, how="left", maintain_order="left")["ahead"]
        corrected[name] = tables[name].with_columns(pl.col(raw.TIMES) - of_rows)
    return dict(tables) | corrected
