"""GPU work: kernels, whole graphs, copies and memsets in one frame (docs/definitions.md "GPU work").

A launch shape of kernels is a name, grid, block, registers and shared memory. nsys gives each kernel of a graph the id
of its node in the instantiated graph (`nsys profile --cuda-graph-trace=node`). An event marks the creation of each
node: in the stream capture, and again in the instantiated graph with the id of the first node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import covered_length, first_equal_rows, number_distinct, row_hashes, union
from traceview.model.names import ABI_TAGS, COMMUNICATION, EXPERT_PARALLEL
from traceview.model.sizes import empty_frame
from traceview.model.stacks import CAPTURES
from traceview.model.trace import (
    CLASSES,
    KINDS,
    MEMORIES,
    OPERATIONS,
    SHAPES,
    SOURCES,
    CopyKind,
    Memory,
    OperationClass,
    Source,
    enum_texts,
)
from traceview.normalise.api import Links
from traceview.normalise.codes import (
    MAX_LOOKUP_SPAN,
    NAMES,
    UNNAMED,
    enum_column,
    integers,
    positions,
    short_names,
    text_column,
    text_enum,
)
from traceview.normalise.devices import RAW_COLUMNS, STREAM_KEY, Devices, RawStreamIds
from traceview.normalise.threads import Threads, process_ids, process_of
from traceview.normalise.valid_rows import MAX_TIME, MergedEvents, RowValues
from traceview.read import raw
from traceview.read.raw import SHAPE_COLUMNS, TIMES

NULL = -1
NO_KERNEL = 0  # the row of operations that are not kernels
ORIGINAL = "originalGraphNodeId"
KEY = ["process", "correlation", "start", "end"]


def empty_shapes() -> pl.DataFrame:
    """Return model.SHAPES with the row of operations that are not kernels."""
    return pl.DataFrame({name: [None] for name in SHAPES}, schema=dict(SHAPES))


def kernel_shapes(
    table: pl.DataFrame, apart: pl.DataFrame | None, tables: dict[str, pl.DataFrame]
) -> tuple[pl.DataFrame, RowValues]:
    """Return model.SHAPES, and the row of each kernel's shape in it; `apart` is RawCapture.shapes.

    Kernels with equal 64-bit hashes of all columns have the same shape: a comparison of all columns would take three
    times as long. The order of shapes does not depend on that of kernels.
    """
    if table.is_empty():
        return empty_shapes(), NO_KERNEL
    every = table if apart is None else apart
    present = every.select(name for name in raw.SHAPE_COLUMNS if name in every.columns)
    first, shape = number_distinct(first_equal_rows(row_hashes([integers(column, NULL) for column in present])))
    # Static and dynamic shared memory are one column of a shape, and text may have several ids.
    every = pl.concat([empty_shapes(), _shapes_frame(present[first], tables)])  # the empty one sorts first
    order = every.select(pl.arg_sort_by(every.columns)).to_series()
    every = every[order]
    is_new = every.select(pl.any_horizontal(pl.all().ne_missing(pl.all().shift())) | (pl.int_range(pl.len()) == 0))
    number = np.empty(len(every), np.uint32)
    number[order.to_numpy()] = np.cumsum(is_new.to_series().to_numpy()) - 1
    rows = number[NO_KERNEL + 1 :][shape]
    return every.filter(is_new.to_series()), rows if apart is None else rows[table[raw.SHAPE].to_numpy()]


def _shapes_frame(used: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    def numbers(name: str) -> pl.Series:
        return used[name] if name in used.columns else pl.Series(name, [None] * len(used), dtype=pl.Int64)

    name = text_column(used["shortName"].fill_null(NULL), tables)
    has_full_name = "demangledName" in used.columns
    columns = {
        "name": name.str.replace(ABI_TAGS, ""),
        "demangled": text_column(used["demangledName"].fill_null(NULL), tables) if has_full_name else name,
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
        "process", "node", *(pl.coalesce(f"{name}_first", name).alias(name) for name in ("globalTid", "captured"))
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
        return empty_frame(CAPTURES)
    rows = operations.select(KEY).with_row_index("operation").join(nodes, on=KEY)
    thread = threads.rows(rows["globalTid"]).cast(pl.Int16)
    return (
        rows.with_columns(thread)
        .filter(pl.col("thread") >= 0)
        .select(pl.col("operation").cast(pl.Int32), "thread", pl.col("captured").alias("start"))
        .sort("operation")
    )


RAW_KEY = ["process", *RAW_COLUMNS[1:]]
TABLE_OF_SOURCE = {"kernel": raw.KERNEL, "graph": raw.GRAPH, "memcpy": raw.MEMCPY, "memset": raw.MEMSET}
COPY_KINDS, COPY_MEMORIES = NAMES["copies"]["kinds"], NAMES["copies"]["memories"]
NO_KIND, NO_MEMORY = len(KINDS), len(MEMORIES)  # the codes of null
COMMUNICATION_CODE = CLASSES.index("communication")
NCCL = "NCCL"  # the domain of its ranges
BATCH_COPY = r"^(?:cuda|cu)Memcpy(?:3D)?BatchAsync"


class RowNames(NamedTuple):
    """Texts, which may repeat, and each row's index into them; a single index stands for all rows."""

    texts: pl.Series
    codes: RowValues


