"""Measures one report and returns its small result; this is the work of a worker."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from traceview import intervals
from traceview.errors import NotAnExportError, RequestError
from traceview.fleet.collectives import EMPTY, measure_collectives
from traceview.fleet.iterations import iteration_numbers, measure_steps
from traceview.fleet.work import measure_work
from traceview.intervals import Times
from traceview.measure.activity import Activity, active_devices, no_gpu_work
from traceview.measure.gaps.causes import device_gaps, find_idle_gaps
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.iterations import find_iterations
from traceview.measure.iterations.breakdown import MeasuredDevices
from traceview.model.analysis import NotMeasured
from traceview.model.devices import CAUSES
from traceview.model.fleet import RankResult, ReportResult
from traceview.model.trace import Trace, Window
from traceview.pipeline import open_trace
from traceview.read.formats import as_sqlite
from traceview.read.source import display_name
from traceview.read.sqlite.database import columns_of, open_read_only, real_tables

SESSION = "TARGET_INFO_SESSION_START_TIME"
MIN_EPOCH, MAX_EPOCH = 10**18, 4 * 10**18  # ns; the years 2001 to 2096


def measure_report(path: Path, iteration: str | None, skip: int | None) -> ReportResult:
    """Measure every GPU of a report. Raises TraceviewError if it cannot be read or has no GPU work."""
    try:
        with as_sqlite(path) as export:
            return measure_trace(open_trace(export), session_epoch(export), iteration, skip)
    except NotAnExportError:
        # Another format, without session start; or open_trace raises the error again.
        return measure_trace(open_trace(path), None, iteration, skip)


def session_epoch(export: Path) -> int | None:
    """Return the time of day, in ns since 1970 (UTC), at 0 of the export's clock, or None if it is not recorded.

    TARGET_INFO_SESSION_START_TIME.utcEpochNs is the time of day when the session began. From schema 3.25 on,
    systemClockNs is the export's clock at that moment; before, the clock began at 0 with the session.
    """
    with open_read_only(export) as connection:
        present = real_tables(connection, display_name(export))
        if SESSION not in present or "utcEpochNs" not in (columns := columns_of(connection, SESSION)):
            return None
        clock = "systemClockNs" if "systemClockNs" in columns else "0"
        row = connection.execute(f"SELECT utcEpochNs, {clock} FROM {SESSION} LIMIT 1").fetchone()
    if row is None or not all(isinstance(value, int) for value in row) or not MIN_EPOCH < row[0] < MAX_EPOCH:
        return None
    return int(row[0]) - int(row[1])


def measure_trace(
    trace: Trace, epoch: int | None = None, iteration: str | None = None, skip: int | None = None
) -> ReportResult:
    """Measure every GPU of a trace; `epoch` is that of session_epoch(). Raises RequestError without GPU work."""
    devices = active_devices(trace)
    if not devices:
        raise RequestError(no_gpu_work(trace))
    threads = ThreadStates.from_trace(trace)
    notes = [*(note.text for note in trace.info.health if note.affects), *trace.info.problems]
    ranks = tuple(_measure_rank(trace, threads, device, iteration, skip, notes) for device in devices)
    return ReportResult(trace.info.nsys_version, trace.program, epoch, tuple(dict.fromkeys(notes)), ranks)


def _steady(begin: Times, skipped: int, window: Window) -> Window:
    """Return the part of the window from the first counted iteration on."""
    counted = begin[skipped:]
    first = max(int(counted[0]), window.start) if len(counted) else window.start
    return Window(first, window.end) if first < window.end else window


def _measure_rank(
    trace: Trace,
    threads: ThreadStates,
    device: Activity,
    iteration: str | None,
    skip: int | None,
    notes: list[str],
) -> RankResult:
    row = trace.devices.row(device.device, named=True)
    gaps = device_gaps(trace, find_idle_gaps(trace, threads, device))
    measured = MeasuredDevices([device], {device.device: gaps})
    iterations = find_iterations(trace, measured, pattern=iteration, skip=skip)
    steps, begin, numbers, steady = None, EMPTY, EMPTY, device.window
    if isinstance(iterations, NotMeasured):
        notes.append(iterations.reason)
    else:
        begin = iterations.start
        numbers, are_named = iteration_numbers(iterations)
        steps = measure_steps(trace, threads, measured, iterations, numbers, are_named, skip)
        steady = _steady(begin, iterations.skipped, device.window)
    return RankResult(
        device=row["id"],
        gpu=row["name"],
        processes=tuple(row["processes"]),
        start=device.window.start,
        end=device.window.end,
        compute=intervals.length(device.compute),
        communication=intervals.length(device.communication),
        exposed_communication=intervals.length(intervals.subtract(device.communication, device.compute)),
        idle=tuple(gaps.causes[cause] for cause in CAUSES),
        kernels=int(np.count_nonzero(trace.operations["source"].gather(device.rows).to_numpy() == "kernel")),
        steps=steps,
        collectives=measure_collectives(trace, device, begin, numbers),
        work=measure_work(trace, device.clip(steady)),
    )
