"""The sizes of work and quantities over time.

The sizes are floating-point operations of ops and iterations, and messages of collectives. The quantities are samples
of a GPU's hardware counters, and memory that a program allocates.

Hardware counters (`nsys profile --gpu-metrics-devices=all`) get one name for each metric.
The names differ by the GPU and by the version of nsys: `SM Active`, later `SMs Active [Throughput %]`. Where a metric
has several quantities, only the share of the peak is read. `typeId & 0xFF` is the number of the GPU in
TARGET_INFO_GPU, as nsys's recipe gpu_metric_util_map reads it. Clocks are in Hz, written as 32 bits with a sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from traceview.model.sizes import (
    CALLS,
    CLOCKS,
    COLLECTIVES,
    FLOPS,
    GPU_METRICS,
    MARKS,
    MEMORY,
    MESSAGES,
    METRICS,
    SHARES,
    WorkSizes,
    empty_frame,
)
from traceview.model.trace import CLASSES, Note
from traceview.normalise.api import Links
from traceview.normalise.codes import NAMES, event_texts, texts_of
from traceview.normalise.devices import DEVICE_KEY, Devices
from traceview.normalise.threads import Threads, process_of
from traceview.normalise.valid_rows import MAX_TIME
from traceview.read import raw

_COLUMN_OF = {name: column for column, names in NAMES["metrics"].items() for name in names}
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
    link = _NVLINK_PART.fullmatch(text)
    return f"nvlink_{link[1]}" if link else _COLUMN_OF.get(text)


def gpu_metric_frame(tables: Mapping[str, pl.DataFrame], devices: Devices) -> pl.DataFrame:
    """Return model.GPU_METRICS. Samples of GPUs that did none of the captured work are left out."""
    samples, names = (tables.get(name, pl.DataFrame()) for name in (raw.GPU_METRICS, raw.GPU_METRIC_NAMES))
    frames = [empty_frame(GPU_METRICS)]
    if samples.is_empty() or names.is_empty():
        return frames[0]
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
        frame = _with_ends(_samples(own, metrics)).with_columns(
            pl.col("start", "end") - offset, pl.lit(device, pl.Int16).alias("device")
        )
        frames.append(frame.select(list(GPU_METRICS)))
    return pl.concat(frames).sort("device", "start")


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
MEMORY_KINDS = {int(number): kind for number, kind in NAMES["memory"].items()}
ALLOCATED, FREED = 0, 1  # memoryOperationType
MAX_BYTES = 1 << 50


def memory_frame(
    tables: Mapping[str, pl.DataFrame], devices: Devices, links: Links, threads: Threads, api: pl.DataFrame
) -> pl.DataFrame:
    """Return model.MEMORY. A free of memory that was allocated before the capture is left out."""
    table = tables.get(raw.MEMORY, pl.DataFrame())
    if table.is_empty():
        return empty_frame(MEMORY)
    kinds = pl.col("memKind").replace_strict(MEMORY_KINDS, default=None, return_dtype=MEMORY["kind"])
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


# The text of a mark with the floating-point operations of an iteration on one GPU, as instrument writes it.
MARK = r"^flops_per_iteration\s*[:=]?\s*([0-9]+(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)$"
MAX_FLOPS = 1 << 62
MAX_GROUP_SIZE = 1 << 20
KINDS = [(re.compile(pattern), kind) for pattern, kind in NAMES["collectives"].items()]


def work_sizes(
    tables: dict[str, pl.DataFrame], threads: Threads, operations: pl.DataFrame, api: pl.DataFrame
) -> WorkSizes:
    """Return the sizes in the tables; `operations` and `api` are the frames of the Trace."""
    sizes = WorkSizes(marks=flops_marks(tables))
    if len(math := tables.get(raw.MATH, pl.DataFrame())):
        sizes = replace(sizes, flops=_flops(math, tables, threads, operations, api))
    if len(messages := tables.get(raw.MESSAGES, pl.DataFrame())):
        sizes = replace(sizes, messages=_messages(messages, tables, operations))
    if len(calls := tables.get(raw.NCCL_CALLS, pl.DataFrame())):
        named = _calls(calls, threads)
        ranks = dict(calls.filter(pl.col("ranks") > 0).select("communicator", "ranks").iter_rows())
        sizes = replace(sizes, calls=named, messages=_messages_of_calls(named, ranks, operations, api))
    return sizes


def unknown_messages(sizes: WorkSizes, operations: pl.DataFrame, profiler: str) -> Iterator[Note]:
    """Yield a note if the messages of most communication kernels are unknown."""
    count = int(np.count_nonzero(operations["class"].to_physical().to_numpy() == CLASSES.index("communication")))
    if 2 * len(sizes.messages) < count:
        reason = (
            "the trace lacks the arguments of its collectives"
            if profiler == raw.TORCH_PROFILER
            else "the export has no payloads of NCCL: give the .nsys-rep, or export with --include-blobs true "
            "(newer nsys)"
        )
        yield Note("unknown_messages", f"bandwidth of collectives is not measured: {reason}", affects=("collectives",))


def _flops(
    math: pl.DataFrame, tables: dict[str, pl.DataFrame], threads: Threads, operations: pl.DataFrame, api: pl.DataFrame
) -> pl.DataFrame:
    """Return model.FLOPS: the kernels that each innermost op launches.

    An op that calls another counted op (aten::addmm in aten::linear) does the same work, and is left out: of a tensor
    that is distributed over GPUs, the inner op alone has the shapes of this GPU.
    """
    start, end = pl.col("start"), pl.col("end")
    ops = (
        math.with_columns(threads.rows(math["globalTid"]).cast(pl.Int64), *_texts_of_ops(math, tables))
        .filter(start.is_between(-MAX_TIME, MAX_TIME), end.is_between(start, MAX_TIME), pl.col("thread") >= 0)
        .filter(pl.col("flops").is_between(1, MAX_FLOPS))
        .sort("thread", "start", -end)
        .filter((start.shift(-1).over("thread") >= end).fill_null(True))
        .with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias("call"))
        .select("thread", "start", "end", *(name for name in FLOPS if name != "operation"))
    )
    launches = (
        operations.lazy()
        .select(pl.int_range(pl.len(), dtype=pl.Int32).alias("operation"), "launch", "source")
        .filter(pl.col("source").cast(pl.String) == "kernel", pl.col("launch").is_not_null())
        .collect()
    )
    calls = api.select("thread", "start")[launches["launch"]]
    moments = launches.select("operation", calls["thread"].cast(pl.Int64), calls["start"].alias("moment"))
    located = moments.sort("moment").join_asof(
        ops.sort("start"), left_on="moment", right_on="start", by="thread", check_sortedness=False
    )
    return located.filter(pl.col("moment") < end).select(FLOPS.keys()).sort("operation")


def _texts_of_ops(math: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> Iterator[pl.Series]:
    """Yield the columns op, shape and bytes; copies of older versions lack them."""
    for name, column in (("op", "nameId"), ("shape", "textId")):
        known = column in math.columns
        texts = texts_of(math[column].fill_null(-1), tables) if known else [""] * len(math)
        yield pl.Series(name, texts, dtype=pl.String).fill_null("")
    size = math["bytes"] if "bytes" in math.columns else pl.repeat(None, len(math), dtype=pl.Int64, eager=True)
    yield size.alias("bytes").set((size < 0) | (size > MAX_BYTES), None)


def flops_marks(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Return model.MARKS: the operations of an iteration that the program writes as NVTX marks."""
    nvtx = tables.get(raw.NVTX)
    if nvtx is None or nvtx.is_empty():
        return empty_frame(MARKS)
    # Skip the marks of Python samples, which have a payload instead of a text.
    texts = [pl.col(name).is_not_null() for name in ("text", "textId") if name in nvtx.columns]
    marks = nvtx.filter(pl.col("eventType") == raw.MARKED, pl.any_horizontal(texts) if texts else pl.lit(False))
    if marks.is_empty():
        return empty_frame(MARKS)
    number = event_texts(marks, tables).str.extract(MARK).cast(pl.Float64, strict=False)
    return (
        marks.select(pl.col("start").alias("time"), process_of("globalTid").alias("process"), number.alias("flops"))
        .filter(pl.col("flops").is_between(1, MAX_FLOPS), pl.col("time").is_between(-MAX_TIME, MAX_TIME))
        .with_columns(pl.col("flops").cast(pl.Int64))
        .sort("time")
    )


