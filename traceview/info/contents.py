"""What a capture holds and what it lacks, from its tables alone: answers before anything is measured."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceview.model.profilers import capturing
from traceview.read import raw
from traceview.read.formats import with_tables
from traceview.read.sqlite.database import (
    EXPORT_AGAIN,
    columns_of,
    not_an_export,
    open_read_only,
    real_tables,
    rows_of,
    shown,
    versions,
)

GPU_TABLES = (raw.KERNEL, raw.GRAPH, raw.MEMCPY, raw.MEMSET)
# METRICS.md "Identity"; a row that does not say so belongs to none.
PROCESS = '(("globalPid" >> 24) & 16777215)'
DOMAIN_TYPE = 75
BEHIND_THE_SCENES = ("ENUM_", "META_DATA", "EXPORT_META", "sqlite_")


@dataclass(frozen=True, slots=True)
class StreamFound:
    """A stream that did work, by the ids that CUDA gave it."""

    process: int
    device: int
    context: int
    stream: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found.

    `tables` are the rows of each table that the analysis reads, `others` the names of those it
    does not, where they hold any;
    `gpus` the names that the capture lists, used or not; `ranges` all range names with how often they
    occur, the most frequent first; `missing` one line for each thing that is not there and how to get it.
    """

    file: str
    nsys_version: str | None
    schema_version: str | None
    span_ns: tuple[int, int] | None
    gpus: tuple[str, ...]
    streams: tuple[StreamFound, ...]
    tables: Mapping[str, int]
    others: tuple[str, ...]
    ranges: tuple[tuple[str, int], ...]
    missing: tuple[str, ...]
    profiler: str = "nsys"


def describe(report: str | Path) -> Contents:
    """Look at a capture without reading its events into memory.

    Raises ReportError as open_trace does.
    """
    path = Path(report)
    with with_tables(path) as (export, capture), open_read_only(export) as connection:
        present = real_tables(connection, shown(path))
        if raw.STRINGS not in present:
            raise not_an_export(shown(path), present)
        strings = columns_of(connection, raw.STRINGS)
        raw.wanted_columns(strings, raw.STRINGS, [], file=shown(path), remedy=EXPORT_AGAIN)
        version, schema = versions(connection, present)
        tables = {name: rows_of(connection, name) for name in raw.TABLES if name in present}
        ranges = _ranges(connection, tables)
        profiler = capture.profiler if capture else "nsys"
        return Contents(
            file=path.name,
            nsys_version=version,
            schema_version=schema,
            span_ns=_span(connection, tables),
            gpus=_gpus(connection, tables),
            streams=_streams(connection, tables),
            tables=tables,
            others=tuple(sorted(name for name in present if _tells(connection, name, tables))),
            ranges=ranges,
            missing=(*_missing(connection, tables, bool(ranges), profiler), *(capture.problems if capture else ())),
            profiler=profiler,
        )


def _tells(connection: sqlite3.Connection, table: str, tables: Mapping[str, int]) -> bool:
    if table in tables or table.startswith(BEHIND_THE_SCENES):
        return False
    quoted = table.replace('"', '""')
    return connection.execute(f'SELECT 1 FROM "{quoted}" LIMIT 1').fetchone() is not None


def _has(connection: sqlite3.Connection, table: str, tables: Mapping[str, int], *columns: str) -> bool:
    return bool(tables.get(table)) and set(columns) <= set(columns_of(connection, table))


def _streams(connection: sqlite3.Connection, tables: Mapping[str, int]) -> tuple[StreamFound, ...]:
    found: set[StreamFound] = set()
    for table in GPU_TABLES:
        if _has(connection, table, tables, "globalPid", "deviceId", "contextId", "streamId"):
            query = f'SELECT DISTINCT {PROCESS}, "deviceId", "contextId", "streamId" FROM "{table}"'
            whole = (row for row in connection.execute(query) if all(isinstance(value, int) for value in row))
            found.update(StreamFound(*row) for row in whole)
    return tuple(sorted(found, key=lambda one: (one.process, one.device, one.context, one.stream)))


