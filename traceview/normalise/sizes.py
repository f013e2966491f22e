"""The sizes of work: floating-point operations of ops and iterations, and messages of collectives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from traceview.model.sizes import CALLS, COLLECTIVES, FLOPS, MARKS, MESSAGES, WorkSizes, empty_frame
from traceview.model.trace import CLASSES, Note
from traceview.normalise.codes import event_texts, texts_of
from traceview.normalise.threads import Threads, process_of
from traceview.normalise.valid_rows import MAX_TIME
from traceview.read import raw

# The text of a mark with the floating-point operations of an iteration on one GPU, as instrument writes it.
MARK = r"^flops_per_iteration\s*[:=]?\s*([0-9]+(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)$"
MAX_FLOPS = 1 << 62
MAX_GROUP_SIZE = 1 << 20
MAX_BYTES = 1 << 50
# Names of PyTorch and NCCL, without "nccl", underscores and case. The first that matches decides.
KINDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        ("allreduce", "all_reduce"),
        ("reducescatter", "reduce_scatter"),
        ("allgather", "all_gather"),
        ("alltoall", "all_to_all"),
        ("broadcast|bcast", "broadcast"),
        ("^reduce", "reduce"),
        ("^gather", "gather"),
        ("^scatter", "scatter"),
        ("^send$", "send"),
        ("^recv", "receive"),
        ("barrier", "barrier"),
    )
)


def work_sizes(
    tables: dict[str, pl.DataFrame], threads: Threads, operations: pl.DataFrame, api: pl.DataFrame
) -> WorkSizes:
    """Return the sizes in the tables; `operations` and `api` are the frames of the Trace."""
    sizes = WorkSizes(marks=flops_marks(tables))
    if len(math := tables.get(raw.MATH, pl.DataFrame())):
        sizes = replace(sizes, flops=_flops(math, threads, operations, api))
    if len(messages := tables.get(raw.MESSAGES, pl.DataFrame())):
        sizes = replace(sizes, messages=_messages(messages, tables, operations))
    if len(calls := tables.get(raw.NCCL_CALLS, pl.DataFrame())):
        named = _calls(calls, threads)
        ranks = dict(calls.filter(pl.col("ranks") > 0).select("communicator", "ranks").iter_rows())
        sizes = replace(sizes, calls=named, messages=_messages_of_calls(named, ranks, operations, api))
    return sizes


def count_messages(sizes: WorkSizes, operations: pl.DataFrame, first: int = 0) -> tuple[int, int]:
    """Return the numbers of communication kernels and of their known messages; `first` is the row of the first one."""
    count = int(np.count_nonzero(operations["class"].to_physical().to_numpy() == CLASSES.index("communication")))
    known = sizes.messages["operation"].is_between(first, first + len(operations) - 1).sum()
    return count, int(known or 0)


def unknown_messages(count: int, known: int, profiler: str) -> Note | None:
    """Return a note if the messages of most communication kernels are unknown (see count_messages)."""
    if count == 0 or 2 * known >= count:
        return None
    reason = (
        "the trace lacks the arguments of its collectives"
        if profiler == raw.TORCH_PROFILER
        else "the export has no payloads of NCCL: give the .nsys-rep, or export with --include-blobs true (newer nsys)"
    )
    return Note("unknown_messages", f"bandwidth of collectives is not measured: {reason}", affects=("collectives",))


def _flops(math: pl.DataFrame, threads: Threads, operations: pl.DataFrame, api: pl.DataFrame) -> pl.DataFrame:
    """Return model.FLOPS: the kernels that each innermost op launches.

    An op that calls another counted op (aten::addmm in aten::linear) does the same work, and is left out: of a tensor
    that is distributed over GPUs, the inner op alone has the shapes of this GPU.
    """
    start, end = pl.col("start"), pl.col("end")
    ops = (
        math.with_columns(threads.rows(math["globalTid"]).cast(pl.Int64))
        .filter(start.is_between(-MAX_TIME, MAX_TIME), end.is_between(start, MAX_TIME), pl.col("thread") >= 0)
        .filter(pl.col("flops").is_between(1, MAX_FLOPS))
        .sort("thread", "start", -end)
        .filter((start.shift(-1).over("thread") >= end).fill_null(True))
        .select("thread", "start", "end", "flops", pl.int_range(pl.len(), dtype=pl.Int32).alias("call"))
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
            _message_bytes(),
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

    A group of calls launches at its end. Where a group launches several kernels, the part of each is unknown.
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
    """Return the size of a message as nccl-tests define it, from what the call passes: one rank's part for some."""
    whole = pl.col("collective").is_in(["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"])
    return pl.when(whole).then(pl.col("bytes") * pl.col("ranks")).otherwise("bytes").alias("bytes")


def _collective(name: str) -> str:
    plain = name.lower().removeprefix("nccl").replace("_", "")
    return next((kind for pattern, kind in KINDS if pattern.search(plain)), "other")


def _message_bytes() -> pl.Expr:
    """Return the size of a message as nccl-tests define it: the larger of what a rank sends and receives."""
    return pl.max_horizontal("sentBytes", "receivedBytes").alias("bytes")
