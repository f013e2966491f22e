"""The measures of a capture in slices, one after another or in worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

import numpy as np

from traceview.errors import RequestError
from traceview.frozen import frozen
from traceview.measure.charts.iterations import iteration_bars
from traceview.measure.iterations import IterationRanges
from traceview.measure.iterations.breakdown import Breakdown
from traceview.measure.iterations.figures import FIGURES, build_iterations
from traceview.measure.notes import with_tables
from traceview.model.analysis import Analysis, Iterations, NotMeasured
from traceview.model.charts import Charts
from traceview.model.devices import CAUSES
from traceview.model.trace import Note, Trace, Window
from traceview.model.unprofiled import ProfilerCosts
from traceview.rules.answer import with_answer
from traceview.slices.findings import findings_of_slices
from traceview.slices.iterations import Result, find_iterations_in_slices, merge_iteration_parts
from traceview.slices.measure import EVERYTHING, Extents, SlicePlan, measure_slice
from traceview.slices.merge import merge_slices
from traceview.slices.model import modelled_part, with_predicted_findings, with_unprofiled_part
from traceview.slices.timeline import merged_projection, stored_source

THREADS = "POLARS_MAX_THREADS"
NO_CHARTS = Note(
    "no_charts",
    "The page lacks the charts and tables of single kernels, gaps, copies and stacks, because the capture was analyzed "
    "in slices. `--from` and `--to` choose a part that has them.",
    affects=("charts",),
)


class CaptureSource(Protocol):
    """A capture of which the trace of any time window can be had."""

    @property
    def resident(self) -> Trace:
        """The small tables of the trace."""

    def trace(self, window: Window) -> Trace:
        """Return the trace of a window."""


@frozen
class TraceInMemory:
    """A complete trace as the source of slices."""

    complete: Trace

    @property
    def resident(self) -> Trace:
        """The trace without operations and calls."""
        return replace(self.complete, operations=self.complete.operations.clear(), api=self.complete.api.clear())

    def trace(self, window: Window) -> Trace:
        """Return the complete trace with this window."""
        return self.complete.with_window(window)


class SliceRunner:
    """Runs functions of a slice's trace in this process, one slice after another.

    Traces are kept for the next function while they take at most `keep_bytes` together; others are read again.
    """

    def __init__(self, source: CaptureSource, windows: Sequence[Window], keep_bytes: int = 0) -> None:
        """Prepare the slices of a capture; `windows` adjoin, in the order of time."""
        self.source, self.windows, self.keep_bytes = source, windows, keep_bytes
        self.kept: dict[int, Trace] = {}

    def over_slices(self, function: Callable[[Trace], Result]) -> Iterator[Result]:
        """Yield the results for all slices in the order of time."""
        return (self.in_slice(number, function) for number in range(len(self.windows)))

    def in_slice(self, number: int, function: Callable[[Trace], Result]) -> Result:
        """Return the result for one slice."""
        trace = self.kept.get(number)
        if trace is None:
            trace = self.source.trace(self.windows[number])
            self.keep_bytes -= (size := _size(trace))
            if self.keep_bytes >= 0:
                self.kept[number] = trace
            else:
                self.keep_bytes += size
        return function(trace)


def _size(trace: Trace) -> int:
    """Return the bytes of the frames of a trace that grow with its window."""
    return int(trace.operations.estimated_size() + trace.api.estimated_size() + trace.stream_events.estimated_size())


class ProcessRunner:
    """Runs functions of a slice's trace in worker processes. Each process has slices of its own.

    The processes get `runner` once, and a function for each slice; results are sent back. They are new processes, not
    copies of this one, whose threads may hold locks.
    """

    def __init__(self, runner: SliceRunner, workers: int) -> None:
        """Prepare `workers` processes; `runner` has the slices, and the bytes that each process may keep."""
        self.count, context = len(runner.windows), get_context("spawn")
        self.pools = [ProcessPoolExecutor(1, context, _keep_runner, (runner,)) for _ in range(workers)]

    def __enter__(self) -> ProcessRunner:
        # New processes inherit it. The processes share the processors.
        self.threads = os.environ.get(THREADS)
        os.environ[THREADS] = str(max((os.cpu_count() or 1) // len(self.pools), 1))
        return self

    def __exit__(self, *_error: object) -> None:
        os.environ.pop(THREADS)
        if self.threads is not None:
            os.environ[THREADS] = self.threads
        for pool in self.pools:
            pool.shutdown(cancel_futures=True)

    def over_slices(self, function: Callable[[Trace], Result]) -> Iterator[Result]:
        """Yield the results for all slices in the order of time. All slices begin at once."""
        futures = [self._submit(number, function) for number in range(self.count)]
        return (_result(future) for future in futures)

    def in_slice(self, number: int, function: Callable[[Trace], Result]) -> Result:
        """Return the result for one slice."""
        return _result(self._submit(number, function))

    def _submit(self, number: int, function: Callable[[Trace], Result]) -> Future[Result]:
        # A slice stays with one process, which may have kept its trace.
        return self.pools[number % len(self.pools)].submit(_run_in_worker, number, function)


def _result(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool:
        raise RequestError("a process that measures slices died, probably out of memory; use less --memory") from None


_runner: SliceRunner | None = None


def _keep_runner(runner: SliceRunner) -> None:
    """Keep the slices in a worker process."""
    global _runner
    _runner = runner


def _run_in_worker(number: int, function: Callable[[Trace], Result]) -> Result:
    assert _runner is not None, "the process has slices"
    return _runner.in_slice(number, function)


def analyze_slices(
    runner: SliceRunner | ProcessRunner,
    resident: Trace,
    extents: Extents,
    *,
    iteration: str | None = None,
    skip: int | None = None,
    top: int = 10,
    whole: bool = False,
    flops_per_iteration: int | None = None,
    folder: Path | None = None,
    costs: ProfilerCosts | None = None,
    unprofiled_ns: int | None = None,
    trace_of: Callable[[Window], Trace] | None = None,
) -> Analysis:
    """Analyze a capture in slices. The figures are those of pipeline.analyze.

    `resident` has the small tables of the capture and the user's window; `extents` has the measured devices. `folder`
    gets the events of the timeline: the analysis can have a page as long as it exists. `trace_of` returns the trace of
    a window; without it nothing is predicted and the time without the profiler is unknown. The other parameters and
    the errors are those of `analyze`.
    """
    over_slices = runner.over_slices
    devices = sorted(extents.devices)
    located = find_iterations_in_slices(resident, devices, over_slices, pattern=iteration, skip=skip)
    where, finish = (None, None) if isinstance(located, NotMeasured) else located
    empty = (
        located
        if isinstance(located, NotMeasured)
        else build_iterations(located[0], _no_figures(located[0]), located[1])
    )
    plan = SlicePlan(resident.window or EVERYTHING, extents, where, empty, top, whole, flops_per_iteration, folder)
    results = list(over_slices(partial(measure_slice, plan=plan)))
    iterations: Iterations | NotMeasured = empty
    if where is not None:
        parts = [result.iterations for result in results if result.iterations is not None]
        iterations = build_iterations(where, merge_iteration_parts(where, parts), finish)
    analysis = with_tables(*merge_slices(resident, plan, iterations, results))
    part = None if trace_of is None else modelled_part(analysis, trace_of)
    if part is not None and costs is not None:
        analysis, part = with_unprofiled_part(analysis, part, costs, unprofiled_ns)
    findings, notes = findings_of_slices(analysis, over_slices, runner.in_slice)
    if part is not None:
        findings = with_predicted_findings(findings, part)
    analysis = with_answer(replace(analysis, findings=findings, notes=(*analysis.notes, *notes)))
    if folder is None:
        return analysis
    marks = [result.marks for result in results if result.marks is not None]
    projected = partial(merged_projection, marks)
    return replace(
        analysis,
        events=stored_source(resident, marks, folder),
        projected=projected,
        charts=partial(_charts, iterations),
        notes=(*analysis.notes, NO_CHARTS),
    )


def _charts(iterations: Iterations | NotMeasured) -> Charts:
    """Return the charts that need no event of the capture: the bars of iterations."""
    each = () if isinstance(iterations, NotMeasured) else iterations.per_iteration
    return Charts(iterations=iteration_bars(each))


def _no_figures(where: IterationRanges) -> Breakdown:
    none = np.zeros(len(where.start), np.int64)
    names = (name for name in FIGURES if name not in ("wall_ns", "idle_ns"))
    return Breakdown(dict.fromkeys((*names, "kernel_count"), none), np.zeros((len(CAUSES), len(none)), np.int64))
