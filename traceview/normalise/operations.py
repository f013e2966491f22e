"""GPU work: kernels, whole graphs, copies and memsets in one frame (METRICS.md "GPU work")."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from traceview.normalise.codes import WIDEST_LOOKUP, Codes, different, different_rows, numbers, places
from traceview.normalise.devices import Devices
from traceview.normalise.identity import processes_of
from traceview.normalise.links import Links
from traceview.normalise.names import UNNAMED, as_enum, coded, texts_of
from traceview.normalise.order import by_time
from traceview.normalise.streams import KEY, Streams
from traceview.read import raw

COMMUNICATION = re.compile("nccl|rccl|nvshmem|mscclpp", re.IGNORECASE)
RAW_COLUMNS = ["globalPid", "deviceId", "contextId", "streamId"]
RAW_KEY = ["process", *RAW_COLUMNS[1:]]
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
    codes: NDArray[np.integer[Any]]


def operations_frame(tables: dict[str, pl.DataFrame], devices: Devices, streams: Streams) -> pl.DataFrame:
    """Return model.OPERATIONS, sorted by (start, end, source, row), all but its `launch`.

    Takes its tables out of `tables`.
    """
    places_of = _Places(_stream_keys(devices, streams))
    parts = [_part(tables, source, places_of) for source in SOURCES if TABLE_OF[source] in tables]
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return pl.DataFrame(schema=dict(OPERATIONS) | {"name": pl.Enum([])})
    texts: list[str] = []
    codes = []
    for _, names in parts:
        codes.append(names.codes + len(texts))
        texts.extend(names.texts)
    names_of_all = coded(texts, np.concatenate(codes)).alias("name")
    joined = pl.concat([frame for frame, _ in parts], rechunk=True).with_columns(names_of_all)
    if TABLE_OF["graph"] in tables:
        joined = _without_traced_graphs(joined)
    # Sorting makes a copy, for which there is room once they are gone.
    del parts
    for table in TABLE_OF.values():
        tables.pop(table, None)
    return by_time(joined)


def with_launches(operations: pl.DataFrame, links: Links) -> pl.DataFrame:
    """Return model.OPERATIONS: each operation with the call that launched it."""
    if operations.is_empty():
        return operations
    launch = links.rows(operations["process"], operations["correlation"])
    return operations.with_columns(launch).select(list(OPERATIONS))


def _part(tables: dict[str, pl.DataFrame], source: str, places_of: _Places) -> tuple[pl.DataFrame, Named]:
    found = tables[TABLE_OF[source]]
    size = pl.col("bytes").fill_null(0) if "bytes" in found.columns else pl.lit(0, pl.Int64)
    kinds = memories = None
    if source == "memcpy":
        kinds, memories = _copy_kinds(found)
        names = Named([f"memcpy {name}" for name in KINDS], kinds.to_numpy().astype(np.int32))
        classes = np.full(len(found), CLASSES.index("copy"), np.uint8)
    elif source == "kernel":
        names = _kernel_names(found, tables)
        by_name = np.array([bool(COMMUNICATION.match(text)) for text in names.texts], np.uint8)
        classes = by_name[names.codes]
    else:
        names = _graph_names(found) if source == "graph" else Named(["memset"], np.zeros(len(found), np.int32))
        classes = np.full(len(found), CLASSES.index("memset") if source == "memset" else 0, np.uint8)
    frame = found.select(
        "start",
        "end",
        as_enum(classes, OperationClass).alias("class"),
        pl.lit(source, Source).alias("source"),
        pl.lit(None, CopyKind).alias("kind") if kinds is None else as_enum(kinds, CopyKind).alias("kind"),
        pl.lit(None, Memory).alias("memory") if memories is None else as_enum(memories, Memory).alias("memory"),
        size.alias("bytes"),
        *places_of.rows(found),
        pl.col("correlationId").fill_null(0).alias("correlation"),
    )
    return frame, names


def _kernel_names(found: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> Named:
    used = different(found["shortName"])
    return Named([UNNAMED, *texts_of(used, tables)], places(found["shortName"], used) + 1)


def _graph_names(found: pl.DataFrame) -> Named:
    if "graphId" not in found.columns:
        return Named(["CUDA graph"], np.zeros(len(found), np.int32))
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


@dataclass(frozen=True, slots=True)
class _Places:
    """The rows of the device and the stream for each raw key that has one: RAW_KEY, device, stream."""

    keys: pl.DataFrame

    def rows(self, found: pl.DataFrame) -> tuple[pl.Series, pl.Series, pl.Series]:
        """Return the process of each row of a table, and the rows of its device and its stream."""
        process = processes_of(numbers(found["globalPid"]))
        present = different_rows(found, RAW_COLUMNS)
        present = present.select(pl.Series("process", processes_of(present["globalPid"].to_numpy())), *RAW_KEY[1:])
        known = self.keys.join(present.unique(), on=RAW_KEY, how="semi")
        if len(known) == 1:
            device, stream = (np.full(len(found), known[name].item(), np.int32) for name in ("device", "stream"))
        else:
            raw_key = found.select(pl.Series("process", process), *(pl.col(name).fill_null(0) for name in RAW_KEY[1:]))
            device, stream = _looked_up(raw_key, known)
        return pl.Series("process", process), pl.Series("device", device), pl.Series("stream", stream)


def _looked_up(found: pl.DataFrame, known: pl.DataFrame) -> tuple[Codes, Codes]:
    """Find the rows of `known` by one lookup table over all combinations of the key."""
    values = [known[name].unique().sort() for name in RAW_KEY]
    size = math.prod(len(one) for one in values)
    if size > WIDEST_LOOKUP:
        joined = found.join(known, on=RAW_KEY, how="left", maintain_order="left")
        return joined["device"].to_numpy(), joined["stream"].to_numpy()
    table = np.zeros((2, size), np.int32)
    table[:, _combined(known, values)] = known["device"].to_numpy(), known["stream"].to_numpy()
    code = _combined(found, values)
    return table[0][code], table[1][code]


def _combined(frame: pl.DataFrame, values: list[pl.Series]) -> NDArray[np.int64]:
    code = np.zeros(len(frame), np.int64)
    for name, known in zip(RAW_KEY, values, strict=True):
        code *= len(known)
        code += places(frame[name], known)
    return code


def _stream_keys(devices: Devices, streams: Streams) -> pl.DataFrame:
    """Return the rows of the device and the stream for each raw key that has one."""
    rows = streams.frame.select(KEY).with_row_index("stream").with_columns(pl.col("stream").cast(pl.Int32))
    pairs = devices.pairs.join(rows, on=["process", "device"])
    return pairs.rename({"context": "contextId", "stream_id": "streamId"}).select(*RAW_KEY, "device", "stream")
