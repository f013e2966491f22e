"""GPU work: kernels, whole graphs, copies and memsets in one frame (METRICS.md "GPU work")."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.model import (
    CLASSES,
    KINDS,
    MEMORIES,
    OPERATIONS,
    SOURCES,
    CopyKind,
    Memory,
    OperationClass,
    Source,
)
from traceview.normalise.devices import Devices
from traceview.normalise.identity import process_of
from traceview.normalise.links import Links
from traceview.normalise.names import UNNAMED, WIDEST_LOOKUP, as_enum, coded, places, texts_of
from traceview.normalise.order import by_time
from traceview.normalise.streams import KEY, Streams
from traceview.read import raw

COMMUNICATION = re.compile("nccl|rccl|nvshmem|mscclpp", re.IGNORECASE)
RAW_KEY = ["process", "deviceId", "contextId", "streamId"]
TABLE_OF = {"kernel": raw.KERNEL, "graph": raw.GRAPH, "memcpy": raw.MEMCPY, "memset": raw.MEMSET}
# copyKind and memKind as CUPTI numbers them (CUpti_ActivityMemcpyKind, CUpti_ActivityMemoryKind).
KIND_OF = (
    "other",
    "h2d",
    "d2h",
    "h2d",
    "d2h",
    "d2d",
    "d2d",
    "d2d",
    "d2d",
    "h2h",
    "p2p",
    "um_h2d",
    "um_d2h",
    "um_d2d",
)
MEMORY_OF = ("pageable", "pinned", "device", "device", "managed", "device", "managed", "unknown")


class Named(NamedTuple):
    """Texts that may repeat, and one index into them a row."""

    texts: list[str]
    codes: NDArray[np.int64]


def operations_frame(tables: dict[str, pl.DataFrame], devices: Devices, streams: Streams) -> pl.DataFrame:
    """Return model.OPERATIONS, sorted by (start, end, source, row), all but its `launch`."""
    parts = [_part(tables, source) for source in SOURCES if TABLE_OF[source] in tables]
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return pl.DataFrame(schema=dict(OPERATIONS) | {"name": pl.Enum([])})
    texts: list[str] = []
    codes = []
    for _, names in parts:
        codes.append(names.codes + len(texts))
        texts.extend(names.texts)
    joined = pl.concat([frame for frame, _ in parts]).with_columns(coded(texts, np.concatenate(codes)).alias("name"))
    joined = by_time(_without_traced_graphs(joined))
    return _with_places(joined, devices, streams)


def with_launches(operations: pl.DataFrame, links: Links) -> pl.DataFrame:
    """Return model.OPERATIONS: each operation with the call that launched it."""
    if operations.is_empty():
        return operations
    launch = links.rows(operations["process"], operations["correlation"])
    return operations.with_columns(launch).select(list(OPERATIONS))


def _part(tables: dict[str, pl.DataFrame], source: str) -> tuple[pl.DataFrame, Named]:
    found = tables[TABLE_OF[source]]
    size = pl.col("bytes").fill_null(0) if "bytes" in found.columns else pl.lit(0, pl.Int64)
    kinds = memories = None
    if source == "memcpy":
        kinds, memories = _copy_kinds(found)
        names = Named([f"memcpy {name}" for name in KINDS], kinds.to_numpy().astype(np.int64))
        classes = np.full(len(found), CLASSES.index("copy"), np.uint8)
    elif source == "kernel":
        names = _kernel_names(found, tables)
        by_name = np.array([bool(COMMUNICATION.match(text)) for text in names.texts], np.uint8)
        classes = by_name[names.codes]
    else:
        names = _graph_names(found) if source == "graph" else Named(["memset"], np.zeros(len(found), np.int64))
        classes = np.full(len(found), CLASSES.index("memset") if source == "memset" else 0, np.uint8)
    frame = found.select(
        "start",
        "end",
        as_enum(classes, OperationClass).alias("class"),
        pl.lit(source, Source).alias("source"),
        pl.lit(None, CopyKind).alias("kind") if kinds is None else as_enum(kinds, CopyKind).alias("kind"),
        pl.lit(None, Memory).alias("memory") if memories is None else as_enum(memories, Memory).alias("memory"),
        size.alias("bytes"),
        process_of("globalPid").alias("process"),
        *(pl.col(name).fill_null(0) for name in ("deviceId", "contextId", "streamId")),
        pl.col("correlationId").fill_null(0).alias("correlation"),
    )
    return frame, names


def _kernel_names(found: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> Named:
    used = found["shortName"].unique().drop_nulls().sort()
    return Named([UNNAMED, *texts_of(used, tables)], places(found["shortName"], used) + 1)


def _graph_names(found: pl.DataFrame) -> Named:
    if "graphId" not in found.columns:
        return Named(["CUDA graph"], np.zeros(len(found), np.int64))
    used = found["graphId"].unique().drop_nulls().sort()
    return Named(["CUDA graph", *(f"CUDA graph {one}" for one in used)], places(found["graphId"], used) + 1)


def _copy_kinds(found: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return codes of KINDS and MEMORIES for each copy (METRICS.md "JSON")."""
    raw_kind = found["copyKind"].fill_null(0).to_numpy()
    known = np.array([KINDS.index(name) for name in KIND_OF], np.uint8)
    kinds = known[np.where((raw_kind >= 0) & (raw_kind < len(known)), raw_kind, 0)]
    unknown = MEMORIES.index("unknown")
    memories = np.full(len(found), unknown, np.uint8)
    for side, of in (("srcKind", ("h2d", "h2h")), ("dstKind", ("d2h",))):
        chosen = np.isin(kinds, [KINDS.index(name) for name in of])
        if side in found.columns:
            memories[chosen] = _memories(found[side])[chosen]
    memories[np.isin(kinds, [KINDS.index(name) for name in ("d2d", "p2p")])] = MEMORIES.index("device")
    memories[np.isin(kinds, [KINDS.index(name) for name in ("um_h2d", "um_d2h", "um_d2d")])] = MEMORIES.index("managed")
    return pl.Series(kinds), pl.Series(memories)


