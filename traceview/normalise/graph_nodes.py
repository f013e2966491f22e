"""When and by which thread the kernels of CUDA graphs were captured (`nsys profile --cuda-graph-trace=node`).

nsys gives each kernel of a graph the id of its node in the instantiated graph. An event marks the creation of each
node: in the stream capture, and again in the instantiated graph with the id of the first node.
"""

from __future__ import annotations

import polars as pl

from traceview.model.scopes import CAPTURES
from traceview.normalise.threads import Threads, process_of
from traceview.normalise.valid_rows import MAX_TIME
from traceview.read import raw

ORIGINAL = "originalGraphNodeId"
KEY = ["process", "correlation", "start", "end"]


def take_graph_nodes(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the kernels of graphs (KEY) with the thread and time of their capture: globalTid, captured.

    Removes the node ids of kernels from `tables`.
    """
    kernels, events = (tables.get(name, pl.DataFrame()) for name in (raw.KERNEL, raw.GRAPH_NODES))
    if raw.GRAPH_NODE not in kernels.columns:
        return pl.DataFrame()
    tables[raw.KERNEL] = kernels.drop(raw.GRAPH_NODE)
    if events.is_empty():
        return pl.DataFrame()
    original = pl.col(ORIGINAL) if ORIGINAL in events.columns else pl.lit(None, pl.Int64)
    # A node may have several events, of which one names the first node.
    nodes = (
        events.sort("start")
        .group_by(process_of("globalTid").alias("process"), pl.col(raw.GRAPH_NODE).alias("node"))
        .agg(
            original.drop_nulls().first().alias("original"),
            pl.col("globalTid").first(),
            pl.col("start").first().alias("captured"),
        )
    )
    first = nodes.select("process", pl.col("node").alias("original"), "globalTid", "captured")
    created = nodes.join(first, on=["process", "original"], how="left", suffix="_first").select(
        "process",
        "node",
        *(pl.coalesce(f"{name}_first", name).alias(name) for name in ("globalTid", "captured")),
    )
    graphs = kernels.filter(pl.col(raw.GRAPH_NODE).is_not_null()).select(
        process_of("globalPid").alias("process"),
        pl.col("correlationId").fill_null(0).cast(pl.UInt32).alias("correlation"),
        *("start", "end"),
        pl.col(raw.GRAPH_NODE).alias("node"),
    )
    captured = graphs.join(created, on=["process", "node"]).filter(pl.col("captured").is_between(-MAX_TIME, MAX_TIME))
    return captured.drop("node").unique(KEY, keep="none")


def kernel_captures(nodes: pl.DataFrame, operations: pl.DataFrame, threads: Threads) -> pl.DataFrame:
    """Return model.CAPTURES; `nodes` is the result of take_graph_nodes."""
    if nodes.is_empty():
        return pl.DataFrame(schema=dict(CAPTURES))
    rows = operations.select(KEY).with_row_index("operation").join(nodes, on=KEY)
    thread = threads.rows(rows["globalTid"]).cast(pl.Int16)
    return (
        rows.with_columns(thread)
        .filter(pl.col("thread") >= 0)
        .select(pl.col("operation").cast(pl.Int32), "thread", pl.col("captured").alias("start"))
        .sort("operation")
    )
