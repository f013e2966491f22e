"""What a capture contains and what it lacks, read from its tables without measuring anything."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceview.model.profilers import capture_advice
from traceview.read import raw
from traceview.read.formats import with_tables
from traceview.read.source import display_name
from traceview.read.sqlite.database import (
    EXPORT_AGAIN,
    columns_of,
    count_rows,
    not_an_export_error,
    open_read_only,
    real_tables,
    versions,
)
from traceview.report.format import milliseconds, plain
from traceview.report.layout import cut, left, wrap

MAX_LISTED_STREAMS = 16
MAX_LISTED_RANGES = 10
GPU_TABLES = (raw.KERNEL, raw.GRAPH, raw.MEMCPY, raw.MEMSET)
# The process id inside a globalPid (docs/definitions.md "Identity").
PROCESS = '(("globalPid" >> 24) & 16777215)'
NVTX_DOMAIN_TYPE = 75
INTERNAL_TABLES = ("ENUM_", "META_DATA", "EXPORT_META", "sqlite_")


@dataclass(frozen=True, slots=True)
class UsedStream:
    """A stream with GPU work, identified by its CUDA ids."""

    process: int
    device: int
    context: int
    stream: int


@dataclass(frozen=True, slots=True)
class CaptureContents:
    """The contents of a capture.

    `tables` has the row count of each table that the analysis reads. `others` names the non-empty tables that it does
    not read. `gpus` are the listed GPUs, used or not. `ranges` has each range name with its count, the most frequent
    first. `missing` has one line per missing kind of data, with the way to capture it.
    """

    file: str
    nsys_version: str | None
    schema_version: str | None
    span_ns: tuple[int, int] | None
    gpus: tuple[str, ...]
    streams: tuple[UsedStream, ...]
    tables: Mapping[str, int]
    others: tuple[str, ...]
    ranges: tuple[tuple[str, int], ...]
    missing: tuple[str, ...]
    profiler: str = "nsys"


def describe(report: str | Path) -> CaptureContents:
    """Describe a capture without reading its events into memory. Raises ReportError like `open_trace`."""
    path = Path(report)
    with with_tables(path) as (export, capture), open_read_only(export) as connection:
        present = real_tables(connection, display_name(path))
        if raw.STRINGS not in present:
            raise not_an_export_error(display_name(path), present)
        strings = columns_of(connection, raw.STRINGS)
        raw.wanted_columns(strings, raw.STRINGS, [], file=display_name(path), remedy=EXPORT_AGAIN)
        version, schema = versions(connection, present)
        tables = {name: count_rows(connection, name) for name in raw.TABLES if name in present}
        ranges = _ranges(connection, tables)
        profiler = capture.profiler if capture else "nsys"
        return CaptureContents(
            file=path.name,
            nsys_version=version,
            schema_version=schema,
            span_ns=_span(connection, tables),
            gpus=_gpus(connection, tables),
            streams=_streams(connection, tables),
            tables=tables,
            others=tuple(sorted(name for name in present if _is_unread(connection, name, tables))),
            ranges=ranges,
            missing=(*_missing(connection, tables, bool(ranges), profiler), *(capture.problems if capture else ())),
            profiler=profiler,
        )


def _is_unread(connection: sqlite3.Connection, table: str, tables: Mapping[str, int]) -> bool:
    """Return whether a table holds rows that the analysis does not read."""
    if table in tables or table.startswith(INTERNAL_TABLES):
        return False
    quoted = table.replace('"', '""')
    return connection.execute(f'SELECT 1 FROM "{quoted}" LIMIT 1').fetchone() is not None


def _has_columns(connection: sqlite3.Connection, table: str, tables: Mapping[str, int], *columns: str) -> bool:
    """Return whether a table has rows and all these columns."""
    return bool(tables.get(table)) and set(columns) <= set(columns_of(connection, table))


def _streams(connection: sqlite3.Connection, tables: Mapping[str, int]) -> tuple[UsedStream, ...]:
    streams: set[UsedStream] = set()
    for table in GPU_TABLES:
        if _has_columns(connection, table, tables, "globalPid", "deviceId", "contextId", "streamId"):
            query = f'SELECT DISTINCT {PROCESS}, "deviceId", "contextId", "streamId" FROM "{table}"'
            valid = (row for row in connection.execute(query) if all(isinstance(value, int) for value in row))
            streams.update(UsedStream(*row) for row in valid)
    return tuple(sorted(streams, key=lambda used: (used.process, used.device, used.context, used.stream)))


def _span(connection: sqlite3.Connection, tables: Mapping[str, int]) -> tuple[int, int] | None:
    spans = [
        connection.execute(f'SELECT min("start"), max("end") FROM "{table}"').fetchone()
        for table in GPU_TABLES
        if _has_columns(connection, table, tables, "start", "end")
    ]
    valid = [(start, end) for start, end in spans if isinstance(start, int) and isinstance(end, int)]
    return (min(start for start, _ in valid), max(end for _, end in valid)) if valid else None


def _gpus(connection: sqlite3.Connection, tables: Mapping[str, int]) -> tuple[str, ...]:
    if not _has_columns(connection, "TARGET_INFO_GPU", tables, "name"):
        return ()
    return tuple(str(name) for (name,) in connection.execute('SELECT "name" FROM TARGET_INFO_GPU'))


def _ranges(connection: sqlite3.Connection, tables: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    counts: Counter[str] = Counter()
    queries = (_nvtx_query(connection, tables), _mpi_query(connection, tables), _openacc_query(connection, tables))
    for grouped in queries:
        # Count by id first, then look up each name once.
        named = f"SELECT coalesce(t, (SELECT value FROM StringIds WHERE id = k), '(unnamed)'), n FROM ({grouped})"
        for name, times in connection.execute(named) if grouped else ():
            counts[str(name)] += int(times)
    return tuple(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _nvtx_query(connection: sqlite3.Connection, tables: Mapping[str, int]) -> str:
    if not _has_columns(connection, raw.NVTX, tables, "eventType"):
        return ""
    columns = columns_of(connection, raw.NVTX)
    text, key = (f'"{name}"' if name in columns else "NULL" for name in ("text", "textId"))
    return (
        f"SELECT {text} AS t, {key} AS k, count(*) AS n FROM NVTX_EVENTS "
        f"WHERE eventType IN {raw.RANGE_TYPES} GROUP BY 1, 2"
    )


def _mpi_query(connection: sqlite3.Connection, tables: Mapping[str, int]) -> str:
    # A call with several messages has one row per message.
    return _library_query(connection, tables, raw.MPI, "textId", "1")


def _openacc_query(connection: sqlite3.Connection, tables: Mapping[str, int]) -> str:
    return _library_query(connection, tables, raw.OPENACC, "nameId", '"end" IS NOT "start"')


def _library_query(
    connection: sqlite3.Connection, tables: Mapping[str, int], names: Sequence[str], name: str, condition: str
) -> str:
    """Return SQL that counts the calls in a library's tables by the id of their name."""
    needed = raw.TABLES[names[0]].needed
    columns = ", ".join(f'"{column}"' for column in needed)
    present = [table for table in names if _has_columns(connection, table, tables, *needed)]
    rows = " UNION ALL ".join(f'SELECT {columns} FROM "{table}" WHERE {condition}' for table in present)
    calls = f"SELECT DISTINCT {columns} FROM ({rows})"
    return f'SELECT NULL AS t, "{name}" AS k, count(*) AS n FROM ({calls}) GROUP BY 2' if rows else ""


