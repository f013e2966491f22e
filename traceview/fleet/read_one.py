"""One report in, one small result out: what a worker does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from traceview import intervals
from traceview.errors import NotAnExportError, RequestError
from traceview.fleet.collectives import EMPTY, collectives_of
from traceview.fleet.payload import PAYLOADS, communicators
from traceview.fleet.session import epoch_of
from traceview.fleet.steps import numbers_of, steps_of
from traceview.measure.activity import Activity, active_devices
from traceview.measure.gaps.causes import device_gaps, find_idle_gaps
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.iterations import find_iterations
from traceview.measure.iterations.breakdown import MeasuredDevices
from traceview.model.analysis import CAUSES, NotMeasured
from traceview.model.fleet import RankResult, ReportResult
from traceview.model.trace import Trace
from traceview.pipeline import open_trace
from traceview.read.formats import as_sqlite


def read_report(path: Path, iteration: str | None, skip: int | None) -> ReportResult:
    """Measure every GPU of a report. Raises TraceviewError where nothing can be said of it."""
    try:
        with as_sqlite(path) as export:
            return _measure(open_trace(export), epoch_of(export), communicators(export), iteration, skip)
    except NotAnExportError:
        # Another format, which says neither when its session began nor what communicators there are; or an error.
        return _measure(open_trace(path), None, pl.DataFrame(schema=PAYLOADS), iteration, skip)


def _measure(
    trace: Trace, epoch: int | None, named: pl.DataFrame, iteration: str | None, skip: int | None
) -> ReportResult:
    devices = active_devices(trace)
    if not devices:
        raise RequestError("the capture holds no GPU work; capture it with: nsys profile -t cuda,nvtx COMMAND")
    of = ThreadStates.from_trace(trace)
    notes: list[str] = list(trace.info.problems)
    ranks = tuple(_rank(trace, of, device, named, iteration, skip, notes) for device in devices)
    return ReportResult(trace.info.nsys_version, epoch, tuple(dict.fromkeys(notes)), ranks)


def _rank(
    trace: Trace,
    of: ThreadStates,
    device: Activity,
    named: pl.DataFrame,
    iteration: str | None,
    skip: int | None,
    notes: list[str],
) -> RankResult:
    row = trace.devices.row(device.device, named=True)
    gaps = device_gaps(trace, find_idle_gaps(trace, of, device))
    measured = MeasuredDevices([device], {device.device: gaps})
    found = find_iterations(trace, measured, pattern=iteration, skip=skip)
    steps, begin, number = None, EMPTY, EMPTY
    if isinstance(found, NotMeasured):
        notes.append(found.reason)
    else:
        begin = found.start
        number, named_by = numbers_of(found)
        steps = steps_of(trace, of, measured, found, number, named_by, skip)
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
        collectives=collectives_of(trace, device, begin, number, named),
    )
