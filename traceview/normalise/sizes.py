"""The sizes of work: floating-point operations of ops and iterations, and messages of collectives."""

from __future__ import annotations

import re

import polars as pl

from traceview.model.sizes import COLLECTIVES, FLOPS, MARKS, MESSAGES, WorkSizes
from traceview.normalise.codes import texts_of
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
    """Return the sizes that the tables tell; `operations` and `api` are the frames of the Trace."""
    empty = WorkSizes()
    math, messages = tables.get(raw.MATH), tables.get(raw.MESSAGES)
    return WorkSizes(
        flops=empty.flops if math is None or math.is_empty() else _flops(math, threads, operations, api),
        marks=_marks(tables),
        messages=empty.messages if messages is None or messages.is_empty() else _messages(messages, tables, operations),
    )


def _flops(math: pl.DataFrame, threads: Threads, operations: pl.DataFrame, api: pl.DataFrame) -> pl.DataFrame:
    """Return model.FLOPS: the kernels that each outermost op launches.

    An op that another counted op calls (aten::addmm in aten::linear) does the same work, and is left out.
    """
    start, end = pl.col("start"), pl.col("end")
    ops = (
        math.with_columns(threads.rows(math["globalTid"]).cast(pl.Int64))
        .filter(start.is_between(-MAX_TIME, MAX_TIME), end.is_between(start, MAX_TIME), pl.col("thread") >= 0)
        .filter(pl.col("flops").is_between(1, MAX_FLOPS))
        .sort("thread", "start", -end)
        .filter((start >= end.cum_max().shift(1).over("thread")).fill_null(True))
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


def _marks(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Return model.MARKS: the operations of an iteration that the program writes as NVTX marks."""
    nvtx = tables.get(raw.NVTX)
    if nvtx is None or nvtx.is_empty():
        return pl.DataFrame(schema=dict(MARKS))
    marks = nvtx.filter(pl.col("eventType") == raw.MARKED)
    if marks.is_empty():
        return pl.DataFrame(schema=dict(MARKS))
    text = marks["text"] if "text" in marks.columns else pl.Series([None] * len(marks), dtype=pl.String)
    if "textId" in marks.columns:
        registered = pl.Series(texts_of(marks["textId"].fill_null(-1), tables), dtype=pl.String)
        text = text.zip_with(text.is_not_null(), registered)
    number = text.str.extract(MARK).cast(pl.Float64, strict=False)
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


def _collective(name: str) -> str:
    plain = name.lower().removeprefix("nccl").replace("_", "")
    return next((kind for pattern, kind in KINDS if pattern.search(plain)), "other")


def _message_bytes() -> pl.Expr:
    """Return the size of a message as nccl-tests define it: of the whole of the data that the ranks hold together.

    Where only one side is known, an all-gather receives from each rank what one sends, and the reverse.
    """
    sent, received, ranks = pl.col("sentBytes"), pl.col("receivedBytes"), pl.col("group_size").cast(pl.Int64)
    collective = pl.col("collective").cast(pl.String)
    return (
        pl.when(collective == "all_gather")
        .then(pl.max_horizontal(pl.coalesce(received, sent * ranks), sent))
        .when(collective == "reduce_scatter")
        .then(pl.max_horizontal(pl.coalesce(sent, received * ranks), received))
        .otherwise(pl.max_horizontal(sent, received))
        .alias("bytes")
    )
