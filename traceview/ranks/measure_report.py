"""Measures one report and returns its small result; this is the work of a worker."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np

from traceview import intervals
from traceview.errors import NotAnExportError, RequestError
from traceview.measure.activity import KERNEL, Activity, active_devices, no_gpu_work
from traceview.measure.gaps import ThreadStates, device_gaps
from traceview.measure.iterations import IterationRanges, locate_iterations
from traceview.measure.iterations.kinds import iteration_kinds
from traceview.measure.iterations.times import MeasuredDevices, breakdown
from traceview.model.analysis import CAUSES, NotMeasured, kinds_words
from traceview.model.fleet import RankResult, ReportResult
from traceview.model.trace import Trace, Window
from traceview.pipeline import open_trace
from traceview.ranks.collectives import EMPTY, rank_collectives
from traceview.ranks.iterations import build_steps, iteration_numbers, rank_work
from traceview.read.formats import as_sqlite
from traceview.read.sqlite.database import open_export

SESSION, SYSTEM = "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV"
MIN_EPOCH, MAX_EPOCH = 10**18, 4 * 10**18  # ns; the years 2001 to 2096


def measure_report(path: Path, iteration: str | None = None, skip: int | None = None) -> ReportResult:
    """Measure every GPU of a report. Raises TraceviewError if it cannot be read or has no GPU work."""
    try:
        with as_sqlite(path) as (export, _):
            result = measure_trace(open_trace(export), session_epoch(export), iteration, skip)
            return replace(result, node=node_of(export))
    except NotAnExportError:
        # Another format, without session start; or open_trace raises the error again.
        return measure_trace(open_trace(path), None, iteration, skip)


def node_of(export: Path) -> str | None:
    """Return a digest of the host's name, or None if it is not recorded. The name itself reaches no result."""
    with open_export(export) as database:
        if SYSTEM not in database.tables:
            return None
        row = database.select("value", SYSTEM, "WHERE name = 'Hostname' LIMIT 1").fetchone()
    return sha256(str(row[0]).encode("utf-8", "replace")).hexdigest() if row and row[0] else None


def session_epoch(export: Path) -> int | None:
    """Return the time of day, in ns since 1970 (UTC), at 0 of the export's clock, or None if it is not recorded.

    TARGET_INFO_SESSION_START_TIME.utcEpochNs is the time of day when the session began. From schema 3.25 on,
    systemClockNs is the export's clock at that moment; before, the clock began at 0 with the session.
    """
    with open_export(export) as database:
        if SESSION not in database.tables or "utcEpochNs" not in (columns := database.columns(SESSION)):
            return None
        clock = "systemClockNs" if "systemClockNs" in columns else "0"
        row = database.select(f"utcEpochNs, {clock}", SESSION, "LIMIT 1").fetchone()
    if row is None or not all(isinstance(value, int) for value in row) or not MIN_EPOCH < row[0] < MAX_EPOCH:
        return None
    return int(row[0]) - int(row[1])


def measure_trace(
    trace: Trace, epoch: int | None = None, iteration: str | None = None, skip: int | None = None
) -> ReportResult:
    """Measure every GPU of a trace; `epoch` is that of session_epoch(). Raises RequestError without GPU work."""
    works = sorted(active_devices(trace), key=lambda work: work.device)
    if not works:
        raise RequestError(no_gpu_work(trace))
    notes = [*(note.text for note in trace.info.health if note.affects), *trace.info.problems]
    threads = ThreadStates.from_trace(trace)
    ranks = tuple(_measure_rank(trace, threads, work, iteration, skip, notes) for work in works)
    return ReportResult(trace.program, epoch, tuple(dict.fromkeys(notes)), ranks)


def _measure_rank(
    trace: Trace, threads: ThreadStates, work: Activity, iteration: str | None, skip: int | None, notes: list[str]
) -> RankResult:
    """Measure one GPU, and add notes on its iterations."""
    gaps = device_gaps(trace, threads, work)
    located = locate_iterations(trace, [work.device], pattern=iteration, skip=skip)
    steps, begin, numbers, steady = None, EMPTY, EMPTY, work.window
    if isinstance(located, NotMeasured):
        notes.append(located.reason)
    else:
        where, launched, lost = located
        if lost.lost:
            notes.append(f"{lost.lost} of {lost.lost + lost.apart + len(where.start)} iterations lack GPU work")
        if kinds := iteration_kinds(located.times, launched, where.first_loop):
            notes.append(f"iterations are of several kinds: {kinds_words(kinds)}")
        devices = MeasuredDevices([work], {work.device: gaps})
        of_periods = partial(breakdown, trace, threads, devices, where.process)
        steps = build_steps(where, launched.finish, of_periods, skip)
        begin, numbers, steady = where.start, iteration_numbers(where)[0], _steady(where, work.window)
        if lost.holes:
            steady = steady.within(Window(int(where.start[0]), int(where.end[-1])))
    device = trace.devices.row(work.device, named=True)
    is_kernel = work.select(trace.operations["source"].to_physical().to_numpy()) == KERNEL
    return RankResult(
        device=device["id"],
        gpu=device["name"],
        start=work.window.start,
        end=work.window.end,
        compute=intervals.length(work.compute),
        exposed_communication=intervals.length(intervals.subtract(work.communication, work.compute)),
        idle=tuple(gaps.causes[cause] for cause in CAUSES),
        kernels=int(np.count_nonzero(is_kernel)),
        steps=steps,
        collectives=rank_collectives(trace, work, begin, numbers),
        work=rank_work(trace, work.clip(steady)),
    )


def _steady(where: IterationRanges, window: Window) -> Window:
    """Return the part of the window from the first counted iteration on."""
    counted = where.start[where.skipped :]
    first = max(int(counted[0]), window.start) if len(counted) else window.start
    return Window(first, window.end) if first < window.end else window
