"""Events as the tables that nsys would have exported of them, so that all that follows is the same."""

from __future__ import annotations

import polars as pl

from traceview.read import raw
from traceview.read.kineto.copies import kind_and_memories
from traceview.read.kineto.events import METADATA
from traceview.read.kineto.gather import Gathered
from traceview.read.kineto.identity import Identity
from traceview.read.kineto.kernels import short_name

# CUpti_ActivitySynchronizationType, by Kineto's words for it.
SYNC_TYPES = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
NO_STREAM = 0xFFFFFFFF  # what nsys writes where Kineto writes -1
PUSH_POP = 59
STRINGS = {"id": pl.Int64, "value": pl.String}
ALWAYS = (raw.KERNEL, raw.MEMCPY, raw.MEMSET, raw.RUNTIME, raw.NVTX)


def tables_of(found: Gathered, gpus: tuple[tuple[int, str], ...]) -> dict[str, pl.DataFrame]:
    """Return raw.TABLES, as far as events and GPUs (ordinal, name) fill them."""
    events, names = found.events, found.names
    identity = Identity.of(events)
    stream = {sort: _on_stream(events[sort], identity) for sort in ("kernel", "memcpy", "memset", "sync", "event")}
    kernels = stream["kernel"].with_columns((pl.col("name") + len(names)).alias("shortName"))
    made = {
        raw.KERNEL: kernels,
        raw.MEMCPY: _with_kinds(stream["memcpy"], names),
        raw.MEMSET: stream["memset"],
        raw.RUNTIME: _on_host(events["call"], identity, "nameId"),
        raw.NVTX: _on_host(events["range"], identity, "textId").with_columns(
            pl.lit(PUSH_POP, pl.Int64).alias("eventType"),
            pl.lit(0, pl.Int64).alias("domainId"),
            pl.lit(None, pl.String).alias("text"),
        ),
        raw.OVERHEAD: events["overhead"],
        raw.SYNCHRONIZATION: _synchronizations(stream["sync"], names),
        raw.CUDA_EVENT: _records(stream["event"], stream["sync"]),
    }
    kept = {
        table: frame.select([one for one in raw.TABLES[table].columns if one in frame.columns])
        for table, frame in made.items()
        if table in ALWAYS or len(frame)
    }
    return kept | {
        "ThreadNames": _thread_names(events[METADATA], identity, names),
        "TARGET_INFO_GPU": _gpus(gpus),
        raw.STRINGS: _strings(names, kernels["name"].unique()),
    }


def _on_stream(events: pl.DataFrame, identity: Identity) -> pl.DataFrame:
    return events.with_columns(
        pl.coalesce("device", "pid").fill_null(0).alias("deviceId"),
        pl.col("context").fill_null(0).alias("contextId"),
        pl.coalesce("stream", "tid").fill_null(0).alias("streamId"),
        pl.col("correlation").fill_null(0).alias("correlationId"),
        identity.global_pid(events),
    )


def _on_host(events: pl.DataFrame, identity: Identity, name: str) -> pl.DataFrame:
    return events.with_columns(
        pl.col("correlation").fill_null(0).alias("correlationId"),
        pl.col("name").alias(name),
        identity.global_tid(events),
    )


def _with_kinds(copies: pl.DataFrame, names: tuple[str, ...]) -> pl.DataFrame:
    used = copies["name"].unique()
    rows = [(place, *kind_and_memories(names[place])) for place in used.to_list()]
    schema = dict.fromkeys(("name", "copyKind", "srcKind", "dstKind"), pl.Int64)
    said = pl.DataFrame(rows, schema=schema, orient="row")
    return copies.join(said, on="name", how="left", maintain_order="left").with_columns(pl.col("bytes").fill_null(0))


def _synchronizations(events: pl.DataFrame, names: tuple[str, ...]) -> pl.DataFrame:
    known = {
        place: SYNC_TYPES[names[place]] for place in events["name"].unique().to_list() if names[place] in SYNC_TYPES
    }
    kind = pl.col("name").replace_strict(known, default=None, return_dtype=pl.Int64)
    return events.with_columns(
        pl.when(pl.col("streamId") < 0)
        .then(pl.lit(NO_STREAM, pl.Int64))
        .otherwise(pl.col("streamId"))
        .alias("streamId"),
        kind.alias("syncType"),
        pl.col("wait_on_cuda_event_id").alias("eventId"),
    ).filter(pl.col("syncType").is_not_null())


def _records(events: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the event records: those in the trace, else those that its waits name, each once."""
    if len(events):
        return events.with_columns(pl.col("event_id").alias("eventId"))
    columns = raw.TABLES[raw.CUDA_EVENT].columns
    named = waits.filter((pl.col("wait_on_stream") >= 0) & (pl.col("wait_on_cuda_event_record_corr_id") > 0))
    return (
        named.with_columns(
            pl.col("wait_on_stream").alias("streamId"),
            pl.col("wait_on_cuda_event_record_corr_id").alias("correlationId"),
            pl.col("wait_on_cuda_event_id").alias("eventId"),
        )
        .select(columns)
        .unique(maintain_order=True)
    )


def _thread_names(metadata: pl.DataFrame, identity: Identity, names: tuple[str, ...]) -> pl.DataFrame:
    """Return the threads of known processes with the place of their names."""
    if "thread_name" not in names:
        return pl.DataFrame(schema={"nameId": pl.Int64, "globalTid": pl.Int64})
    named = metadata.filter(
        pl.col("name") == names.index("thread_name"), pl.col("pid").is_in(identity.processes["pid"].implode())
    )
    return named.select(pl.col("label").alias("nameId"), identity.global_tid(named))


def _gpus(gpus: tuple[tuple[int, str], ...]) -> pl.DataFrame:
    rows = [(ordinal, name, ordinal) for ordinal, name in gpus]
    return pl.DataFrame(rows, schema={"id": pl.Int64, "name": pl.String, "cuDevice": pl.Int64}, orient="row")


def _strings(names: tuple[str, ...], kernels: pl.Series) -> pl.DataFrame:
    """Return all names, and behind them the short names of kernels."""
    plain = pl.DataFrame({"id": range(len(names)), "value": [_plain(name) for name in names]}, schema=STRINGS)
    short = [(place + len(names), short_name(names[place])) for place in kernels.to_list()]
    return pl.concat([plain, pl.DataFrame(short, schema=STRINGS, orient="row")])


def _plain(name: str) -> str:
    """Return `python` for a thread that Kineto calls `thread 1102 (python)`."""
    if name.startswith("thread ") and name.endswith(")"):
        return name.partition(" (")[2][:-1] or name
    return name
