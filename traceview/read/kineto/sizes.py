"""The sizes in a trace: operations of ops with known shapes, messages of collectives, and allocated memory.

torch.profiler writes shapes with record_shapes=True, and the arguments of a collective always: at its kernel, or in
older versions at the op `record_param_comms` with the kernel's external id alone. With profile_memory=True it writes an
event for each tensor that its allocator gives or takes back.
"""

from __future__ import annotations

import polars as pl

from traceview.read import raw
from traceview.read.kineto.identity import TraceIdentity
from traceview.read.kineto.op_flops import COUNTS, op_flops
from traceview.read.kineto.pieces import decode_quoted, nanoseconds
from traceview.read.limits import MAX_NAME

MATH, MESSAGE, MEMORY = "math", "message", "memory"
SHAPES = '"Input Dims"'
COUNTED = rf'"name"\s*:\s*"(?:{"|".join(COUNTS)})"'
# A list of lists of sizes, without lists of tensors; and a list of texts, which may contain brackets.
INPUT_SIZES = r'"Input Dims"\s*:\s*(\[(?:\s*\[[0-9,\s]*\]\s*,?)*\s*\])'
INPUT_VALUES = r'"Concrete Inputs"\s*:\s*(\[(?:\s*"(?:[^"\\]|\\.)*"\s*,?)*\s*\])'
ARGUMENTS = r'(?s),\s*"args"\s*:\s*\{.*$'
OP_SCHEMA = pl.Struct(dict.fromkeys(("ph", "name", "pid", "tid", "ts", "dur"), pl.String))

COLLECTIVE = "Collective name|nccl|Nccl"
# Integers of a message, and their columns.
MESSAGE_NUMBERS = {
    "External id": "external",
    "correlation": "correlation",
    "In msg nelems": "sent",
    "Out msg nelems": "received",
    "Group size": "group_size",
}
MESSAGE_TEXTS = ("Collective name", "Process Group Name", "Process Group Description", "dtype")
MESSAGE_SCHEMA = pl.Struct(
    dict.fromkeys(("ph", "cat", "pid", "tid"), pl.String)
    | {"args": pl.Struct(dict.fromkeys((*MESSAGE_NUMBERS, *MESSAGE_TEXTS), pl.String))}
)
KERNEL_CATEGORIES = ("kernel", "Kernel")
UNDEFINED = ("undefined", "")  # descriptions that torch writes for a group without one
ELEMENT_ROWS = {torch: row for row, (torch, _, _) in enumerate(raw.ELEMENTS)}
ELEMENT_BYTES = dict(enumerate(size for _, _, size in raw.ELEMENTS))
ALLOCATION = '"[memory]"'
GPU_DEVICE = 1  # DeviceType of c10
TENSOR_MEMORY = 100  # memKind of tensors; nsys has none for them
# Integers of an allocation, and their columns; `Bytes` are negative if it is freed.
MEMORY_NUMBERS = {"Device Id": "device", "Addr": "address", "Bytes": "bytes", "Total Allocated": "totalBytes"}
MEMORY_SCHEMA = pl.Struct(
    dict.fromkeys(("pid", "tid", "ts"), pl.String)
    | {"args": pl.Struct(dict.fromkeys((*MEMORY_NUMBERS, "Device Type"), pl.String))}
)
MEMORY_COLUMNS = ("pid", "tid", "start", *MEMORY_NUMBERS.values())
MATH_COLUMNS = ("pid", "tid", "start", "end", "flops")
MESSAGE_COLUMNS = ("pid", "tid", "name", "label", *MESSAGE_NUMBERS.values(), "dtype", "is_kernel")


def sized_events(events: pl.Series) -> list[pl.DataFrame]:
    """Return frames of the ops with known operations, of the collectives and of the allocations among events."""
    frames = [
        _math_events(events.filter(events.str.contains(SHAPES, literal=True))),
        _messages(events.filter(events.str.contains(COLLECTIVE))),
        _allocations(events.filter(events.str.contains(ALLOCATION, literal=True))),
    ]
    return [frame for frame in frames if frame is not None]


def _math_events(events: pl.Series) -> pl.DataFrame | None:
    events = events.filter(events.str.contains(COUNTED)) if len(events) else events
    if not len(events):
        return None
    decoded = decode_quoted(events.str.replace(ARGUMENTS, "}"), OP_SCHEMA)
    if decoded["ts"].has_nulls():  # the arguments are not the last field
        decoded = decode_quoted(events, OP_SCHEMA)
    decoded = decoded.with_columns(
        events.str.extract(INPUT_SIZES).fill_null("").alias("sizes"),
        events.str.extract(INPUT_VALUES).fill_null("").alias("inputs"),
    )
    signature = ("name", "sizes", "inputs")
    distinct = decoded.select(signature).unique()
    counted = distinct.with_columns(
        pl.Series("flops", [op_flops(*row) for row in distinct.iter_rows()], dtype=pl.Int64)
    )
    return (
        decoded.join(counted, on=signature, how="left", maintain_order="left")
        .filter(pl.col("flops").is_not_null(), pl.col("ph") == "X")
        .select(
            pl.lit(MATH).alias("sort"),
            "name",
            *(pl.col(name).cast(pl.Int64, strict=False) for name in ("pid", "tid")),
            nanoseconds(pl.col("ts")).alias("start"),
            nanoseconds(pl.col("dur")).alias("length"),
            "flops",
        )
    )