def _messages(messages: pl.DataFrame, tables: dict[str, pl.DataFrame], operations: pl.DataFrame) -> pl.DataFrame:
    """Return model.MESSAGES: the message of each communication kernel."""
    texts = [texts_of(messages[column].fill_null(-1), tables) for column in ("nameId", "textId")]
    types = [name for _, name, _ in raw.ELEMENTS]
    named = messages.select(
        process_of("globalPid").alias("process"),
        pl.col("correlationId").alias("correlation"),
        pl.Series("collective", [_collective(text) for text in texts[0]], dtype=pl.Enum(COLLECTIVES)),
        pl.when(pl.col("textId").is_not_null()).then(pl.Series(texts[1], dtype=pl.String)).alias("group"),
        pl.when(pl.col("groupSize").is_between(1, MAX_GROUP_SIZE)).then("groupSize").cast(pl.Int32).alias("group_size"),
        pl.when(pl.col("elementType").is_between(0, len(types) - 1)).then("elementType").alias("element_type"),
        *(pl.when(pl.col(name).is_between(0, MAX_BYTES)).then(name) for name in ("sentBytes", "receivedBytes")),
    )
    kernels = operations.select(
        pl.int_range(pl.len(), dtype=pl.Int32).alias("operation"),
        "process",
        pl.col("correlation").cast(pl.Int64),
        "class",
    ).filter(pl.col("class").cast(pl.String) == "communication", pl.col("correlation") != 0)
    return (
        kernels.join(named.unique(["process", "correlation"], keep="first"), on=["process", "correlation"])
        .with_columns(
            pl.max_horizontal("sentBytes", "receivedBytes").alias("bytes"),
            pl.col("element_type").replace_strict(dict(enumerate(types)), default=None, return_dtype=pl.String),
        )
        .filter(pl.col("bytes").is_not_null())
        .select(MESSAGES.keys())
        .sort("operation")
    )


