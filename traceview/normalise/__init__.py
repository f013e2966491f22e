"""Converts a RawCapture to a Trace. Differences between export versions and invalid rows end here."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.model.sizes import empty_frame
from traceview.model.trace import FAILED, OVERHEAD, Note, ReportInfo, Trace, Trust, Window
from traceview.normalise.api import Links, api_frame, with_pageable_copies, without_traced_graphs
from traceview.normalise.codes import categories
from traceview.normalise.devices import (
    Devices,
    RawStreamIds,
    clock_tables,
    devices_of,
    measure_clocks,
    raw_stream_ids,
    stream_events,
    stream_frame,
    with_clocks,
    with_corrected_times,
    with_mended_clocks,
)
from traceview.normalise.health import (
    Check,
    Evidence,
    check_health,
    clock_notes,
    clock_verdict,
    collect_evidence,
    count_left_out,
    failed_launches,
    missing_name_notes,
    note_of_problem,
    unsupported_driver,
    with_profiler_overhead,
)
from traceview.normalise.host_events import host_evidence
from traceview.normalise.lost_events import (
    LaunchCounts,
    Mended,
    check_events,
    check_mended,
    count_launches,
    mended_work,
    unrecorded_calls,
)
from traceview.normalise.operations import (
    kernel_captures,
    operations_frame,
    take_graph_nodes,
    with_collective_copies,
    with_launches,
)
from traceview.normalise.program import ProgramNames, find_program, stated_program
from traceview.normalise.ranges import ranges_frame, trace_scopes, with_library_calls
from traceview.normalise.sizes import gpu_metric_frame, memory_frame, unknown_messages, work_sizes
from traceview.normalise.stacks import take_stacked_calls
from traceview.normalise.threads import Threads, process_ids
from traceview.normalise.valid_rows import MAX_TIME, Problems, refuse_invalid_work, refuse_too_many, valid_tables
from traceview.read import raw
from traceview.read.raw import TIMES, RawCapture


class Located(NamedTuple):
    """Where GPU work runs: the raw ids of each table, devices, and model.STREAMS; `clock_rows` show the clocks."""

    stream_ids: RawStreamIds
    devices: Devices
    streams: pl.DataFrame
    clock_rows: dict[str, pl.DataFrame]


def normalise(capture: RawCapture) -> Trace:
    """Resolve names, link launches, name devices and streams, and sort; invalid rows are left out and counted."""
    problems = Problems(list(capture.problems))
    tables = valid_tables(with_profiler_overhead(with_library_calls(capture.tables)), problems)
    refuse_invalid_work(capture.file, capture.tables, tables, problems)
    if raw.GRAPH in tables and raw.KERNEL in tables:
        tables[raw.GRAPH] = without_traced_graphs(tables[raw.GRAPH], tables[raw.KERNEL])
    evidence, info = collect_evidence(tables), _info(capture, problems)
    # Memory use peaks here: free each raw table once its frame is built.
    shapes_apart, stretch = capture.shapes, capture.stretch
    del capture
    threads = Threads.from_tables(tables)
    processes = len(np.unique(process_ids(threads.global_tid.to_numpy())))
    refuse_too_many(info.file, {"threads": len(threads.global_tid), "processes": processes})
    located = _located(info.file, tables, evidence.failed)
    tables = with_corrected_times(tables, located.devices)
    host_end = _host_end(tables)
    nodes, stacked = take_graph_nodes(tables), take_stacked_calls(tables)
    api, links, unlinked, shapes, mended = _calls_and_operations(tables, shapes_apart, threads, located)
    unlinked, devices = with_mended_clocks(
        *(unlinked, mended.cut, located.devices, located.clock_rows, tables, evidence.failed)
    )
    operations, failed, work = with_launches(unlinked, links), _failed(evidence.failed), _time_of_work(unlinked)
    ranges, scopes = ranges_frame(tables, threads, host_end if work is None else max(host_end, work.end))
    operations = with_collective_copies(operations, api, ranges)
    scopes, names = trace_scopes(tables, threads) if raw.SCOPES in tables else scopes, threads.frame(tables)
    sizes = work_sizes(tables, threads, operations, api)
    launches = count_launches(api, operations, failed, links)
    events = len(operations) + len(api) + len(ranges)
    return Trace(
        info=_with_checks(
            replace(info, trust=_trust(info, evidence, devices.frame, launches, mended, events, api)),
            (
                *check_health(evidence, categories(api["name"]), len(operations)),
                *clock_notes(devices.frame),
                *missing_name_notes(operations, api, tables),
                *check_events(launches, api, operations, ranges),
                *check_mended(mended),
                *unknown_messages(sizes, operations, info.profiler),
            ),
        ),
        operations=operations,
        api=with_pageable_copies(api, operations),
        ranges=ranges,
        overhead=_overhead(tables),
        stream_events=stream_events(tables, links),
        devices=devices.frame,
        streams=located.streams,
        threads=names,
        shapes=shapes,
        program=stated_program(tables.get(raw.PROGRAM))
        or find_program(
            ProgramNames.from_tables(tables, names, operations, ranges),
            operations,
            info.profiler == raw.TORCH_PROFILER,
            devices.frame["name"].to_list(),
            categories(api["name"]),
        ),
        evidence=host_evidence(
            *(tables, threads, ranges, scopes, stacked),
            work=work,
            callers=np.flatnonzero(np.bincount(api["thread"].to_numpy())).tolist(),
            names=names["name"].to_list(),
        ),
        scopes=scopes,
        captures=kernel_captures(nodes, operations, threads),
        sizes=sizes,
        gpu_metrics=gpu_metric_frame(tables, devices),
        memory=memory_frame(tables, devices, links, threads, api),
        failed=failed,
        lost=launches.rows,
        window=None if stretch is None else stretch.window,
    )


def _failed(calls: pl.DataFrame | None) -> pl.DataFrame:
    """Return Trace.failed from health.Evidence.failed."""
    if calls is None:
        return empty_frame(FAILED)
    return calls.select(pl.col(name).cast(kind, strict=False) for name, kind in FAILED.items())


def _time_of_work(operations: pl.DataFrame) -> Window | None:
    return (
        None if operations.is_empty() else Window(int(operations["start"][0]), int(operations["end"].to_numpy().max()))
    )


def _trust(
    info: ReportInfo,
    evidence: Evidence,
    devices: pl.DataFrame,
    launches: LaunchCounts,
    mended: Mended,
    events: int,
    api: pl.DataFrame,
) -> Trust:
    unread = [note.text.split()[0] for note in info.left_out if note.id == "unread_table"]
    return Trust(
        events=events,
        left_out=count_left_out(info.problems),
        cut=len(mended.cut),
        doubled=mended.doubled,
        launches=launches.total - launches.queued,
        lost=sum(row.lost for row in launches.lost),
        unrecorded=0 if info.profiler == raw.TORCH_PROFILER else unrecorded_calls(api),
        clock=clock_verdict(devices),
        driver=unsupported_driver(evidence.diagnostics),
        failed=failed_launches(evidence.failed),
        unread_tables=tuple(unread),
    )


def _info(capture: RawCapture, problems: Problems) -> ReportInfo:
    return ReportInfo(
        file=capture.file,
        nsys_version=capture.nsys_version,
        schema_version=capture.schema_version,
        tables={name: len(frame) for name, frame in capture.tables.items()},
        left_out=(*((capture.stretch.note,) if capture.stretch else ()), *map(note_of_problem, problems.lines)),
        profiler=capture.profiler,
        stretch=capture.stretch.words if capture.stretch else "",
    )


def _with_checks(info: ReportInfo, checks: Sequence[Check]) -> ReportInfo:
    """Return the info with checks, each once: notes on defects, and lines on what is in order."""
    once = dict.fromkeys(checks)
    return replace(
        info,
        health=tuple(check for check in once if isinstance(check, Note)),
        passed=tuple(check for check in once if isinstance(check, str)),
    )


def _located(file: str, tables: dict[str, pl.DataFrame], failed: pl.DataFrame | None) -> Located:
    """Return where GPU work runs; `failed` is that of collect_evidence."""
    stream_ids = raw_stream_ids(tables)
    devices = devices_of(tables, stream_ids)
    clock_rows = clock_tables(tables)
    devices = with_clocks(devices, measure_clocks(clock_rows, devices.pairs, tables, failed))
    streams = stream_frame(tables, stream_ids, devices)
    refuse_too_many(file, {"GPUs": len(devices.pairs), "streams": len(streams)})
    return Located(stream_ids, devices, streams, clock_rows)


def _calls_and_operations(
    tables: dict[str, pl.DataFrame], shapes_apart: pl.DataFrame | None, threads: Threads, located: Located
) -> tuple[pl.DataFrame, Links, pl.DataFrame, pl.DataFrame, Mended]:
    """Build API calls in a thread, and mended operations here. Removes their tables from `tables`."""

    def build_calls() -> tuple[pl.DataFrame, Links]:
        api = api_frame(tables, threads)
        return api, Links.from_api(api)

    with ThreadPoolExecutor(1) as executor:
        calls = executor.submit(build_calls)
        unlinked, shapes = operations_frame(
            *(tables, shapes_apart, located.stream_ids, located.devices, located.streams)
        )
        unlinked, mended = mended_work(unlinked)
        api, links = calls.result()
    return api, links, unlinked, shapes, mended


def _overhead(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    overhead = tables.get(raw.OVERHEAD)
    if overhead is None:
        return empty_frame(OVERHEAD)
    return overhead.select("start", "end").sort("start", "end")


def _host_end(tables: dict[str, pl.DataFrame]) -> int:
    """Return the latest end of all events of the host."""
    ends = [
        value
        for name in raw.ESSENTIAL
        if name in tables and name not in raw.GPU_WORK
        for column in (TIMES if name == raw.NVTX else ("end",))  # an NVTX range may have no end
        if isinstance(value := _latest(tables[name][column]), int)
    ]
    return max(ends, default=0)


def _latest(times: pl.Series) -> object:
    latest = times.max()
    # Only NVTX events that are not ranges may still have impossible times.
    return times.filter(times <= MAX_TIME).max() if isinstance(latest, int) and latest > MAX_TIME else latest