def _messages(events: pl.Series) -> pl.DataFrame | None:
    if not len(events):
        return None
    decoded = decode_quoted(events, MESSAGE_SCHEMA)
    args = pl.col("args").struct
    name, description = (
        args.field(f"Process Group {part}").str.slice(0, MAX_NAME // 2).fill_null("")
        for part in ("Name", "Description")
    )
    known = ~description.is_in(UNDEFINED)
    group = pl.when(known & (name != "")).then(description + " (" + name + ")").when(known).then(description)
    return decoded.filter(pl.col("ph") == "X").select(
        pl.lit(MESSAGE).alias("sort"),
        args.field("Collective name").str.slice(0, MAX_NAME + 1).alias("name"),
        group.otherwise(name).alias("label"),
        *(pl.col(name).cast(pl.Int64, strict=False) for name in ("pid", "tid")),
        *(args.field(source).cast(pl.Int64, strict=False).alias(column) for source, column in MESSAGE_NUMBERS.items()),
        args.field("dtype").replace_strict(ELEMENT_ROWS, default=None, return_dtype=pl.Int64).alias("dtype"),
        pl.col("cat").is_in(KERNEL_CATEGORIES).cast(pl.Int64).alias("is_kernel"),
    )


def _allocations(events: pl.Series) -> pl.DataFrame | None:
    if not len(events):
        return None
    args = pl.col("args").struct
    numbers = {column: args.field(source).cast(pl.Int64, strict=False) for source, column in MEMORY_NUMBERS.items()}
    return (
        decode_quoted(events, MEMORY_SCHEMA)
        .filter(args.field("Device Type").cast(pl.Int64, strict=False) == GPU_DEVICE)
        .select(
            pl.lit(MEMORY).alias("sort"),
            *(pl.col(name).cast(pl.Int64, strict=False) for name in ("pid", "tid")),
            nanoseconds(pl.col("ts")).alias("start"),
            pl.lit(0, pl.Int64).alias("length"),
            **numbers,
        )
    )


def memory_table(events: pl.DataFrame, identity: TraceIdentity) -> pl.DataFrame:
    """Return raw.MEMORY from the allocations of a trace."""
    thread = identity.global_tid(events)
    return events.with_columns(
        thread,
        (thread // (1 << 24) * (1 << 24)).alias("globalPid"),
        pl.col("device").alias("deviceId"),
        pl.col("bytes").abs(),
        pl.lit(TENSOR_MEMORY, pl.Int64).alias("memKind"),
        (pl.col("bytes") < 0).cast(pl.Int64).alias("memoryOperationType"),
    ).select(column for column in raw.TABLES[raw.MEMORY].columns if column != "correlationId")


def math_table(ops: pl.DataFrame, identity: TraceIdentity) -> pl.DataFrame:
    """Return raw.MATH from the ops of a trace."""
    return ops.with_columns(identity.global_tid(ops)).select(raw.TABLES[raw.MATH].columns)


def message_table(messages: pl.DataFrame, identity: TraceIdentity) -> pl.DataFrame:
    """Return raw.MESSAGES: the messages of kernels, with the arguments of the op where the kernel has none.

    If several kernels share an external id, it is unknown which part of the message each of them sends.
    """
    kernels = messages.filter(pl.col("is_kernel") == 1)
    own = kernels.filter(pl.col("name").is_not_null())
    bare = kernels.filter(pl.col("name").is_null(), pl.col("external").is_not_null())
    ops = messages.filter(pl.col("is_kernel") == 0, pl.col("name").is_not_null()).unique("external", keep="none")
    arguments = ("external", "name", "label", "sent", "received", "group_size", "dtype")
    linked = (
        bare.unique("external", keep="none")
        .select("external", "correlation", "pid", "tid")
        .join(ops.select(arguments), on="external")
    )
    known = pl.concat([own.select(*arguments, "correlation", "pid", "tid"), linked], how="diagonal")
    size = pl.col("dtype").replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    return known.with_columns(
        pl.col("correlation").alias("correlationId"),
        identity.global_pid(known),
        pl.col("name").alias("nameId"),
        pl.col("label").alias("textId"),
        pl.col("group_size").alias("groupSize"),
        pl.col("dtype").alias("elementType"),
        (pl.col("sent") * size).alias("sentBytes"),
        (pl.col("received") * size).alias("receivedBytes"),
    ).select(raw.TABLES[raw.MESSAGES].columns)
