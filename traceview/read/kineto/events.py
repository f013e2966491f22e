"""Some events of a trace as a typed frame: what is of interest, and nothing of the rest is decoded."""

from __future__ import annotations

import polars as pl

from traceview.read.kineto.decimals import nanoseconds
from traceview.read.kineto.pieces import SEPARATOR, NotJsonError
from traceview.read.limits import MAX_NAME

# Kineto's ActivityType names, and those of 2021.
SORTS = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "Runtime": "call",
    "user_annotation": "range",
    "overhead": "overhead",
    "cuda_sync": "sync",
    "cuda_event": "event",
}
METADATA = "metadata"
# In 2021 ranges were operators too; these are the ones that torch itself names.
OLD_RANGE = r"(?:ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)#)"
NUMBERS = ("correlation", "stream", "device", "context", "bytes")
OF_EVENTS = ("wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id", "event_id")
PEER = ("inDevice", "inContext")
SCHEMA = pl.Struct(
    dict.fromkeys(("ph", "cat", "name", "pid", "tid", "ts", "dur"), pl.String)
    | {"args": pl.Struct(dict.fromkeys((*NUMBERS, *OF_EVENTS, *PEER, "name"), pl.String))}
)
WANTED = rf'"cat"\s*:\s*"(?:{"|".join(SORTS)})"|"name"\s*:\s*"(?:(?:process|thread)_name"|{OLD_RANGE})'
# A number with a fraction would go through a float; as text it stays what it was.
TIME = r'"(ts|dur)"\s*:\s*(-?[0-9][-+.0-9eE]*)'
# A division by zero among the arguments, which C++ writes in words that JSON has not.
NO_NUMBER = r":\s*-?(?:nan|inf|NaN|Infinity)\s*([,}])"


def decode(piece: bytes) -> pl.DataFrame:
    """Return the events of a piece that are of interest.

    Columns: sort (a value of SORTS, or METADATA), name and label (text; what metadata names is in `label`),
    pid, tid, start, end (ns) and NUMBERS and OF_EVENTS, all Int64, null where an event does not say.
    Raises NotJsonError.
    """
    one_by_one = pl.Series(piece.decode("utf-8", "replace").split(chr(SEPARATOR)))
    wanted = one_by_one.filter(one_by_one.str.contains(WANTED)).str.replace_all(TIME, '"${1}":"${2}"')
    decoded = _decoded(wanted)
    if decoded is None:
        decoded = _decoded(wanted.str.replace_all(NO_NUMBER, ": null${1}"))
    if decoded is None:
        raise NotJsonError("has an event that is no JSON, or a value of another type than torch writes")
    return _typed(decoded)


def _decoded(events: pl.Series) -> pl.DataFrame | None:
    try:
        return events.str.json_decode(SCHEMA).struct.unnest()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def _typed(events: pl.DataFrame) -> pl.DataFrame:
    args = pl.col("args").struct
    metadata = (pl.col("ph") == "M") & pl.col("name").is_in(["process_name", "thread_name"])
    old_range = (pl.col("cat") == "Operator") & pl.col("name").str.contains(f"^{OLD_RANGE}")
    by_category = pl.col("cat").replace_strict(SORTS, default=None, return_dtype=pl.String)
    sort = pl.when(old_range).then(pl.lit("range")).otherwise(by_category)
    start, length = nanoseconds(pl.col("ts")), nanoseconds(pl.col("dur"))
    return (
        events.select(
            pl.when(metadata).then(pl.lit(METADATA)).when(pl.col("ph") == "X").then(sort).alias("sort"),
            pl.col("name").fill_null("").str.slice(0, MAX_NAME + 1),
            args.field("name").str.slice(0, MAX_NAME + 1).alias("label"),
            _whole(pl.col("pid")).alias("pid"),
            _whole(pl.col("tid")).alias("tid"),
            start.alias("start"),
            length.alias("length"),
            *(_whole(args.field(name)).alias(name) for name in (*NUMBERS, *OF_EVENTS, *PEER)),
        )
        .filter(pl.col("sort").is_not_null())
        .with_columns(
            pl.coalesce("device", "inDevice").alias("device"), pl.coalesce("context", "inContext").alias("context")
        )
        .drop(PEER)
    )


def _whole(text: pl.Expr) -> pl.Expr:
    return text.cast(pl.Int64, strict=False)
