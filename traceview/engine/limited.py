"""The analysis of a capture within a limit of memory: in parts if the complete capture does not fit."""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from traceview.engine.measure import Extents
from traceview.engine.memory import MIN_MEMORY, is_sqlite
from traceview.engine.plan import BYTES_PER_EVENT, fitting_processes, keepable_bytes, part_count, plan_parts
from traceview.engine.run import AnalysisOptions, AnalyzedCapture, analyze_parts
from traceview.engine.runner import PartRunner, ProcessRunner
from traceview.engine.survey import NotInPartsError
from traceview.engine.traces import PartSource
from traceview.errors import RequestError
from traceview.measure.activity import window_of_range
from traceview.model.times import window_between
from traceview.model.trace import Note, Trace, Window
from traceview.workers.processes import Processes

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
