"""What a capture contains, what it lacks and whether it can be trusted, without measuring anything."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from traceview.errors import DamagedExportError
from traceview.frozen import frozen
from traceview.measure.devices import count_unmatched
from traceview.model.profilers import capture_advice
from traceview.model.trace import Note, Trace
from traceview.normalise import normalise
from traceview.read import raw
from traceview.read.formats import with_tables
from traceview.read.raw import RawCapture
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
from traceview.read.sqlite.reader import SqliteReader

GPU_TABLES = (raw.KERNEL, raw.GRAPH, raw.MEMCPY, raw.MEMSET)
# The process id inside a globalPid (docs/definitions.md "Identity").
PROCESS = '(("globalPid" >> 24) & 16777215)'
INTERNAL_TABLES = ("ENUM_", "META_DATA", "EXPORT_META", "sqlite_")


@frozen
class UsedStream:
    """A stream with GPU work, identified by its CUDA ids; None for an id that the export does not hold."""

    process: int | None
    device: int | None
    context: int | None
    stream: int | None


@frozen
class CaptureContents:
    """The contents of a capture.

    `tables` has the row count of each table that the analysis reads. `others` names the non-empty tables that it does
    not read. `gpus` are the listed GPUs, used or not. `ranges` has each range name with its count, the most frequent
    first. `missing` has one line per missing kind of data, with the way to capture it. `health` names what the profiler
    lost, and `passed` the checks that found nothing.
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
    health: tuple[Note, ...] = ()
    passed: tuple[str, ...] = ()


def describe(report: str | Path) -> CaptureContents:
    """Describe a capture. Raises ReportError like `open_trace`."""
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
        health, passed = _health(export, capture)
        lost_ranges = next((note.text for note in health if note.id == "lost_ranges"), None)
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
            missing=(*_missing(tables, bool(ranges), lost_ranges, profiler), *(capture.problems if capture else ())),
            profiler=profiler,
            health=tuple(note for note in health if note.id != "lost_ranges"),
            passed=passed,
        )


def _health(export: Path, capture: RawCapture | None) -> tuple[tuple[Note, ...], tuple[str, ...]]:
    """Return the defects of a capture, and the checks that it passed."""
    try:
        trace = normalise(capture or SqliteReader().read(export))
    except DamagedExportError as error:
        reason = str(error).partition(": ")[2]
        return (Note("unreadable", f"no command can analyze this capture: {reason}", ("every figure",)),), ()
    unlaunched = _unlaunched_note(trace)
    problems = tuple(Note("left_out", problem) for problem in (trace.info.problems if capture is None else ()))
    passed = ("all GPU work has its launch in the capture",) if unlaunched is None and len(trace.operations) else ()
    return (*trace.info.health, *([unlaunched] if unlaunched else []), *problems), (*passed, *trace.info.passed)


def _unlaunched_note(trace: Trace) -> Note | None:
    without, total = count_unmatched(trace), len(trace.operations)
    count = without.kernels + without.copies + without.memsets + without.graphs
    text = f"{count:,} of {total:,} operations have no launch in the capture: idle time before them has no known cause"
    return Note("unmatched", text, ("idle", "nvtx")) if count else None


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
        if not tables.get(table):
            continue
        ids = {"globalPid": PROCESS} | {name: f'"{name}"' for name in ("deviceId", "contextId", "streamId")}
        columns = columns_of(connection, table)
        wanted = ", ".join(expression if name in columns else "NULL" for name, expression in ids.items())
        for row in connection.execute(f'SELECT DISTINCT {wanted} FROM "{table}"'):
            streams.add(UsedStream(*(value if isinstance(value, int) else None for value in row)))
    return tuple(sorted(streams, key=_stream_order))


def _stream_order(used: UsedStream) -> tuple[int, ...]:
    return tuple(-1 if value is None else value for value in astuple(used))


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


def _missing(tables: Mapping[str, int], ranges: bool, lost_ranges: str | None, profiler: str) -> Iterator[str]:
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
        nsys = "they mark phases and iterations; annotate each step and capture with -t cuda,nvtx"
        other = f"they mark iterations. {remedy.ranges}"
        yield f"NVTX ranges: {lost_ranges or nsys}" if profiler == "nsys" else f"ranges: {other}"
