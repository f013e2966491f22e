"""Versions and oddities of the export end here: one RawCapture in, one Trace out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl

from traceview.model.trace import OVERHEAD, ReportInfo, Trace
from traceview.normalise.api import api_frame, with_pageable_copies
from traceview.normalise.devices import Devices, devices_of, where_work_ran
from traceview.normalise.events import stream_events
from traceview.normalise.identity import processes_of
from traceview.normalise.libraries import with_library_calls
from traceview.normalise.limits import refuse_crowds
from traceview.normalise.links import Links
from traceview.normalise.operations import operations_frame, with_launches
from traceview.normalise.ranges import ranges_frame
from traceview.normalise.streams import Streams, streams_of
from traceview.normalise.threads import Threads
from traceview.normalise.valid_rows import LATEST, Problems, sound_tables
from traceview.read import raw
from traceview.read.raw import TIMES, RawCapture


def normalise(capture: RawCapture) -> Trace:
    """Join names, link launches, name devices and streams, and sort; bad rows are left out and counted."""
    problems = Problems(list(capture.problems))
    tables = sound_tables(with_library_calls(capture.tables), problems)
    info = ReportInfo(
        file=capture.file,
        nsys_version=capture.nsys_version,
        schema_version=capture.schema_version,
        tables={name: len(frame) for name, frame in capture.tables.items()},
        problems=tuple(problems.lines),
        profiler=capture.profiler,
    )
    # A table that a frame was made of is let go of: both at once are the most memory that an analysis takes.
    del capture
    threads, last = Threads.of(tables), _last_end(tables)
    processes = len(np.unique(processes_of(threads.global_tid.to_numpy())))
    refuse_crowds(info.file, {"threads": len(threads.global_tid), "processes": processes})
    api, links, unlinked, devices, streams = _work(info.file, tables, threads)
    operations = with_launches(unlinked, links)
    return Trace(
        info=info,
        operations=operations,
        api=with_pageable_copies(api, operations),
        ranges=ranges_frame(tables, threads, last),
        overhead=_overhead(tables),
        stream_events=stream_events(tables, links),
        devices=devices.frame,
        streams=streams.frame,
        threads=threads.frame(tables),
    )


def _work(
    file: str, tables: dict[str, pl.DataFrame], threads: Threads
) -> tuple[pl.DataFrame, Links, pl.DataFrame, Devices, Streams]:
    """Make the calls and the operations, which share nothing until they are linked; empty `tables` of theirs."""

    def calls() -> tuple[pl.DataFrame, Links]:
        api = api_frame(tables, threads)
        return api, Links.of(api)

    with ThreadPoolExecutor(1) as aside:
        calls_later = aside.submit(calls)
        ran = where_work_ran(tables)
        devices = devices_of(tables, ran)
        streams = streams_of(tables, ran, devices)
        refuse_crowds(file, {"GPUs": len(devices.pairs), "streams": len(streams.frame)})
        unlinked = operations_frame(tables, ran, devices, streams)
        api, links = calls_later.result()
    return api, links, unlinked, devices, streams


def _overhead(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    found = tables.get(raw.OVERHEAD)
    if found is None:
        return pl.DataFrame(schema=dict(OVERHEAD))
    return found.select("start", "end").sort("start", "end")


def _last_end(tables: dict[str, pl.DataFrame]) -> int:
    """Return the end of the capture: the last end of anything in it."""
    ends = [
        value
        for name in raw.ESSENTIAL
        if name in tables
        for column in (TIMES if name == raw.NVTX else ("end",))  # all else ends where it starts, or later
        if isinstance(value := _latest(tables[name][column]), int)
    ]
    return max(ends, default=0)


def _latest(times: pl.Series) -> object:
    latest = times.max()
    # Only what is no range may still hold an impossible time; nothing else needs the slow way.
    return times.filter(times <= LATEST).max() if isinstance(latest, int) and latest > LATEST else latest
