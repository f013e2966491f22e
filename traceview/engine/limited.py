"""The analysis of a capture within a limit of memory: in parts if the complete capture does not fit.

Borders of parts are moments at which nothing is in progress, so that each event and each wait lies in one part.
"""

from __future__ import annotations

import math
import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.engine.measure import Extents
from traceview.engine.memory import MIN_MEMORY, is_sqlite
from traceview.engine.part import FIRST, LAST, NEIGHBOURS, PartRunner, ProcessRunner
from traceview.engine.run import AnalyzedCapture, analyze_parts
from traceview.engine.survey import NotInPartsError
from traceview.engine.traces import PartSource
from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.measure.activity import window_of_range
from traceview.measure.storms import MIN_STORM, PERIODS, storms, tiny_operations
from traceview.measure.sync import number_waits
from traceview.model.analysis import AnalysisOptions
from traceview.model.times import window_between
from traceview.model.trace import ROLES, Note, Trace, Window
from traceview.normalise.devices import TIMED_TABLES
from traceview.pricing.speedups import FINDABLE, KernelSequence
from traceview.pricing.speedups.steps import Candidates
from traceview.workers import ThisProcess, Workers
from traceview.workers.processes import Processes

# Memory, measured on 1 to 100 million kernels. Parts are in worker processes, which share their packages.
BYTES_PER_EVENT = 320  # a part in progress
FIRST_PROCESS_BYTES, FIRST_PROCESS_BYTES_PER_EVENT = 200_000_000, 3  # the modelled part, and results of parts
WORKER_BYTES, WORKER_BYTES_PER_RANGE = 70_000_000, 130  # each process has all NVTX ranges, with arrays about them
PARTS_PER_PROCESS = 3
MIN_EVENTS = 200_000  # in a part: for a smaller one, reading its neighbours takes most of the time
MAX_EVENTS = 1_500_000  # in a part: the allocator gives larger arrays back, and the system clears their pages anew
KEPT_SHARE = 8  # at least an eighth of the memory is for parts that are kept from pass to pass
NEAR_EVENTS = 10_000  # events on each side of a wanted border that are read at first, and then WIDER times as many
WIDER = 4
FARTHEST = 16  # times NEAR_EVENTS: how far the search for a border that cuts no sequence goes
TRIED_STEP = 1.5  # the search tries the first moment, and each time one that is this much farther


def quiet_moments(trace: Trace) -> Times:
    """Return the starts of operations in the trace's window at which a part may begin, ascending.

    All GPUs are idle just before such a moment, and it lies neither inside a wait nor inside a restart gap. Where what
    is outside the window might forbid a moment, it is left out.
    """
    operations = trace.operations.filter(pl.col("end") > pl.col("start"))
    start, end = (operations[name].to_numpy() for name in ("start", "end"))
    moments = start[start > _reach(end)]  # work that touches is one mark of a timeline
    if trace.window is not None:
        moments = moments[(moments >= trace.window.start) & (moments < trace.window.end)]
    moments = intervals.sorted_unique(moments)
    moments = moments[~_are_in_waits(trace, moments)]
    return moments[~_are_in_restart_gaps(trace, operations, moments)]


