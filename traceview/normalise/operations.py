"""GPU work: kernels, whole graphs, copies and memsets in one frame (METRICS.md "GPU work")."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.model.trace import (
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
from traceview.normalise.codes import WIDEST_LOOKUP, different, numbers, places
from traceview.normalise.devices import RAW_COLUMNS, Devices, Ran
from traceview.normalise.identity import processes_of
from traceview.normalise.links import Links
from traceview.normalise.merge import Part, Together
from traceview.normalise.names import UNNAMED, as_enum, narrowest, texts_of
from traceview.normalise.streams import KEY, Streams
from traceview.read import raw
from traceview.read.raw import TIMES

COMMUNICATION = re.compile("nccl|rccl|nvshmem|mscclpp", re.IGNORECASE)
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


NO_KIND, NO_MEMORY = len(KINDS), len(MEMORIES)  # the codes of null


class Named(NamedTuple):
    """Texts that may repeat, and one index into them a row, or the one of all rows."""

    texts: list[str]
    codes: Part


class _Table(NamedTuple):
    """What a table's rows have: codes of CLASSES, KINDS and MEMORIES, names, bytes, and where they ran."""

    found: pl.DataFrame
    source: str
    names: Named
    classes: Part
    kinds: Part
    memories: Part
    process: Part
    device: Part
    stream: Part


def operations_frame(tables: dict[str, pl.DataFrame], ran: Ran, devices: Devices, streams: Streams) -> pl.DataFrame:
    """Return model.OPERATIONS, sorted by (start, end, source, row), all but its `launch`.

    Takes its tables out of `tables`.
    """
    places_of = _Places(_stream_keys(devices, streams), ran)
    of_source = {source: tables.pop(TABLE_OF[source]) for source in SOURCES if TABLE_OF[source] in tables}
    parts = [_part(found, source, tables, places_of) for source, found in of_source.items() if len(found)]
    if not parts:
        return pl.DataFrame(schema=dict(OPERATIONS) | {"name": pl.Enum([])})
    together = Together.by_time(*([numbers(part.found[name]) for part in parts] for name in TIMES))
    columns = {
        "start": together.start,
        "end": together.end,
        "class": as_enum(together.column([part.classes for part in parts], np.uint8), OperationClass),
        "source": as_enum(together.column([SOURCES.index(part.source) for part in parts], np.uint8), Source),
        "kind": as_enum(together.column([part.kinds for part in parts], np.uint8), CopyKind),
        "memory": as_enum(together.column([part.memories for part in parts], np.uint8), Memory),
        "bytes": together.column([_whole(part.found, "bytes") for part in parts], np.int64),
        "device": together.column([part.device for part in parts], np.int16),
        "stream": together.column([part.stream for part in parts], np.int16),
        "correlation": together.column([_whole(part.found, "correlationId") for part in parts], np.uint32),
        "name": _names(together, [part.names for part in parts]),
    }
    joined = pl.DataFrame(columns).with_columns(together.whole([part.process for part in parts]).alias("process"))
    return _without_traced_graphs(joined) if "graph" in of_source else joined


def with_launches(operations: pl.DataFrame, links: Links) -> pl.DataFrame:
    """Return model.OPERATIONS: each operation with the call that launched it."""
    if operations.is_empty():
        return operations
    return operations.with_columns(links.rows(operations)).select(list(OPERATIONS))


def _part(found: pl.DataFrame, source: str, tables: dict[str, pl.DataFrame], places_of: _Places) -> _Table:
    ran = places_of.rows(found, TABLE_OF[source])
    if source == "memcpy":
        kinds, memories = _copy_kinds(found)
        names = Named([f"memcpy {name}" for name in KINDS], kinds)
        return _Table(found, source, names, CLASSES.index("copy"), kinds, memories, *ran)
    if source == "kernel":
        names = _kernel_names(found, tables)
        by_name = np.array([bool(COMMUNICATION.match(text)) for text in names.texts], np.uint8)
        classes = by_name[names.codes] if by_name.any() else 0
        return _Table(found, source, names, classes, NO_KIND, NO_MEMORY, *ran)
    names = _graph_names(found) if source == "graph" else Named(["memset"], 0)
    return _Table(found, source, names, CLASSES.index("memset") if source == "memset" else 0, NO_KIND, NO_MEMORY, *ran)


