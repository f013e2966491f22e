"""Converts a RawCapture to a Trace. Differences between export versions and invalid rows end here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.model.sizes import WorkSizes, empty_frame
from traceview.model.trace import FAILED, OPERATIONS, OVERHEAD, STREAM_EVENTS, Note, ReportInfo, Trace, Window
from traceview.normalise.api import Links, api_frame, with_pageable_copies, without_traced_graphs
from traceview.normalise.codes import categories, name_column, texts_of
from traceview.normalise.devices import (
    Devices,
    RawStreamIds,
    clock_notes,
    clock_tables,
    common_offset,
    devices_of,
    measure_clocks,
    raw_stream_ids,
    stream_events,
    stream_frame,
    with_clocks,
    with_corrected_times,
)
from traceview.normalise.health import (
    Check,
    check_health,
    collect_evidence,
    missing_name_notes,
    named_calls,
    named_ids,
    named_kernels,
    named_ranges,
    note_of_problem,
    with_profiler_overhead,
)
from traceview.normalise.host_events import host_evidence
from traceview.normalise.lost_events import CallPart, are_calling, check_events
from traceview.normalise.operations import (
    empty_shapes,
    kernel_captures,
    operations_frame,
    take_graph_nodes,
    with_launches,
)
from traceview.normalise.program import ProgramNames, find_program, stated_program
from traceview.normalise.ranges import ranges_frame, trace_scopes, with_library_calls, without_program_ranges
from traceview.normalise.sizes import (
    count_messages,
    flops_marks,
    gpu_metric_frame,
    memory_frame,
    unknown_messages,
    work_sizes,
)
from traceview.normalise.stacks import StackedCalls, take_stacked_calls
from traceview.normalise.threads import Threads, process_ids
from traceview.normalise.valid_rows import MAX_TIME, Problems, refuse_invalid_work, refuse_too_many, valid_tables
from traceview.read import raw
from traceview.read.raw import TIMES, RawCapture


class Located(NamedTuple):
    """Where GPU work runs: the raw ids of each table, devices, and model.STREAMS."""

    stream_ids: RawStreamIds
    devices: Devices
    streams: pl.DataFrame


class SeveralClocksError(Exception):
    """The times of GPUs are corrected by different offsets, so that parts of a capture must be read together."""


class EventSummary(NamedTuple):
    """What the GPU work and the calls of a capture refer to.

    `stream_ids` and `global_tids` are distinct ids, `kernels` short names with their summed time (name, an id of a
    string; ns), and `calls` the ids of the names of calls. `failed` has the calls that failed, and `stacked`
    those with a stack, with raw columns; None if the export does not record results or stacks. `operations` is the
    number of operations, `work` the time from the first start to the last end of GPU work on the GPU's clock,
    `calls_end` the last end of calls, and `clock` the result of clock_tables.
    """

    stream_ids: RawStreamIds
    global_tids: pl.Series
    kernels: pl.DataFrame
    calls: pl.DataFrame
    failed: pl.DataFrame | None
    stacked: pl.DataFrame | None
    clock: dict[str, pl.DataFrame]
    operations: int
    work: Window
    calls_end: int | None


class WholeCapture(NamedTuple):
    """What a part of a capture takes from the whole: a Trace without operations and calls, and ids of its rows.

    The rows of threads, devices, streams and ranges mean the same in each part. `work` is the time of GPU work.
    """

    trace: Trace
    located: Located
    threads: Threads
    work: Window

    @classmethod
    def build(cls, capture: RawCapture, events: EventSummary) -> tuple[WholeCapture, RawCapture]:
        """Return what parts of a capture share, and the valid tables that each part reads again.

        `capture` has no GPU work and no calls; `events` summarizes them. Raises SeveralClocksError.
        """
        problems = Problems(list(capture.problems))
        tables = valid_tables(with_profiler_overhead(with_library_calls(capture.tables)), problems)
        evidence = collect_evidence(tables if events.failed is None else tables | {raw.RUNTIME: events.failed})
        located = _located(capture.file, tables, events.stream_ids, events.clock, evidence.failed)
        offset = common_offset(located.devices.frame)
        if offset is None:
            raise SeveralClocksError("its GPUs have different clocks")
        work = Window(events.work.start - offset, events.work.end - offset)
        threads = Threads.from_tables(tables, events.global_tids)
        end = max(work.end, events.calls_end or work.end, _capture_end(tables))
        named = events.kernels.select(
            name_column(events.kernels["name"], tables).alias("name"), start=pl.lit(0), end="ns"
        )
        checks = check_health(evidence, texts_of(events.calls["name"], tables), events.operations)
        unnamed = missing_name_notes(
            named_ids(events.kernels, tables), named_ids(events.calls, tables), named_ranges(tables)
        )
        trace = _without_events(
            *(tables, threads, located, take_stacked_calls(tables, events.stacked)),
            end=end,
            work=work,
            callers=np.unique(threads.rows(events.global_tids)).tolist(),
            kernels=named,
            info=_info(capture, problems),
        )
        trace = replace(
            trace,
            info=with_checks(trace.info, [*checks, *clock_notes(located.devices.frame), *unnamed]),
            sizes=WorkSizes(marks=flops_marks(tables)),
            memory=memory_frame(tables, located.devices, Links({}), threads, trace.api),
        )
        rest = {name: frame for name, frame in tables.items() if name not in (raw.MEMORY, raw.GPU_METRICS)}
        if raw.NVTX in rest:
            rest[raw.NVTX] = without_program_ranges(rest[raw.NVTX])
        return cls(trace, located, threads, work), capture._replace(tables=rest, problems=tuple(problems.lines))


def _without_events(
    tables: dict[str, pl.DataFrame],
    threads: Threads,
    located: Located,
    stacked: Sequence[StackedCalls],
    end: int,
    work: Window | None,
    callers: Sequence[int],
    kernels: pl.DataFrame,
    info: ReportInfo,
) -> Trace:
    """Return a trace without operations, calls, and what refers to them: the same for each part of a capture.

    `end` is the last end of all events, `work` the time of GPU work, and `callers` are the threads with calls.
    `kernels` has the names of kernels with times (see find_program).
    """
    ranges, scopes = ranges_frame(tables, threads, end)
    scopes, names = trace_scopes(tables, threads) if raw.SCOPES in tables else scopes, threads.frame(tables)
    host = host_evidence(
        *(tables, threads, ranges, scopes, stacked), work=work, callers=callers, names=names["name"].to_list()
    )
    program = stated_program(tables.get(raw.PROGRAM)) or find_program(
        ProgramNames.from_tables(tables, names, kernels, ranges),
        kernels,
        info.profiler == raw.TORCH_PROFILER,
        located.devices.frame["name"].to_list(),
    )
    return Trace(
        info=info,
        operations=empty_frame(OPERATIONS),
        api=api_frame({}, threads),
        ranges=ranges,
        overhead=_overhead(tables),
        stream_events=empty_frame(STREAM_EVENTS),
        devices=located.devices.frame,
        streams=located.streams,
        threads=names,
        shapes=empty_shapes(),
        program=program,
        evidence=host,
        scopes=scopes,
        gpu_metrics=gpu_metric_frame(tables, located.devices),
    )


def normalise(capture: RawCapture, whole: WholeCapture | None = None) -> Trace:
    """Resolve names, link launches, name devices and streams, and sort; invalid rows are left out and counted.

    With `whole`, `capture` is a part of a capture. Its tables then have no ranges of the program, and the times of its
    GPU work are on the host's clock.
    """
    problems = Problems(list(capture.problems))
    tables = valid_tables(with_profiler_overhead(with_library_calls(capture.tables)), problems)
    if whole is None:
        refuse_invalid_work(capture.file, capture.tables, tables, problems)
        if raw.GRAPH in tables and raw.KERNEL in tables:
            tables[raw.GRAPH] = without_traced_graphs(tables[raw.GRAPH], [tables[raw.KERNEL]])
    evidence = collect_evidence(tables)
    info = whole.trace.info if whole else _info(capture, problems)
    # Memory use peaks here: free each raw table once its frame is built.
    shapes_apart, stretch = capture.shapes, capture.stretch
    del capture
    threads = whole.threads if whole else Threads.from_tables(tables)
    processes = len(np.unique(process_ids(threads.global_tid.to_numpy())))
    refuse_too_many(info.file, {"threads": len(threads.global_tid), "processes": processes})
    if whole:
        located = whole.located
    else:
        located = _located(info.file, tables, raw_stream_ids(tables), clock_tables(tables), evidence.failed)
        tables = with_corrected_times(tables, located.devices)
        capture_end = _capture_end(tables)
    nodes, stacked = take_graph_nodes(tables), take_stacked_calls(tables)
    api, links, unlinked, shapes = _calls_and_operations(tables, shapes_apart, threads, located)
    operations, failed = with_launches(unlinked, links), _failed(evidence.failed)
    if whole:
        trace = whole.trace
    else:
        trace = _without_events(
            *(tables, threads, located, stacked),
            end=capture_end,
            work=_time_of_work(operations),
            callers=np.flatnonzero(np.bincount(api["thread"].to_numpy())).tolist(),
            kernels=operations,
            info=info,
        )
        trace = replace(trace, memory=memory_frame(tables, located.devices, links, threads, api))
        checks = check_health(evidence, categories(api["name"]), len(operations))
        unnamed = missing_name_notes(named_kernels(operations), named_calls(api), named_ranges(tables))
        info = with_checks(info, [*checks, *clock_notes(trace.devices), *unnamed])
        calls = CallPart.build(api, operations, failed, links=links)
        lost = check_events([calls], trace.ranges, lambda suspect: [are_calling(api, earlier) for earlier in suspect])
        info = with_checks(info, lost)
    sizes = work_sizes(tables, threads, operations, api)
    if (unknown := unknown_messages(*count_messages(sizes, operations), info.profiler)) is not None:
        info = with_checks(info, [unknown])
    return replace(
        trace,
        info=info,
        operations=operations,
        api=with_pageable_copies(api, operations),
        overhead=_overhead(tables),
        stream_events=stream_events(tables, links),
        shapes=shapes,
        captures=kernel_captures(nodes, operations, threads),
        sizes=sizes,
        failed=failed,
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


def with_checks(info: ReportInfo, checks: Iterable[Check]) -> ReportInfo:
    """Return the info with more checks, each once: notes on defects, and lines on what is in order."""
    checks = list(checks)
    notes = (check for check in checks if isinstance(check, Note))
    lines = (check for check in checks if isinstance(check, str))
    return replace(
        info, health=tuple(dict.fromkeys((*info.health, *notes))), passed=tuple(dict.fromkeys((*info.passed, *lines)))
    )


def _located(
    file: str,
    tables: dict[str, pl.DataFrame],
    stream_ids: RawStreamIds,
    clock: dict[str, pl.DataFrame],
    failed: pl.DataFrame | None,
) -> Located:
    """Return where GPU work runs; `clock` is the result of clock_tables, `failed` that of collect_evidence."""
    devices = devices_of(tables, stream_ids)
    devices = with_clocks(devices, measure_clocks(clock, devices.pairs, tables, failed))
    streams = stream_frame(tables, stream_ids, devices)
    refuse_too_many(file, {"GPUs": len(devices.pairs), "streams": len(streams)})
    return Located(stream_ids, devices, streams)


def _calls_and_operations(
    tables: dict[str, pl.DataFrame], shapes_apart: pl.DataFrame | None, threads: Threads, located: Located
) -> tuple[pl.DataFrame, Links, pl.DataFrame, pl.DataFrame]:
    """Build API calls in a thread, and operations here. Removes their tables from `tables`."""

    def build_calls() -> tuple[pl.DataFrame, Links]:
        api = api_frame(tables, threads)
        return api, Links.from_api(api)

    with ThreadPoolExecutor(1) as executor:
        calls = executor.submit(build_calls)
        unlinked, shapes = operations_frame(tables, shapes_apart, *located)
        api, links = calls.result()
    return api, links, unlinked, shapes


def _overhead(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    overhead = tables.get(raw.OVERHEAD)
    if overhead is None:
        return empty_frame(OVERHEAD)
    return overhead.select("start", "end").sort("start", "end")


def _capture_end(tables: dict[str, pl.DataFrame]) -> int:
    """Return the latest end of all events."""
    ends = [
        value
        for name in raw.ESSENTIAL
        if name in tables
        for column in (TIMES if name == raw.NVTX else ("end",))  # an NVTX range may have no end
        if isinstance(value := _latest(tables[name][column]), int)
    ]
    return max(ends, default=0)


def _latest(times: pl.Series) -> object:
    latest = times.max()
    # Only NVTX events that are not ranges may still have impossible times.
    return times.filter(times <= MAX_TIME).max() if isinstance(latest, int) and latest > MAX_TIME else latest