def fitting_processes(source: PartSource, memory: int, processes: int) -> int:
    """Return how many of the worker processes fit into `memory` bytes, each with a part of MIN_EVENTS or more."""
    smallest = _bytes_beside_parts(source, 1) - _bytes_beside_parts(source, 0) + MIN_EVENTS * BYTES_PER_EVENT
    return max(1, min(processes, (memory - memory // KEPT_SHARE - _bytes_beside_parts(source, 0)) // smallest))


def part_count(source: PartSource, memory: int, processes: int) -> int:
    """Return how many parts a capture is cut into.

    Each process measures one part at a time. These parts, and what the processes hold for all parts, fit into
    `memory` bytes. Each of several processes gets some parts, so that they end at about the same time.
    """
    left = memory - memory // KEPT_SHARE - _bytes_beside_parts(source, processes)
    at_once = max(left // BYTES_PER_EVENT, processes * MIN_EVENTS)
    balanced = PARTS_PER_PROCESS * processes if processes > 1 else 1
    fitting = math.ceil(source.events * processes / at_once)
    return max(1, fitting, source.events // MAX_EVENTS, min(balanced, source.events // MIN_EVENTS))


def keepable_bytes(source: PartSource, part_count: int, memory: int, processes: int) -> int:
    """Return the bytes of `memory` for parts that are kept from pass to pass.

    Each process also holds the part that it measures. Half of the remaining memory stays free, because parts differ
    in size.
    """
    used = _bytes_beside_parts(source, processes) + processes * source.events // part_count * BYTES_PER_EVENT
    return max((memory - used) // 2, memory // KEPT_SHARE)


def _bytes_beside_parts(source: PartSource, processes: int) -> int:
    """Return the memory of this process, and of worker processes without their parts."""
    worker = WORKER_BYTES + WORKER_BYTES_PER_RANGE * len(source.resident.ranges)
    return FIRST_PROCESS_BYTES + FIRST_PROCESS_BYTES_PER_EVENT * source.events + processes * worker


def plan_parts(source: PartSource, count: int, workers: Workers | None = None) -> tuple[Window, ...]:
    """Return up to `count` adjoining windows with about the same number of events, whose borders are quiet moments.

    With `workers`, these processes find the borders.
    """
    stretches = pairwise([*_targets(source, count), LAST])
    moments = (workers or ThisProcess()).in_order(partial(_quiet_moment, source), stretches)
    borders = [moment for moment in moments if moment is not None]
    return tuple(Window(*edges) for edges in pairwise([FIRST, *borders, LAST]))


def _reach(end: Times) -> Times:
    """Return the last end of all operations before each operation."""
    before = np.concatenate([np.array([FIRST], np.int64), end[:-1]])
    return np.maximum.accumulate(before)[: len(end)]


def _blocking_rows(trace: Trace) -> Times:
    explicit = trace.api["role"].to_physical().to_numpy() == ROLES.index("sync")
    return np.flatnonzero(explicit | trace.api["implicit"].to_numpy())


def _are_in_waits(trace: Trace, moments: Times) -> NDArray[np.bool_]:
    """Return which moments are between the start of a wait's first call and the end of its last."""
    rows = _blocking_rows(trace)
    if len(rows) == 0:
        return np.zeros(len(moments), np.bool_)
    calls = trace.api[rows].select("start", "end", wait=pl.Series(number_waits(trace, rows)))
    waits = calls.group_by("wait").agg(pl.col("start").min(), pl.col("end").max()).sort("start")
    members = intervals.union(waits["start"].to_numpy(), waits["end"].to_numpy(), ordered=True)
    member = np.searchsorted(members.start, moments, side="left") - 1
    inside: NDArray[np.bool_] = (member >= 0) & (moments < members.end[member])
    return inside


def _are_in_restart_gaps(trace: Trace, operations: pl.DataFrame, moments: Times) -> NDArray[np.bool_]:
    """Return the moments at which a device is idle, and goes on to be, since a blocking call returned."""
    known_since = FIRST if trace.window is None else trace.window.start
    returned = np.sort(trace.api["end"].to_numpy()[_blocking_rows(trace)])
    last_return = np.concatenate([np.array([FIRST], np.int64), returned])[
        np.searchsorted(returned, moments, side="right")
    ]
    inside = np.zeros(len(moments), np.bool_)
    for device in operations["device"].unique().to_list():
        own = operations.filter(pl.col("device") == device)
        start, ends = own["start"].to_numpy(), np.maximum.accumulate(own["end"].to_numpy())
        following = np.searchsorted(start, moments, side="left")
        works_after = following < len(start)
        begins = works_after & (start[np.minimum(following, len(start) - 1)] == moments)
        idle_since = np.where(following > 0, ends[np.maximum(following - 1, 0)], LAST)
        inside |= works_after & ~begins & (np.maximum(last_return, known_since) >= idle_since)
    return inside


def _are_in_storms(trace: Trace, moments: Times) -> NDArray[np.bool_]:
    """Return which moments are inside a loop of tiny operations of a stream (measure/storms.py)."""
    inside = np.zeros(len(moments), np.bool_)
    work = trace.operations.filter(pl.col("class") != "communication")
    columns = ("start", "end", "name", "stream", "shape")
    start, end, name, stream, shape = (work[column].to_physical().to_numpy() for column in columns)
    tiny = tiny_operations(start, end, shape, trace.shapes)
    for row in np.unique(stream).tolist():
        own = np.flatnonzero(stream == row)
        if len(own) >= MIN_STORM:
            loops = storms(name[own], tiny[own])
            # An operation repeats one of the PERIODS before it, which the rule must see in the same part.
            first, last = start[own[np.maximum(loops.start - max(PERIODS), 0)]], start[own[loops.end - 1]]
            loop = np.searchsorted(first, moments) - 1
            inside |= (loop >= 0) & (moments <= last.take(loop, mode="clip")) if len(first) else False
    return inside


def whole_moment(trace: Trace, moments: Times) -> int | None:
    """Return the first of some quiet moments that cuts no sequence of operations; None if those tried all do.

    Rules look at loops of tiny operations, and at chains of kernels that can be fused. Of chains, parts see NEIGHBOURS
    operations of each device on each side of a border.
    """
    outside = moments[~_are_in_storms(trace, moments)]
    each = _device_kernels(trace) if len(outside) else []
    place = 0
    while place < len(outside):
        moment = int(outside[place])
        if all(_reach_is_enough(*kernels, moment) for kernels in each):
            return moment
        place = max(place + 1, int(place * TRIED_STEP))
    return None


def _device_kernels(trace: Trace) -> list[tuple[Times, KernelSequence]]:
    """Return the starts of each device's operations, and its compute kernels."""
    start, device = (trace.operations[name].to_numpy() for name in ("start", "device"))
    rows = [np.flatnonzero(device == row) for row in np.unique(device).tolist()]
    return [(start[own], KernelSequence.from_rows(trace, int(device[own[0]]), own)) for own in rows]


def _reach_is_enough(start: Times, kernels: KernelSequence, moment: int) -> bool:
    """Return whether changes affect the same kernels where a part sees only NEIGHBOURS operations beyond a border."""
    border = int(np.searchsorted(start, moment))
    low, middle, high = np.searchsorted(kernels.places, (border - NEIGHBOURS, border, border + NEIGHBOURS)).tolist()
    before, after = kernels.inside(slice(0, high)), kernels.inside(slice(low, len(kernels.ns)))
    return all(
        _are_equal(speedup.candidates(kernels, slice(0, middle)), speedup.candidates(before, slice(0, middle)))
        and _are_equal(
            speedup.candidates(kernels, slice(middle, len(kernels.ns))),
            speedup.candidates(after, slice(middle - low, len(after.ns))),
        )
        for speedup in FINDABLE
    )


def _are_equal(candidates: Candidates, others: Candidates) -> bool:
    """Return whether a change affects the same kernels in the same way."""
    (place, labels, left), (other, own, rest) = (
        (each.kernels.places[each.rows], each.labels, each.left) for each in (candidates, others)
    )
    same_left = rest is None if left is None else rest is not None and np.array_equal(left, rest)
    return np.array_equal(place, other) and np.array_equal(labels, own) and same_left


def _targets(source: PartSource, count: int) -> list[int]:
    """Return the moments at which equal numbers of the capture's events have begun, about, without the first."""
    parts = [survey.parts for name, survey in source.surveys.items() if name in TIMED_TABLES and survey.rows]
    moments = np.unique(np.concatenate([part[name].to_numpy() for part in parts for name in ("first", "last")]))
    begun = np.zeros(len(moments))
    for part in parts:
        rows = part["rows"].to_numpy()
        before = np.cumsum(rows) - rows
        times = np.maximum.accumulate(part.select("first", "last").to_numpy().ravel())
        begun += np.interp(moments, times, np.stack([before, before + rows], 1).ravel())
    wanted = np.arange(1, count) * begun[-1] / count
    return sorted(set(np.interp(wanted, begun, moments).astype(np.int64).tolist()))


def _quiet_moment(source: PartSource, stretch: tuple[int, int]) -> int | None:
    """Return a quiet moment of a stretch of time [target, limit) that cuts no sequence (see whole_moment), or None.

    It lies after the first GPU work, because rules look at the host only in parts with GPU work. Where a sequence is
    so long that parts could need too much memory, the first quiet moment cuts it.
    """
    work, limit = source.whole.work, stretch[1]
    target = max(stretch[0], work.start + 1)
    around = work.length * NEAR_EVENTS // source.events + 1
    farthest = around * FARTHEST
    end = min(limit, work.end)
    while True:
        trace = source.trace(Window(target - around, target + 2 * around))
        moments = quiet_moments(trace)
        moments = moments[(moments >= target) & (moments < min(end, target + around))]
        if (chosen := whole_moment(trace, moments)) is not None:
            return chosen
        if target + around >= end:
            return None
        if len(moments) and around > farthest:
            return int(moments[0])
        around *= WIDER


MAX_PROCESSES = 16
MIN_BYTES_FOR_PROCESSES = 50_000_000  # processes take longer to start than they save for a smaller file


class LimitedCapture(NamedTuple):
    """A capture that is analyzed within `memory` bytes; `folder` gets what is kept of it on disk.

    `workers` are the processes that measure it; None for this process.
    """

    source: PartSource
    memory: int
    folder: Path
    workers: Processes | None = None

    @classmethod
    def open(cls, path: Path, memory: int, folder: Path, workers: Processes | None = None) -> LimitedCapture | str:
        """Survey a capture; return the reason instead if it cannot be cut. Raises ReportError."""
        if not is_sqlite(path):
            return "only SQLite exports are read in parts"
        # A compact copy, a quarter of the file, is read in a third of the time.
        store = folder if shutil.disk_usage(folder).free > path.stat().st_size else None
        try:
            return cls(PartSource.open(path, store=store, workers=workers), memory, folder, workers)
        except NotInPartsError as error:
            return str(error)

    def window(self, start: str | None, end: str | None, range_name: str | None) -> Window | None:
        """Return the window that --from, --to or --range choose; None for the complete capture. Raises RequestError."""
        if range_name is not None:
            return window_of_range(self.source.resident, range_name)
        return window_between(self.work, start, end)

    @property
    def work(self) -> Window:
        """The time from the first start to the last end of GPU work."""
        return self.source.whole.work

    def part(self, window: Window) -> Trace:
        """Return the trace of a window. Raises RequestError if it does not fit into memory."""
        share = min(window.length / max(self.work.length, 1), 1.0)
        if self.source.events * share * BYTES_PER_EVENT > self.memory:
            raise RequestError(
                f"{self.source.resident.info.file}: the chosen window does not fit into memory; choose a shorter one, "
                "or give more --memory"
            )
        trace = self.source.trace(window)
        note = Note(
            "window_alone",
            "The capture is larger than the memory to use: iterations and the kind of the program are those of the "
            "chosen window.",
            affects=("iterations",),
        )
        return replace(trace, info=replace(trace.info, health=(*trace.info.health, note)))

    def runner(self) -> PartRunner:
        """Return the parts of the capture."""
        source, memory, processes = self.source, self.memory, 1
        if self.workers:
            self.workers.limit(processes := fitting_processes(source, memory, self.workers.count))
        windows = plan_parts(source, part_count(source, memory, processes), self.workers)
        kept = keepable_bytes(source, len(windows), memory, processes)
        return PartRunner(source, windows, kept // min(processes, len(windows)), self.folder)

    def analyze(self, options: AnalysisOptions, *, page: bool) -> AnalyzedCapture:
        """Analyze the capture in parts; the errors are those of pipeline.analyze. `page` is true if it gets a page."""
        source, runner = self.source, self.runner()
        return analyze_parts(
            ProcessRunner(runner, self.workers) if self.workers else runner,
            source.resident,
            Extents(*source.extents).select(source.resident, options.device),
            options,
            folder=self.folder if page else None,
            trace_of=source.trace,
        )


def worker_processes(path: Path, memory: int) -> AbstractContextManager[Processes | None]:
    """Return the processes that measure a capture; None for a small one, which this process measures."""
    cores = min(os.cpu_count() or 1, MAX_PROCESSES, memory // MIN_MEMORY)
    if cores < 2 or not is_sqlite(path) or path.stat().st_size < MIN_BYTES_FOR_PROCESSES:
        return nullcontext()
    return Processes(cores, __name__)  # they import this module while this process reads the small tables
