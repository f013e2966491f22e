"""Bytes and bandwidth of collectives (docs/definitions.md "Collectives")."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import polars as pl

from traceview.measure.activity import COMMUNICATION
from traceview.measure.base import PartContext, PartInput, PartMeasure
from traceview.measure.kernels import DIGITS
from traceview.model.columns import Table, partial_row
from traceview.model.rows import Collective
from traceview.model.trace import Trace

MAX_COLLECTIVES = 200
KEYS = ("collective", "group", "group_size", "element_type", "message_bytes")
# Kernels of NCCL have their kind and type in their names: ncclDevKernel_AllReduce_Sum_bf16_RING_LL,
# ncclKernel_AllGather_RING_LL_...
KINDS = {
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "AllGather": "all_gather",
    "Broadcast": "broadcast",
    "SendRecv": "send_receive",
    "Reduce": "reduce",
}
KIND = re.compile("|".join(KINDS))
# Kernels that only copy handle all types as bytes, so the type in their names is not that of the elements.
ELEMENT_TYPE = re.compile(r"(?:Sum|Prod|Min|Max|sum|prod|min|max|PreMulSum|SumPostDiv)_(?:__nv_)?([a-z]+[0-9]*)")
ELEMENT_TYPES = {
    **dict.fromkeys(("f32", "float"), "fp32"),
    **dict.fromkeys(("f16", "half"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("f64", "double"), "fp64"),
}
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
# The name of a group, such as mesh_tp, TENSOR_MODEL_PARALLEL_GROUP or dp_shard. Few captures have one, so these
# patterns are compiled when they are searched.
PARALLELISMS = tuple(
    (name, rf"(?i)(?:^|[^a-z])(?:{words})(?:[^a-z]|$)")
    for name, words in (
        ("TP", "tp|tensor|tensor_(?:model_)?parallel"),
        ("EP", "ep|expert|moe"),
        ("PP", "pp|pipe|pipeline|pipeline_(?:model_)?parallel"),
        ("CP", "cp|context|sp|sequence|ulysses"),
        ("DP", "dp|ddp|fsdp|hsdp|data|shard|replicate"),
    )
)


def _collective_totals(given: PartInput) -> pl.DataFrame:
    """Return KEYS with count, total_ns, min_ns, and the `lengths` of the whole kernels, for their median."""
    chosen = np.flatnonzero(given.activity.codes == COMMUNICATION)
    if not len(chosen):
        return pl.DataFrame()
    rows = given.activity.rows[chosen]
    lengths = given.trace.operations.select(pl.col("end") - pl.col("start"))[rows]["end"]
    kernels = _messages(given.trace, rows).with_columns(
        pl.Series("part_ns", (given.activity.end - given.activity.start)[chosen]), lengths.alias("ns")
    )
    return kernels.group_by(KEYS).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("part_ns").sum().alias("total_ns"),
        pl.col("ns").min().alias("min_ns"),
        pl.col("ns").alias("lengths"),
    )


def collectives(_part: PartContext, totals: pl.DataFrame) -> tuple[Collective, ...]:
    """Return one row for each kind, group, type and size of messages, the costliest first."""
    if totals.is_empty():
        return ()
    median = pl.col("lengths").list.median().cast(pl.Int64).alias("median_ns")
    totals = totals.with_columns(median).drop("lengths")
    totals = totals.sort(["total_ns", *KEYS], descending=[True, *[False] * len(KEYS)])
    shown = [_collective(row) for row in totals.head(MAX_COLLECTIVES).iter_rows(named=True)]
    rest = totals[MAX_COLLECTIVES:]
    return (*shown, *([_rest_row(rest)] if len(rest) else []))


def bus_factor(collective: str, ranks: int | None) -> float | None:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests define it (doc/PERFORMANCE.md); None if unknown."""
    if collective in ("broadcast", "reduce", "send", "receive", "send_receive"):
        return 1.0
    if ranks is None or collective in ("barrier", "other"):
        return None
    return round((2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks, DIGITS)


def parallelism(group: str | None) -> str | None:
    """Return the first parallelism in the name of a process group."""
    matches = ((re.search(pattern, group), name) for name, pattern in PARALLELISMS) if group else ()
    first = min(((match.start(), name) for match, name in matches if match), default=None)
    return first and first[1]


def _messages(trace: Trace, rows: Any) -> pl.DataFrame:
    """Return KEYS for kernels (rows of Trace.operations), from their messages or, where these lack, their names."""
    names = trace.operations["name"][rows].cast(pl.String)
    unique = names.unique().to_list()
    parts = {name: _kind_and_type(name) for name in unique}
    plain = pl.DataFrame(
        {
            "operation": pl.Series(rows, dtype=pl.Int32),
            "named": names.replace_strict({name: kind for name, (kind, _) in parts.items()}, return_dtype=pl.String),
            "typed": names.replace_strict({name: kind for name, (_, kind) in parts.items()}, return_dtype=pl.String),
        }
    )
    sized = trace.sizes.messages.with_columns(pl.col("collective").cast(pl.String))
    joined = plain.join(sized, on="operation", how="left", maintain_order="left")
    return joined.select(
        pl.coalesce("collective", "named").alias("collective"),
        "group",
        pl.col("group_size").cast(pl.Int64),
        pl.coalesce("element_type", "typed").alias("element_type"),
        pl.col("bytes").alias("message_bytes"),
    )


def _kind_and_type(name: str) -> tuple[str, str | None]:
    kind = KIND.search(name)
    collective = KINDS[kind[0]] if kind else "other"
    element = ELEMENT_TYPE.search(name) if collective in REDUCTIONS else None
    return collective, ELEMENT_TYPES.get(element[1]) if element else None


def _collective(row: dict[str, Any]) -> Collective:
    size, factor = row["message_bytes"], bus_factor(row["collective"], row["group_size"])
    mean = row["total_ns"] / row["count"]
    return Collective(
        **row,
        parallelism=parallelism(row["group"]),
        bytes=None if size is None else size * row["count"],
        bus_factor=factor,
        algorithm_bandwidth=_bandwidth(size, row["median_ns"], 1),
        bus_bandwidth=_bandwidth(size, row["median_ns"], factor),
        best_bus_bandwidth=_bandwidth(size, row["min_ns"], factor),
        mean_bus_bandwidth=_bandwidth(size, mean, factor),
    )


def _bandwidth(size: int | None, ns: float, factor: float | None) -> float | None:
    return None if size is None or factor is None or not ns else round(size / ns * factor, DIGITS)


def _rest_row(rest: pl.DataFrame) -> Collective:
    """Return one row for many kinds of messages."""
    count, total, least = rest.select(pl.col("count", "total_ns").sum(), pl.col("min_ns").min()).row(0)
    name = f"({len(rest)} other sizes)"
    return partial_row(Collective, collective=name, count=count, total_ns=total, median_ns=total // count, min_ns=least)


COLLECTIVES = PartMeasure(
    Table(
        name="collectives",
        title="Collectives",
        note="Bandwidth of the median and of the shortest kernel: a kernel that waits for a late rank has a low one.",
        row_type=Collective,
        shown=(
            "collective",
            "message_bytes",
            "count",
            "total_ns",
            "bus_bandwidth",
            "best_bus_bandwidth",
            "group_size",
            "group",
            "parallelism",
            "element_type",
            "algorithm_bandwidth",
            "mean_bus_bandwidth",
        ),
    ),
    collectives,
    totals=_collective_totals,
    merge={"lengths": "list"},
)
