"""Measures one report and returns its small result; this is the work of a worker.

A report larger than memory is measured in parts, others as a single part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from traceview import intervals
from traceview.engine.iterations import (
    IterationPart,
    find_iterations_in_parts,
    idle_activity,
    measure_iteration_part,
    merge_iteration_parts,
)
from traceview.engine.limited import LimitedCapture
from traceview.engine.measure import Extents, activities_in_part
from traceview.engine.memory import memory_limit
from traceview.engine.part import PartRunner, PartTrace, TraceInMemory
from traceview.errors import NotAnExportError, RequestError
from traceview.intervals import Times
from traceview.measure.activity import KERNEL, Activity, active_devices, no_gpu_work
from traceview.measure.gaps import device_gaps, find_idle_gaps
from traceview.measure.iterations import IterationRanges
from traceview.measure.iterations.kinds import iteration_kinds
from traceview.measure.iterations.times import IterationTimes, MeasuredDevices
from traceview.model.analysis import CAUSES, NotMeasured, kinds_words
from traceview.model.fleet import RankResult, ReportResult
from traceview.model.trace import EVERYTHING, Trace, Window
from traceview.pipeline import open_trace
from traceview.ranks.collectives import EMPTY, CollectivePart, merge_collectives
from traceview.ranks.iterations import CutIterations, WorkBins, compute_times, iteration_numbers
from traceview.read.formats import as_sqlite
from traceview.read.sqlite.database import open_export

KEEP_ALL = 1 << 62  # bytes
SESSION, SYSTEM = "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV"
MIN_EPOCH, MAX_EPOCH = 10**18, 4 * 10**18  # ns; the years 2001 to 2096


def measure_report(
    path: Path, iteration: str | None = None, skip: int | None = None, memory: int | None = None
) -> ReportResult:
    """Measure every GPU of a report. Raises TraceviewError if it cannot be read or has no GPU work.

    A report that does not fit into `memory` bytes is measured in parts; see memory_limit.
    """
    try:
        with as_sqlite(path) as export:
            limit, node = memory_limit(export, memory), node_of(export)
            if limit is not None:
                with TemporaryDirectory(prefix="traceview-") as folder:
                    capture = LimitedCapture.open(export, limit, Path(folder))
                    if isinstance(capture, LimitedCapture):
                        source = capture.source
                        extents = Extents(*source.extents).devices
                        result = measure_parts(capture.runner(), extents, session_epoch(export), iteration, skip)
                        return replace(result, node=node)
            return replace(measure_trace(open_trace(export), session_epoch(export), iteration, skip), node=node)
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
    works = active_devices(trace)
    if not works:
        raise RequestError(no_gpu_work(trace))
    runner = PartRunner(TraceInMemory(trace), [EVERYTHING], KEEP_ALL)
    return measure_parts(runner, {work.device: work.window for work in works}, epoch, iteration, skip)


def measure_parts(
    runner: PartRunner, extents: Mapping[int, Window], epoch: int | None, iteration: str | None, skip: int | None
) -> ReportResult:
    """Measure a report in parts; `extents` has the time from the first start to the last end of each GPU."""
    trace = runner.source.resident
    if not extents:
        raise RequestError(no_gpu_work(trace))
    notes = [*(note.text for note in trace.info.health if note.affects), *trace.info.problems]
    ranks = tuple(
        _measure_rank(runner, Device(device, extents[device]), iteration, skip, notes) for device in sorted(extents)
    )
    return ReportResult(trace.info.nsys_version, trace.program, epoch, tuple(dict.fromkeys(notes)), ranks)


def _steady(begin: Times, skipped: int, window: Window) -> Window:
    """Return the part of the window from the first counted iteration on."""
    counted = begin[skipped:]
    first = max(int(counted[0]), window.start) if len(counted) else window.start
    return Window(first, window.end) if first < window.end else window


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of a report: its row of Trace.devices, and the time from its first start to its last end."""

    row: int
    window: Window

    def work(self, part: PartTrace) -> Activity:
        """Return the work of the GPU in a part, which may have none."""
        works = activities_in_part(part, {self.row: self.window})
        return works[0] if works else idle_activity(part.trace, self.row)


@dataclass(frozen=True, slots=True)
class _RankPart:
    """What a part has of a rank: `sums` are compute, communication, exposed communication, kernels, idle by cause."""

    sums: Times
    steps: IterationPart | None
    collectives: CollectivePart
    times: Mapping[str, int]


def _measure_part(part: PartTrace, device: Device, where: IterationRanges | None, steady: Window) -> _RankPart:
    trace, work = part.trace, device.work(part)
    gaps = device_gaps(trace, find_idle_gaps(trace, part.threads, work))
    measured = MeasuredDevices([work], {device.row: gaps})
    exposed = intervals.subtract(work.communication, work.compute)
    kernels = np.count_nonzero(work.select(trace.operations["source"].to_physical().to_numpy()) == KERNEL)
    lengths = [intervals.length(union) for union in (work.compute, work.communication, exposed)]
    return _RankPart(
        np.array([*lengths, kernels, *(gaps.causes[cause] for cause in CAUSES)], np.int64),
        None if where is None else measure_iteration_part(trace, part.threads, measured, [device.row], where),
        CollectivePart.measure(trace, work),
        compute_times(trace, work.clip(steady.within(work.window))),
    )


def _bins_in_part(part: PartTrace, device: Device, bins: WorkBins) -> WorkBins:
    work = device.work(part)
    return bins.in_part(part.trace, work.clip(bins.window.within(work.window)))


def _measure_rank(
    runner: PartRunner, device: Device, iteration: str | None, skip: int | None, notes: list[str]
) -> RankResult:
    resident = runner.source.resident
    row = resident.devices.row(device.row, named=True)
    located = find_iterations_in_parts(
        resident, [device.row], runner.over_parts, pattern=iteration, skip=skip
    ).iterations
    cut, begin, numbers, steady = None, EMPTY, EMPTY, device.window
    if isinstance(located, NotMeasured):
        notes.append(located.reason)
    else:
        where, work = located
        numbers, named = iteration_numbers(where)
        measured = IterationTimes(where.start, where.end, work.finish, where.skipped)
        if kinds := iteration_kinds(measured.lengths, work, where.skipped):
            notes.append(f"iterations are of several kinds: {kinds_words(kinds)}")
        cut, begin = CutIterations.build(where, work.finish, numbers, named), where.start
        steady = _steady(begin, where.skipped, device.window)
    function = partial(_measure_part, device=device, where=None if cut is None else cut.where, steady=steady)
    parts = list(runner.over_parts(function))
    steps = None
    if cut is not None:
        each = merge_iteration_parts(cut.where, [part.steps for part in parts if part.steps is not None])
        steps = cut.steps(each, skip)
    times: Counter[str] = Counter()
    for part in parts:
        times.update(part.times)
    bins = WorkBins.empty(steady, times)
    for some in runner.over_parts(partial(_bins_in_part, device=device, bins=bins)):
        bins.add(some)
    compute, communication, exposed, kernels, *idle = np.sum([part.sums for part in parts], axis=0).tolist()
    return RankResult(
        device=row["id"],
        gpu=row["name"],
        processes=tuple(row["processes"]),
        start=device.window.start,
        end=device.window.end,
        compute=compute,
        communication=communication,
        exposed_communication=exposed,
        idle=tuple(idle),
        kernels=kernels,
        steps=steps,
        collectives=merge_collectives(
            [part.collectives for part in parts], resident.streams["stream_id"].to_numpy(), begin, numbers
        ),
        work=bins.work(),
    )