def _span(connection: sqlite3.Connection, tables: Mapping[str, int]) -> tuple[int, int] | None:
    spans = [
        connection.execute(f'SELECT min("start"), max("end") FROM "{table}"').fetchone()
        for table in GPU_TABLES
        if _has(connection, table, tables, "start", "end")
    ]
    whole = [(start, end) for start, end in spans if isinstance(start, int) and isinstance(end, int)]
    return (min(start for start, _ in whole), max(end for _, end in whole)) if whole else None


def _gpus(connection: sqlite3.Connection, tables: Mapping[str, int]) -> tuple[str, ...]:
    if not _has(connection, "TARGET_INFO_GPU", tables, "name"):
        return ()
    return tuple(str(name) for (name,) in connection.execute('SELECT "name" FROM TARGET_INFO_GPU'))


def _ranges(connection: sqlite3.Connection, tables: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    counts: Counter[str] = Counter()
    for grouped in (_nvtx(connection, tables), _mpi(connection, tables), _openacc(connection, tables)):
        # Counted by id first, so that few names are looked up, not one for each event.
        named = f"SELECT coalesce(t, (SELECT value FROM StringIds WHERE id = k), '(unnamed)'), n FROM ({grouped})"
        for name, times in connection.execute(named) if grouped else ():
            counts[str(name)] += int(times)
    return tuple(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _nvtx(connection: sqlite3.Connection, tables: Mapping[str, int]) -> str:
    if not _has(connection, raw.NVTX, tables, "eventType"):
        return ""
    columns = columns_of(connection, raw.NVTX)
    text, key = (f'"{name}"' if name in columns else "NULL" for name in ("text", "textId"))
    return (
        f"SELECT {text} AS t, {key} AS k, count(*) AS n FROM NVTX_EVENTS "
        f"WHERE eventType IN {raw.RANGE_TYPES} GROUP BY 1, 2"
    )


def _mpi(connection: sqlite3.Connection, tables: Mapping[str, int]) -> str:
    # A call that concerns several messages has a row for each.
    return _of_library(connection, tables, raw.MPI, "textId", "1")


def _openacc(connection: sqlite3.Connection, tables: Mapping[str, int]) -> str:
    return _of_library(connection, tables, raw.OPENACC, "nameId", '"end" IS NOT "start"')


def _of_library(
    connection: sqlite3.Connection, tables: Mapping[str, int], several: Sequence[str], name: str, which: str
) -> str:
    """Return SQL that counts a library's calls by the id of their name."""
    wanted = raw.TABLES[several[0]].needed
    columns = ", ".join(f'"{column}"' for column in wanted)
    present = [table for table in several if _has(connection, table, tables, *wanted)]
    every = " UNION ALL ".join(f'SELECT {columns} FROM "{table}" WHERE {which}' for table in present)
    one = f"SELECT DISTINCT {columns} FROM ({every})"
    return f'SELECT NULL AS t, "{name}" AS k, count(*) AS n FROM ({one}) GROUP BY 2' if every else ""


def _missing(connection: sqlite3.Connection, tables: Mapping[str, int], ranges: bool, profiler: str) -> Iterator[str]:
    how = capturing(profiler)
    if not any(tables.get(name) for name in GPU_TABLES):
        yield f"GPU work: capture it with {how.gpu}"
    elif not tables.get(raw.KERNEL) and tables.get(raw.GRAPH):
        yield "kernels, for CUDA graphs were traced whole: capture with --cuda-graph-trace=node to see inside"
    elif not tables.get(raw.KERNEL):
        yield "kernels: the GPU only copied while the capture ran"
    if not tables.get(raw.RUNTIME):
        yield f"CUDA API calls: idle time cannot be explained. {how.calls}"
    if not ranges:
        yield _no_ranges(connection, tables) if profiler == "nsys" else f"ranges, hence iterations. {how.ranges}"


def _no_ranges(connection: sqlite3.Connection, tables: Mapping[str, int]) -> str:
    query = f"SELECT 1 FROM NVTX_EVENTS WHERE eventType = {DOMAIN_TYPE} LIMIT 1"
    if _has(connection, raw.NVTX, tables, "eventType") and connection.execute(query).fetchone():
        return (
            "NVTX ranges, though it has NVTX domains: a program that annotates with the nvtx package from "
            "0.2.12 on is not recorded by nsys 2022.4 to 2024.2; use nvtx 0.2.11 or torch.cuda.nvtx"
        )
    return "NVTX ranges, hence phases and iterations: annotate each step and capture with -t cuda,nvtx"