class KernelRows(NamedTuple):
    """The names of kernels, and the row of each kernel's shape in model.SHAPES."""

    names: RowNames
    shapes: RowValues


class SourceRows(NamedTuple):
    """The rows of a source: codes of CLASSES, KINDS and MEMORIES, names, shapes, and where they ran."""

    table: pl.DataFrame
    source: str
    names: RowNames
    classes: RowValues
    kinds: RowValues
    memories: RowValues
    shapes: RowValues
    process: RowValues
    device: RowValues
    stream: RowValues


def operations_frame(
    tables: dict[str, pl.DataFrame],
    apart: pl.DataFrame | None,
    stream_ids: RawStreamIds,
    devices: Devices,
    streams: pl.DataFrame,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return model.OPERATIONS without the column `launch`, sorted by (start, end, source, row), and model.SHAPES.

    `apart` is RawCapture.shapes. Removes its tables from `tables`.
    """
    lookup = _StreamLookup(stream_keys(devices, streams), stream_ids)
    by_source = {source: tables.pop(TABLE_OF_SOURCE[source]) for source in SOURCES if TABLE_OF_SOURCE[source] in tables}
    shapes, shape = kernel_shapes(by_source.get("kernel", pl.DataFrame()), apart, tables)
    # Memory use peaks below: free what is now in the shapes.
    by_source = {source: table.drop(SHAPE_COLUMNS, strict=False) for source, table in by_source.items()}
    kernels = KernelRows(RowNames(shapes["name"].fill_null(UNNAMED), shape), shape)
    sources = [
        _source_rows(table, source, tables, lookup, kernels) for source, table in by_source.items() if len(table)
    ]
    if not sources:
        return empty_frame(OPERATIONS), shapes
    merged = MergedEvents.by_time(*([integers(rows.table[name]) for rows in sources] for name in TIMES))
    columns = {
        "start": merged.start,
        "end": merged.end,
        "class": enum_column(merged.array([rows.classes for rows in sources], np.uint8), OperationClass),
        "source": enum_column(merged.array([SOURCES.index(rows.source) for rows in sources], np.uint8), Source),
        "kind": enum_column(merged.array([rows.kinds for rows in sources], np.uint8), CopyKind),
        "memory": enum_column(merged.array([rows.memories for rows in sources], np.uint8), Memory),
        "bytes": merged.array([_integers_or_zero(rows.table, "bytes") for rows in sources], np.int64),
        "device": merged.array([rows.device for rows in sources], np.int16),
        "stream": merged.array([rows.stream for rows in sources], np.int16),
        "correlation": merged.array([_integers_or_zero(rows.table, "correlationId") for rows in sources], np.uint32),
        "shape": merged.array([rows.shapes for rows in sources], np.uint32),
        "name": _merged_names(merged, [rows.names for rows in sources]),
    }
    process = merged.int32_column([rows.process for rows in sources])
    return pl.DataFrame(columns).with_columns(process.alias("process")), shapes


def with_launches(operations: pl.DataFrame, links: Links) -> pl.DataFrame:
    """Return model.OPERATIONS, with the API call that launched each operation."""
    if operations.is_empty():
        return operations
    return operations.with_columns(links.rows(operations)).select(list(OPERATIONS))


def with_collective_copies(operations: pl.DataFrame, api: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return model.OPERATIONS in which copies between GPUs by a communication library are communication.

    NCCL 2.28 and newer runs collectives on copy engines. Such a copy is launched inside one of NCCL's ranges, or with
    others by one call, from a thread or on a stream that runs collectives.
    """
    chosen = (operations["kind"] == "p2p").fill_null(False) & operations["launch"].is_not_null()
    rows = np.flatnonzero(chosen.to_numpy())
    if not len(rows):
        return operations
    code, thread = operations["class"].to_physical().to_numpy().copy(), api["thread"].to_numpy()
    collectives = operations.select("launch", "stream")[np.flatnonzero(code == COMMUNICATION_CODE)]
    of_nccl = ranges.filter(pl.col("domain") == NCCL)
    threads = {*thread[collectives["launch"].drop_nulls().to_numpy()].tolist(), *of_nccl["thread"].unique()}
    launch = operations["launch"].gather(rows)
    calls = api.select("thread", "start", pl.col("name").cast(pl.String).str.contains(BATCH_COPY))[launch]
    stream = operations["stream"].gather(rows)
    named = calls["name"] & (calls["thread"].is_in(threads) | stream.is_in(collectives["stream"].unique().implode()))
    inside = named.to_numpy().copy()
    for number in of_nccl["thread"].unique().to_list():
        start, end = (of_nccl.filter(pl.col("thread") == number)[name].to_numpy() for name in TIMES)
        own = np.flatnonzero((calls["thread"] == number).to_numpy())
        moments = calls["start"].to_numpy()[own]
        inside[own] |= covered_length(union(start, end), moments, moments + 1) > 0
    code[rows[inside]] = COMMUNICATION_CODE
    return operations.with_columns(enum_column(code, OperationClass).alias("class")) if inside.any() else operations


def _source_rows(
    table: pl.DataFrame, source: str, tables: dict[str, pl.DataFrame], lookup: _StreamLookup, kernels: KernelRows
) -> SourceRows:
    ran_on = lookup.rows(table, TABLE_OF_SOURCE[source])
    if source == "memcpy":
        kinds, memories = _copy_kinds(table)
        names = RowNames(pl.Series([f"memcpy {name}" for name in KINDS]), kinds)
        return SourceRows(table, source, names, CLASSES.index("copy"), kinds, memories, NO_KERNEL, *ran_on)
    if source == "kernel":
        names, shapes = kernels
        is_communication = _communication_names(names.texts, tables[raw.STRINGS]["value"])
        classes = is_communication[names.codes] if is_communication.any() else 0
        return SourceRows(table, source, names, classes, NO_KIND, NO_MEMORY, shapes, *ran_on)
    names = _graph_names(table) if source == "graph" else RowNames(pl.Series(["memset"]), 0)
    code = CLASSES.index("memset") if source == "memset" else 0
    return SourceRows(table, source, names, code, NO_KIND, NO_MEMORY, NO_KERNEL, *ran_on)


def _communication_names(names: pl.Series, texts: pl.Series) -> NDArray[np.uint8]:
    """Return 1 for each short name of a communication kernel (docs/definitions.md "GPU work")."""
    of_experts = short_names(texts.filter(texts.str.contains(EXPERT_PARALLEL)))
    communicates = names.str.contains(COMMUNICATION) | names.is_in(of_experts.implode())
    return communicates.cast(pl.UInt8).to_numpy()


def _integers_or_zero(table: pl.DataFrame, name: str) -> RowValues:
    """Return an integer column; 0 if the table does not have it."""
    return integers(table[name]) if name in table.columns else 0


def _merged_names(merged: MergedEvents, names: Sequence[RowNames]) -> pl.Series:
    """Return one column of names from those of each source."""
    texts = text_enum(pl.concat([rows.texts for rows in names]))
    number, first, codes = texts.to_physical().to_numpy(), 0, list[RowValues]()
    for rows in names:
        own = number[first : first + len(rows.texts)]
        first += len(own)
        codes.append(int(own[rows.codes]) if isinstance(rows.codes, int) else own.take(rows.codes, mode="clip"))
    return enum_column(merged.array(codes, number.dtype.type), pl.Enum(enum_texts(texts)))


def _graph_names(table: pl.DataFrame) -> RowNames:
    if "graphId" not in table.columns:
        return RowNames(pl.Series(["CUDA graph"]), 0)
    used = table["graphId"].unique().drop_nulls().sort()
    texts = pl.Series(["CUDA graph", *(f"CUDA graph {number}" for number in used)])
    return RowNames(texts, positions(table["graphId"], used) + 1)


def _copy_kinds(table: pl.DataFrame) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the codes of KINDS and MEMORIES of each copy (docs/definitions.md "JSON")."""
    raw_kind = table["copyKind"].fill_null(0).to_numpy()
    codes = np.array([KINDS.index(name) for name in COPY_KINDS], np.uint8)
    kinds = codes[np.where((raw_kind >= 0) & (raw_kind < len(codes)), raw_kind, 0)]
    memories = np.full(len(table), MEMORIES.index("unknown"), np.uint8)
    for host_side, host_kinds in (("srcKind", ("h2d", "h2h")), ("dstKind", ("d2h",))):
        chosen = np.isin(kinds, [KINDS.index(name) for name in host_kinds])
        if host_side in table.columns:
            memories[chosen] = _memory_codes(table[host_side])[chosen]
    memories[np.isin(kinds, [KINDS.index(name) for name in ("d2d", "p2p")])] = MEMORIES.index("device")
    memories[np.isin(kinds, [KINDS.index(name) for name in ("um_h2d", "um_d2h", "um_d2d")])] = MEMORIES.index("managed")
    return kinds, memories


def _memory_codes(column: pl.Series) -> NDArray[np.uint8]:
    value = column.fill_null(7).to_numpy()
    codes = np.array([MEMORIES.index(name) for name in COPY_MEMORIES], np.uint8)
    return codes[np.where((value >= 0) & (value < len(codes)), value, 7)]


class _StreamLookup(NamedTuple):
    """`keys` has the rows of device and stream for each raw key: RAW_KEY, device, stream."""

    keys: pl.DataFrame
    stream_ids: RawStreamIds

    def rows(self, table: pl.DataFrame, name: str) -> tuple[RowValues, RowValues, RowValues]:
        """Return the process of each row of a table, and the rows of its device and its stream."""
        ids = self.stream_ids[name]
        ids = ids.select(pl.Series("process", process_ids(ids["globalPid"].to_numpy())), *RAW_KEY[1:])
        keys = self.keys.join(ids.unique(), on=RAW_KEY, how="semi")
        if len(keys) == 1:
            only = keys.row(0, named=True)
            return only["process"], only["device"], only["stream"]
        # Look up only the columns that have several values: most captures have one process.
        values = {column: ordered for column in RAW_KEY if len(ordered := keys[column].unique().sort()) > 1}
        raw_key = {column: table[column].fill_null(0) for column in values if column != "process"}
        process: RowValues = int(keys["process"][0])
        if "process" in values:
            process = process_ids(integers(table["globalPid"]))
            raw_key["process"] = pl.Series(process)
        return process, *_devices_and_streams(pl.DataFrame(raw_key), keys, values)


def _devices_and_streams(
    raw_key: pl.DataFrame, keys: pl.DataFrame, values: Mapping[str, pl.Series]
) -> tuple[RowValues, RowValues]:
    """Look up device and stream in a table of all combinations of `values`, or by a join if it is too large."""
    size = math.prod(len(column) for column in values.values())
    if size > MAX_LOOKUP_SPAN:
        joined = raw_key.join(keys, on=list(values), how="left", maintain_order="left")
        return joined["device"].to_numpy(), joined["stream"].to_numpy()
    code, key_code = _combined_codes(raw_key, values), _combined_codes(keys, values)

    def rows(name: str) -> RowValues:
        if keys[name].n_unique() == 1:
            return int(keys[name][0])
        table = np.zeros(size, np.int16)
        table[key_code] = keys[name].to_numpy()
        return table[code]

    return rows("device"), rows("stream")


def _combined_codes(frame: pl.DataFrame, values: Mapping[str, pl.Series]) -> NDArray[np.int64]:
    code = np.zeros(len(frame), np.int64)
    for name, ordered in values.items():
        code *= len(ordered)
        code += positions(frame[name], ordered)
    return code


def stream_keys(devices: Devices, streams: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of device and stream for each raw key."""
    rows = streams.select(STREAM_KEY).with_row_index("stream").with_columns(pl.col("stream").cast(pl.Int32))
    pairs = devices.pairs.join(rows, on=["process", "device"])
    return pairs.rename({"context": "contextId", "stream_id": "streamId"}).select(*RAW_KEY, "device", "stream")