def _missing(connection: sqlite3.Connection, tables: Mapping[str, int], ranges: bool, profiler: str) -> Iterator[str]:
    remedy = capture_advice(profiler)
    if not any(tables.get(name) for name in GPU_TABLES):
        yield f"GPU work: capture it with {remedy.gpu}"
    elif not tables.get(raw.KERNEL) and tables.get(raw.GRAPH):
        yield "single kernels: CUDA graphs were traced as a whole; capture with --cuda-graph-trace=node"
    elif not tables.get(raw.KERNEL):
        yield "kernels: the GPU only copied during the capture"
    if not tables.get(raw.RUNTIME):
        yield f"CUDA API calls: without them idle time has no cause. {remedy.calls}"
    if not ranges:
        other = f"ranges: they mark iterations. {remedy.ranges}"
        yield _missing_ranges(connection, tables) if profiler == "nsys" else other


def _missing_ranges(connection: sqlite3.Connection, tables: Mapping[str, int]) -> str:
    query = f"SELECT 1 FROM NVTX_EVENTS WHERE eventType = {NVTX_DOMAIN_TYPE} LIMIT 1"
    if _has_columns(connection, raw.NVTX, tables, "eventType") and connection.execute(query).fetchone():
        return (
            "NVTX ranges: there are NVTX domains only; nsys 2022.4 to 2024.2 does not record the nvtx package "
            "from 0.2.12 on; use nvtx 0.2.11 or torch.cuda.nvtx"
        )
    return "NVTX ranges: they mark phases and iterations; annotate each step and capture with -t cuda,nvtx"


