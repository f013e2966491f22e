"""The distinct launch shapes of kernels, and the captures of the kernels of CUDA graphs.

A launch shape is a name, grid, block, registers and shared memory. nsys gives each kernel of a graph the id of its node
in the instantiated graph (`nsys profile --cuda-graph-trace=node`). An event marks the creation of each node: in the
stream capture, and again in the instantiated graph with the id of the first node.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.intervals import distinct_rows, first_equal_rows, number_distinct, row_hashes
from traceview.model.stacks import CAPTURES
from traceview.model.trace import SHAPES
from traceview.normalise.codes import integers, texts_of
from traceview.normalise.order import Part
from traceview.normalise.threads import Threads, process_of
from traceview.normalise.valid_rows import MAX_TIME
from traceview.read import raw

NULL = -1
NO_KERNEL = 0  # the row of operations that are not kernels
ORIGINAL = "originalGraphNodeId"
KEY = ["process", "correlation", "start", "end"]


def empty_shapes() -> pl.DataFrame:
    """Return model.SHAPES with the row of operations that are not kernels."""
    return pl.DataFrame({name: [None] for name in SHAPES}, schema=dict(SHAPES))


def kernel_shapes(
    table: pl.DataFrame, apart: pl.DataFrame | None, tables: dict[str, pl.DataFrame]
) -> tuple[pl.DataFrame, Part]:
    """Return model.SHAPES, and the row of each kernel's shape in it; `apart` is RawCapture.shapes.

    Kernels with equal 64-bit hashes of all columns have the same shape: a comparison of all columns would take three
    times as long. The order of shapes does not depend on that of kernels, so that parts of a capture agree on it.
    """
    if table.is_empty():
        return empty_shapes(), NO_KERNEL
    every = table if apart is None else apart
    present = every.select(name for name in raw.SHAPE_COLUMNS if name in every.columns)
    first, shape = number_distinct(first_equal_rows(row_hashes([integers(column, NULL) for column in present])))
    # Static and dynamic shared memory are one column of a shape, and text may have several ids.
    shapes, (number,) = distinct_rows(
        [pl.concat([empty_shapes(), _shapes_frame(present[first], tables)])], ordered=True
    )
    rows = number.astype(np.uint32)[NO_KERNEL + 1 :][shape]
    return shapes, rows if apart is None else rows[table[raw.SHAPE].to_numpy()]


def _shapes_frame(used: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    def numbers(name: str) -> pl.Series:
        return used[name] if name in used.columns else pl.Series(name, [None] * len(used), dtype=pl.Int64)

    name = texts_of(used["shortName"].fill_null(NULL), tables)
    has_full_name = "demangledName" in used.columns
    columns = {
        "name": name,
        "demangled": texts_of(used["demangledName"].fill_null(NULL), tables) if has_full_name else name,
        **{f"{kind}_{axis.lower()}": numbers(f"{kind}{axis}") for kind in ("grid", "block") for axis in "XYZ"},
        "registers": numbers("registersPerThread"),
        "shared_bytes": numbers("staticSharedMemory") + numbers("dynamicSharedMemory"),
    }
    return pl.DataFrame(columns, schema=dict(SHAPES))


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
    # A node may have several events. Only one of them names the first node.
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