def _calls(calls: pl.DataFrame, threads: Threads) -> pl.DataFrame:
    """Return model.CALLS."""
    rows = calls.with_columns(threads.rows(calls["globalTid"]).cast(pl.Int64))
    size = pl.when(pl.col("bytes").is_between(0, MAX_BYTES)).then("bytes")
    valid = pl.col("start").is_between(-MAX_TIME, MAX_TIME) & (pl.col("thread") >= 0)
    return rows.with_columns(size.alias("bytes")).filter(valid).select(CALLS.keys()).sort("start", maintain_order=True)


def _messages_of_calls(
    calls: pl.DataFrame, ranks: Mapping[str, int], operations: pl.DataFrame, api: pl.DataFrame
) -> pl.DataFrame:
    """Return model.MESSAGES: each kernel sends the messages of the calls of its thread since the kernel before it.

    A group of calls launches at its end. Where a group launches several kernels, the share of each is unknown.
    """
    kernels = operations.select(pl.int_range(pl.len(), dtype=pl.Int32).alias("operation"), "launch", "class").filter(
        pl.col("class").cast(pl.String) == "communication", pl.col("launch").is_not_null()
    )
    launch = api.select("thread", "start", "end")[kernels["launch"]]
    launches = kernels.select("operation", launch["thread"].cast(pl.Int64), launch["start"].alias("moment")).sort(
        "thread", "moment"
    )
    kinds = {name: _collective(name or "") for name in calls["name"].unique()}
    messages = (
        calls.filter(pl.col("bytes").is_not_null())
        .join_asof(
            launches.sort("moment"), left_on="start", right_on="moment", by="thread", strategy="forward",
            check_sortedness=False,
        )
        .filter(pl.col("operation").is_not_null())
        .with_columns(
            pl.col("name").replace_strict(kinds, default="other", return_dtype=pl.String).alias("collective"),
            pl.col("communicator").replace_strict(ranks, default=None, return_dtype=pl.Int64).alias("ranks"),
        )
        .with_columns(_bytes_of_call())
    )  # fmt: skip
    sums = messages.group_by("operation").agg(
        pl.col("collective").n_unique().alias("kinds"),
        pl.col("collective").first(),
        pl.col("communicator").first().alias("group"),
        pl.col("communicator").n_unique().alias("groups"),
        pl.col("ranks").first().alias("group_size"),
        pl.col("bytes").null_count().alias("unknown"),
        pl.col("bytes").sum(),
        *(pl.col("bytes").filter(pl.col("collective") == kind).sum().alias(kind) for kind in ("send", "receive")),
    )
    is_exchange = (pl.col("kinds") == 2) & (pl.col("send") > 0) & (pl.col("receive") > 0)
    return (
        _sole_kernels(launches, sums["operation"])
        .join(sums, on="operation")
        .filter((pl.col("kinds") == 1) | is_exchange, pl.col("unknown") == 0, pl.col("groups") == 1)
        .select(
            "operation",
            pl.when(is_exchange)
            .then(pl.lit("send_receive"))
            .otherwise("collective")
            .cast(pl.Enum(COLLECTIVES))
            .alias("collective"),
            "group",
            pl.col("group_size").cast(pl.Int32),
            pl.lit(None, pl.String).alias("element_type"),
            pl.when(is_exchange).then(pl.max_horizontal("send", "receive")).otherwise("bytes").alias("bytes"),
        )
        .sort("operation")
    )


def _sole_kernels(launches: pl.DataFrame, named: pl.Series) -> pl.DataFrame:
    """Return the kernels with calls whose next kernel on the thread, if any, has calls of its own.

    `launches` is ordered by thread and time.
    """
    has_calls = pl.col("operation").is_in(named.implode())
    group = has_calls.cum_sum().over("thread").alias("group")
    return (
        launches.with_columns(group, has_calls.alias("first"))
        .filter((pl.len().over("thread", "group") == 1) & pl.col("first"))
        .select("operation")
    )


def _bytes_of_call() -> pl.Expr:
    """Return the size of a message as nccl-tests define it, from what the call passes: one rank's share for some."""
    whole = pl.col("collective").is_in(["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"])
    return pl.when(whole).then(pl.col("bytes") * pl.col("ranks")).otherwise("bytes").alias("bytes")


def _collective(name: str) -> str:
    plain = name.lower().removeprefix("nccl").replace("_", "")
    return next((kind for pattern, kind in KINDS if pattern.search(plain)), "other")
