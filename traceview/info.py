"""What a capture holds and what it lacks, from its tables alone: answers before anything is measured."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from traceview.read import raw
from traceview.read.sqlite import check_file, columns_of, not_an_export, open_read_only, real_tables, versions
from traceview.report.words import plain

GPU_TABLES = (raw.KERNEL, raw.GRAPH, raw.MEMCPY, raw.MEMSET)
PROCESS = '(("globalPid" >> 24) & 16777215)'
RANGE_TYPES = "(59, 60)"


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found; `tables` are rows by table, `missing` one line for each thing that is not there."""

    file: str
    nsys_version: str | None
    schema_version: str | None
    span_ns: tuple[int, int] | None
    gpus: tuple[str, ...]
    processes: tuple[int, ...]
    streams: int
    tables: Mapping[str, int]
    ranges: tuple[tuple[str, int], ...]
    range_count: int
    missing: tuple[str, ...]


def describe(report: str | Path) -> Contents:
    """Look at a capture without reading its events one by one.

    Raises ReportError as open_trace does.
    """
    path = Path(report)
    check_file(path)
    with open_read_only(path) as connection:
        present = real_tables(connection, path.name)
        if raw.STRINGS not in present:
            raise not_an_export(path.name, present)
        version, schema = versions(connection, present)
        tables = {name: _rows(connection, name) for name in raw.TABLES if name in present}
        streams = _streams(connection, tables)
        names, count = _ranges(connection, tables)
        return Contents(
            file=path.name,
            nsys_version=version,
            schema_version=schema,
            span_ns=_span(connection, tables),
            gpus=_gpus(connection, tables),
            processes=tuple(sorted({process for process, *_ in streams})),
            streams=len(streams),
            tables=tables,
            ranges=names,
            range_count=count,
            missing=tuple(_missing(connection, tables, count)),
        )


def _rows(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0])


def _has(connection: sqlite3.Connection, table: str, tables: Mapping[str, int], *columns: str) -> bool:
    return bool(tables.get(table)) and set(columns) <= set(columns_of(connection, table))


def _streams(connection: sqlite3.Connection, tables: Mapping[str, int]) -> set[tuple[int, int, int]]:
    found: set[tuple[int, int, int]] = set()
    for table in GPU_TABLES:
        if _has(connection, table, tables, "globalPid", "contextId", "streamId"):
            query = f'SELECT DISTINCT {PROCESS}, contextId, streamId FROM "{table}"'
            found.update((int(process), int(context), int(stream)) for process, context, stream in connection.execute(query))
    return found


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
    return tuple(plain(str(name)) for (name,) in connection.execute("SELECT name FROM TARGET_INFO_GPU ORDER BY id"))


def _ranges(connection: sqlite3.Connection, tables: Mapping[str, int]) -> tuple[tuple[tuple[str, int], ...], int]:
    if not _has(connection, raw.NVTX, tables, "eventType", "textId"):
        return (), 0
    text = "n.text" if "text" in columns_of(connection, raw.NVTX) else "NULL"
    count = connection.execute(f"SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN {RANGE_TYPES}").fetchone()[0]
    names = connection.execute(
        f"SELECT coalesce({text}, s.value, '(unnamed)') AS name, count(*) AS times FROM NVTX_EVENTS n "
        f"LEFT JOIN StringIds s ON s.id = n.textId WHERE eventType IN {RANGE_TYPES} "
        "GROUP BY name ORDER BY times DESC, name LIMIT 8"
    )
    return tuple((plain(str(name), 40), int(times)) for name, times in names), int(count)


def _missing(connection: sqlite3.Connection, tables: Mapping[str, int], ranges: int) -> Iterator[str]:
    if not any(tables.get(name) for name in GPU_TABLES):
        yield "no GPU work: capture with nsys profile -t cuda,nvtx COMMAND"
    elif not tables.get(raw.KERNEL):
        yield "no kernels; whole CUDA graphs only: capture with --cuda-graph-trace=node to see inside them" if tables.get(
            raw.GRAPH
        ) else "no kernels: nothing computed while the capture ran"
    if not tables.get(raw.RUNTIME):
        yield "no CUDA API calls: idle time cannot be explained; capture with -t cuda"
    if not ranges:
        lost = tables.get(raw.NVTX) and connection.execute("SELECT 1 FROM NVTX_EVENTS WHERE eventType = 75").fetchone()
        yield (
            "NVTX domains but not one range: the nvtx package from 0.2.12 on is not recorded by this nsys; use nvtx==0.2.11"
            if lost
            else "no NVTX ranges: no phases, no iterations; annotate the steps and capture with -t cuda,nvtx"
        )


def lines(of: Contents) -> Iterator[str]:
    """Yield what `traceview info` prints."""
    yield f"{plain(of.file, 60)}"
    yield f"  nsys {of.nsys_version or 'of unknown version'}, export schema {of.schema_version or 'unknown'}"
    yield f"  GPUs listed: {', '.join(of.gpus) or 'not said'}"
    yield f"  processes on a GPU: {', '.join(map(str, of.processes)) or 'none'}; streams that worked: {of.streams}"
    if of.span_ns:
        start, end = of.span_ns
        yield f"  GPU work from {start} to {end} ns ({(end - start) / 1e6:.3f} ms)"
    yield "  rows by table:"
    for name, rows in sorted(of.tables.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"    {rows:>10}  {name}"
    yield f"  NVTX ranges: {of.range_count}"
    for name, times in of.ranges:
        yield f"    {times:>10}  {name}"
    for line in of.missing:
        yield f"  lacks: {line}"
