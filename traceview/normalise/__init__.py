"""Converts a RawCapture to a Trace. Differences between export versions and invalid rows end here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import polars as pl

from traceview.model.trace import OVERHEAD, Note, ReportInfo, Trace
from traceview.normalise.api import api_frame, with_pageable_copies
from traceview.normalise.devices import Devices, devices_of, raw_stream_ids, stream_events, stream_frame
from traceview.normalise.gpu_metrics import gpu_metric_frame
from traceview.normalise.health import check_health, collect_evidence, with_profiler_overhead
from traceview.normalise.host_events import host_evidence
from traceview.normalise.kernels import kernel_captures, take_graph_nodes
from traceview.normalise.links import Links
from traceview.normalise.memory import memory_frame
from traceview.normalise.native_stacks import take_stacked_calls
from traceview.normalise.operations import operations_frame, with_launches
from traceview.normalise.program import ProgramNames, find_program
from traceview.normalise.ranges import ranges_frame, with_library_calls
from traceview.normalise.scopes import trace_scopes
from traceview.normalise.sizes import unknown_messages, work_sizes
from traceview.normalise.threads import Threads, process_ids
from traceview.normalise.valid_rows import MAX_TIME, Problems, refuse_too_many, valid_tables
from traceview.read import raw
from traceview.read.kineto import PROFILER as TORCH_PROFILER
from traceview.read.raw import TIMES, RawCapture


def normalise(capture: RawCapture) -> Trace:
    """Resolve names, link launches, name devices and streams, and sort; invalid rows are left out and counted."""
    problems = Problems(list(capture.problems))
    tables = valid_tables(with_profiler_overhead(with_library_calls(capture.tables)), problems)
    evidence = collect_evidence(tables)
    info = ReportInfo(
        file=capture.file,
        nsys_version=capture.nsys_version,
        schema_version=capture.schema_version,
        tables={name: len(frame) for name, frame in capture.tables.items()},
        problems=tuple(problems.lines),
        profiler=capture.profiler,
    )
    # Memory use peaks here: free each raw table once its frame is built.
    shapes_apart = capture.shapes
    del capture
    threads, capture_end = Threads.from_tables(tables), _capture_end(tables)
    processes = len(np.unique(process_ids(threads.global_tid.to_numpy())))
    refuse_too_many(info.file, {"threads": len(threads.global_tid), "processes": processes})
    nodes, stacked = take_graph_nodes(tables), take_stacked_calls(tables)
    api, links, unlinked, shapes, devices, streams = _calls_and_operations(info.file, tables, shapes_apart, threads)
    operations = with_launches(unlinked, links)
    (ranges, scopes), thread_frame = ranges_frame(tables, threads, capture_end), threads.frame(tables)
    scopes = trace_scopes(tables, threads) if raw.SCOPES in tables else scopes
    host = host_evidence(
        *(tables, threads, ranges, operations, scopes, stacked),
        callers=np.flatnonzero(np.bincount(api["thread"].to_numpy())).tolist(),
        names=thread_frame["name"].to_list(),
    )
    names = ProgramNames.from_tables(tables, thread_frame, operations, ranges)
    checks = list(check_health(evidence, api, links, operations, ranges))
    sizes = work_sizes(tables, threads, operations, api)
    if (unknown := unknown_messages(sizes, operations, info.profiler)) is not None:
        checks.append(unknown)
    return Trace(
        info=replace(
            info,
            health=tuple(check for check in checks if isinstance(check, Note)),
            passed=tuple(check for check in checks if isinstance(check, str)),
        ),
        operations=operations,
        api=with_pageable_copies(api, operations),
        ranges=ranges,
        overhead=_overhead(tables),
        stream_events=stream_events(tables, links),
        devices=devices.frame,
        streams=streams,
        threads=thread_frame,
        shapes=shapes,
        scopes=scopes,
        captures=kernel_captures(nodes, operations, threads),
        sizes=sizes,
        memory=memory_frame(tables, devices, links, threads, api),
        gpu_metrics=gpu_metric_frame(tables, devices),
        program=find_program(names, operations, is_torch_trace=info.profiler == TORCH_PROFILER),
        evidence=host,
    )


def _calls_and_operations(
    file: str, tables: dict[str, pl.DataFrame], shapes_apart: pl.DataFrame | None, threads: Threads
) -> tuple[pl.DataFrame, Links, pl.DataFrame, pl.DataFrame, Devices, pl.DataFrame]:
    """Build API calls in a thread, and devices, streams and operations here. Removes their tables from `tables`."""

    def build_calls() -> tuple[pl.DataFrame, Links]:
        api = api_frame(tables, threads)
        return api, Links.from_api(api)

    with ThreadPoolExecutor(1) as executor:
        calls = executor.submit(build_calls)
        stream_ids = raw_stream_ids(tables)
        devices = devices_of(tables, stream_ids)
        streams = stream_frame(tables, stream_ids, devices)
        refuse_too_many(file, {"GPUs": len(devices.pairs), "streams": len(streams)})
        unlinked, shapes = operations_frame(tables, shapes_apart, stream_ids, devices, streams)
        api, links = calls.result()
    return api, links, unlinked, shapes, devices, streams


def _overhead(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    overhead = tables.get(raw.OVERHEAD)
    if overhead is None:
        return pl.DataFrame(schema=dict(OVERHEAD))
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