def _whole(found: pl.DataFrame, name: str) -> Part:
    """Return a column of whole numbers, 0 where there is none."""
    return numbers(found[name]) if name in found.columns else 0


def _names(together: Together, named: Sequence[Named]) -> pl.Series:
    """Return one column of names from those of each table."""
    texts = list(dict.fromkeys(text for one in named for text in one.texts))
    code = {text: index for index, text in enumerate(texts)}
    narrow = narrowest(len(texts))
    parts: list[Part] = []
    for one in named:
        own = np.array([code[text] for text in one.texts], narrow)
        parts.append(int(own[one.codes]) if isinstance(one.codes, int) else own.take(one.codes, mode="clip"))
    return as_enum(together.column(parts, narrow), pl.Enum(texts))


def _kernel_names(found: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> Named:
    used = different(found["shortName"])
    return Named([UNNAMED, *texts_of(used, tables)], places(found["shortName"], used) + 1)


def _graph_names(found: pl.DataFrame) -> Named:
    if "graphId" not in found.columns:
        return Named(["CUDA graph"], 0)
    used = found["graphId"].unique().drop_nulls().sort()
    return Named(["CUDA graph", *(f"CUDA graph {one}" for one in used)], places(found["graphId"], used) + 1)


def _copy_kinds(found: pl.DataFrame) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
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
    return kinds, memories


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
    ran: Ran

    def rows(self, found: pl.DataFrame, table: str) -> tuple[Part, Part, Part]:
        """Return the process of each row of a table, and the rows of its device and its stream."""
        present = self.ran[table]
        present = present.select(pl.Series("process", processes_of(present["globalPid"].to_numpy())), *RAW_KEY[1:])
        known = self.keys.join(present.unique(), on=RAW_KEY, how="semi")
        if len(known) == 1:
            one = known.row(0, named=True)
            return one["process"], one["device"], one["stream"]
        # Only what differs tells rows apart: most captures are of one process.
        values = {name: of for name in RAW_KEY if len(of := known[name].unique().sort()) > 1}
        raw_key = {name: found[name].fill_null(0) for name in values if name != "process"}
        process: Part = int(known["process"][0])
        if "process" in values:
            process = processes_of(numbers(found["globalPid"]))
            raw_key["process"] = pl.Series(process)
        return process, *_looked_up(pl.DataFrame(raw_key), known, values)


def _looked_up(found: pl.DataFrame, known: pl.DataFrame, values: Mapping[str, pl.Series]) -> tuple[Part, Part]:
    """Find the rows of `known` by one lookup table over all combinations of the key, whose `values` those are."""
    size = math.prod(len(one) for one in values.values())
    if size > WIDEST_LOOKUP:
        joined = found.join(known, on=list(values), how="left", maintain_order="left")
        return joined["device"].to_numpy(), joined["stream"].to_numpy()
    code, of_known = _combined(found, values), _combined(known, values)

    def rows(name: str) -> Part:
        if known[name].n_unique() == 1:
            return int(known[name][0])
        table = np.zeros(size, np.int16)
        table[of_known] = known[name].to_numpy()
        return table[code]

    return rows("device"), rows("stream")


def _combined(frame: pl.DataFrame, values: Mapping[str, pl.Series]) -> NDArray[np.int64]:
    code = np.zeros(len(frame), np.int64)
    for name, known in values.items():
        code *= len(known)
        code += places(frame[name], known)
    return code


def _stream_keys(devices: Devices, streams: Streams) -> pl.DataFrame:
    """Return the rows of the device and the stream for each raw key that has one."""
    rows = streams.frame.select(KEY).with_row_index("stream").with_columns(pl.col("stream").cast(pl.Int32))
    pairs = devices.pairs.join(rows, on=["process", "device"])
    return pairs.rename({"context": "contextId", "stream_id": "streamId"}).select(*RAW_KEY, "device", "stream")