def lines(contents: CaptureContents) -> Iterator[str]:
    """Yield the lines that `traceview info` prints, 80 columns wide, with names shortened and control codes removed."""
    yield cut(plain(contents.file, 200), 76)
    version = f"nsys {contents.nsys_version or 'unknown'}, export schema {contents.schema_version or 'unknown'}"
    yield _labelled_line("version", version if contents.profiler == "nsys" else contents.profiler)
    yield from _labelled_lines("GPUs seen", _gpu_names(contents))
    processes = sorted({used.process for used in contents.streams})
    yield from _labelled_lines("processes", ", ".join(map(str, processes)) or "none with GPU work")
    if contents.span_ns:
        start, end = contents.span_ns
        yield _labelled_line("GPU work", f"{milliseconds(end - start)}, from {start} to {end} ns")
    yield from _stream_lines(contents)
    yield from _table_lines(contents)
    yield from _range_lines(contents)
    for line in contents.missing:
        yield from wrap(plain(line, 1000), "  MISSING    ", " " * 13)


def _labelled_line(label: str, text: str) -> str:
    return cut(f"  {label:<11}{plain(text, 500)}", 80)


def _labelled_lines(label: str, text: str) -> list[str]:
    return wrap(plain(text, 2000), f"  {label:<11}", " " * 13)


def _gpu_names(contents: CaptureContents) -> str:
    counts = Counter(contents.gpus).items()
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts) or "not named"


def _stream_lines(contents: CaptureContents) -> Iterator[str]:
    yield _labelled_line("streams", f"{len(contents.streams)} with GPU work")
    for used in contents.streams[:MAX_LISTED_STREAMS]:
        yield f"    stream {used.stream} of process {used.process} on device {used.device}, context {used.context}"
    if len(contents.streams) > MAX_LISTED_STREAMS:
        yield f"    and {len(contents.streams) - MAX_LISTED_STREAMS} more"


def _table_lines(contents: CaptureContents) -> Iterator[str]:
    yield _labelled_line("tables", f"{len(contents.tables)} read by the analysis, with row counts")
    for name, rows in sorted(contents.tables.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"    {rows:>12,}  {name}"
    if contents.others:
        yield from wrap(plain("not read: " + ", ".join(contents.others), 4000), "    ", "      ")


def _range_lines(contents: CaptureContents) -> Iterator[str]:
    total = sum(times for _, times in contents.ranges)
    yield _labelled_line("NVTX", f"{total:,} ranges with {len(contents.ranges):,} names")
    for name, times in contents.ranges[:MAX_LISTED_RANGES]:
        yield f"    {times:>12,}  {left(plain(name, 200), 60).rstrip()}"
    if len(contents.ranges) > MAX_LISTED_RANGES:
        yield f"    and {len(contents.ranges) - MAX_LISTED_RANGES} more names"
