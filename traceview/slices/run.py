"""The measures of a capture in slices, one after another or in worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any, Protocol

import numpy as np

from traceview.frozen import frozen
from traceview.measure.iterations import FIGURES, IterationRanges, build_iterations
from traceview.measure.iterations.breakdown import Breakdown
from traceview.model.analysis import Analysis, Iterations, NotMeasured
from traceview.model.columns import Table
from traceview.model.devices import CAUSES
from traceview.model.trace import Trace, Window
from traceview.slices.iterations import OverSlices, Result, find_iterations_in_slices, merge_iteration_parts
from traceview.slices.measure import EVERYTHING, Extents, SlicePlan, measure_slice
from traceview.slices.merge import merge_slices

THREADS = "POLARS_MAX_THREADS"


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


def in_this_process(source: CaptureSource, windows: Sequence[Window]) -> OverSlices:
    """Return a runner that measures one slice after another."""

    def over_slices(function: Callable[[Trace], Result]) -> Iterable[Result]:
        return (function(source.trace(window)) for window in windows)

    return over_slices


@contextmanager
def in_processes(source: CaptureSource, windows: Sequence[Window], workers: int) -> Iterator[OverSlices]:
    """Run functions over slices in `workers` processes, each of which holds one slice at a time.

    `source` is sent to each process once, a function and its result for each slice. The processes are new ones, not
    copies of this one, whose threads may hold locks.
    """
    threads = os.environ.get(THREADS)
    os.environ[THREADS] = str(max((os.cpu_count() or 1) // workers, 1))
    with ProcessPoolExecutor(workers, get_context("spawn"), _keep_source, (source,)) as pool:

        def over_slices(function: Callable[[Trace], Result]) -> Iterable[Result]:
            return pool.map(partial(_apply, function), windows)

        try:
            yield over_slices
        finally:
            os.environ.pop(THREADS)
            if threads is not None:
                os.environ[THREADS] = threads


_source: CaptureSource | None = None


def _keep_source(source: CaptureSource) -> None:
    """Keep the source of a worker process."""
    global _source
    _source = source


def _apply(function: Callable[[Trace], Any], window: Window) -> Any:
    assert _source is not None, "the process has a source"
    return function(_source.trace(window))


def measure_slices(
    resident: Trace,
    over_slices: OverSlices,
    extents: Extents,
    *,
    iteration: str | None = None,
    skip: int | None = None,
    top: int = 10,
    whole: bool = False,
    flops_per_iteration: int | None = None,
) -> tuple[Analysis, dict[str, Table]]:
    """Return the analysis of a capture without findings and notes, and its tables.

    `resident` has the small tables of the capture and the user's window; `extents` has the measured devices. The other
    parameters are those of `analyze`.
    """
    devices = sorted(extents.devices)
    found = find_iterations_in_slices(resident, devices, over_slices, pattern=iteration, skip=skip)
    where, finish = (None, None) if isinstance(found, NotMeasured) else found
    empty = found if isinstance(found, NotMeasured) else build_iterations(found[0], _no_figures(found[0]), found[1])
    plan = SlicePlan(resident.window or EVERYTHING, extents, where, empty, top, whole, flops_per_iteration)
    results = list(over_slices(partial(measure_slice, plan=plan)))
    iterations: Iterations | NotMeasured = empty
    if where is not None:
        parts = [result.iterations for result in results if result.iterations is not None]
        iterations = build_iterations(where, merge_iteration_parts(where, parts), finish)
    return merge_slices(resident, plan, iterations, results)


def _no_figures(where: IterationRanges) -> Breakdown:
    none = np.zeros(len(where.start), np.int64)
    names = (name for name in FIGURES if name not in ("wall_ns", "idle_ns"))
    return Breakdown(dict.fromkeys((*names, "kernel_count"), none), np.zeros((len(CAUSES), len(none)), np.int64))