def _memories(column: pl.Series) -> NDArray[np.uint8]:
    value = column.fill_null(7).to_numpy()
    known = np.array([MEMORIES.index(name) for name in MEMORY_OF], np.uint8)
    return known[np.where((value >= 0) & (value < len(known)), value, 7)]


def _without_traced_graphs(joined: pl.DataFrame) -> pl.DataFrame:
    """Leave out a whole graph whose kernels were traced as nodes, or it would count twice."""
    graph = pl.col("source").to_physical() == SOURCES.index("graph")
    graphs = joined.filter(graph)
    if graphs.is_empty() or len(graphs) == len(joined):
        return joined
    kernels = joined.filter(pl.col("source").to_physical() == SOURCES.index("kernel"), pl.col("correlation") != 0)
    key = ["process", "correlation"]
    traced = graphs.join(kernels, on=key, how="semi").select(key).unique().with_columns(pl.lit(True).alias("traced"))
    marked = joined.join(traced, on=key, how="left", maintain_order="left")
    return marked.filter(~(graph & pl.col("traced").fill_null(False))).drop("traced")


def _with_places(joined: pl.DataFrame, devices: Devices, streams: Streams) -> pl.DataFrame:
    """Add the rows of the device and the stream, by one lookup table over all combinations of the key."""
    keys = [joined[name] for name in ("process", "deviceId", "contextId", "streamId")]
    known = [key.unique().sort() for key in keys]
    code = np.zeros(len(joined), np.int64)
    for key, values in zip(keys, known, strict=True):
        code = code * len(values) + places(key, values)
    size = math.prod(len(values) for values in known)
    if size > WIDEST_LOOKUP:
        return _with_places_joined(joined, devices, streams)
    rows = _stream_keys(devices, streams)
    for name, values in zip(RAW_KEY, known, strict=True):
        # A stream whose only work was left out (a graph traced as nodes) has no place, and must take nobody's.
        rows = rows.filter(pl.col(name).is_in(values.implode()))
    at = np.zeros(len(rows), np.int64)
    for name, values in zip(RAW_KEY, known, strict=True):
        at = at * len(values) + places(rows[name], values)
    device, stream = np.zeros(size, np.int32), np.zeros(size, np.int32)
    device[at], stream[at] = rows["device"].to_numpy(), rows["stream"].to_numpy()
    return joined.with_columns(pl.Series("device", device[code]), pl.Series("stream", stream[code]))


def _with_places_joined(joined: pl.DataFrame, devices: Devices, streams: Streams) -> pl.DataFrame:
    return joined.join(_stream_keys(devices, streams), on=RAW_KEY, how="left", maintain_order="left")


def _stream_keys(devices: Devices, streams: Streams) -> pl.DataFrame:
    """Return the rows of the device and the stream for each raw key that has one."""
    rows = streams.frame.select(KEY).with_row_index("stream").with_columns(pl.col("stream").cast(pl.Int32))
    pairs = devices.pairs.join(rows, on=["process", "device"])
    return pairs.rename({"context": "contextId", "stream_id": "streamId"}).select(*RAW_KEY, "device", "stream")
