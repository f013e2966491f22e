"""The model of a capture: the time without the profiler, and the changes that predictions rest on.

Models look at a stretch of a large capture. A trace of a few hundred thousand operations around some iterations gives
about the same model as the capture; rates of copies and the speed of the host are those of the stretch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.model.analysis import Analysis, Iterations
from traceview.model.sizes import WorkSizes
from traceview.model.trace import Trace, Window
from traceview.pipeline.measure import TraceWork
from traceview.replay.constants import MAX_MODELLED
from traceview.replay.prediction import Changes, changes_of_run
from traceview.replay.select import MAX_RUN, LaunchedWork
from traceview.replay.unprofiled import estimate_unprofiled, with_unprofiled


def modelled_stretch(analysis: Analysis) -> Analysis | None:
    """Return the analysis of a stretch of complete iterations, or of a short run without iterations.

    Return None for a long one.
    """
    iterations, trace = analysis.iterations, analysis.trace
    if not isinstance(iterations, Iterations):
        short = sum(device.kernel_count for device in analysis.devices) <= MAX_RUN
        return analysis if short and analysis.devices else None
    each = iterations.per_iteration
    first, last = _middle_iterations(iterations)
    if last - first == len(each):
        trace = replace(trace, window=None)
    else:
        lag = max(iterations.steady.end - max(iteration.end_ns for iteration in each), 0)
        window = Window(each[max(first - 1, 0)].start_ns, each[min(last, len(each) - 1)].end_ns + lag)
        trace = _work_in(trace, window)
    return replace(
        analysis,
        trace=trace,
        iterations=replace(
            iterations,
            per_iteration=each[first:last],
            count=last - first,
            skipped=max(iterations.skipped - first, 0),
        ),
    )


def _work_in(trace: Trace, window: Window) -> Trace:
    """Return the trace of the work that starts in a window, and of the calls from its first launch to the window's end.

    It lacks what refers to other rows of operations, which no model needs.
    """
    first, stop = np.searchsorted(trace.operations["start"].to_numpy(), (window.start, window.end)).tolist()
    operations, calls = trace.operations[first:stop], trace.api["start"].to_numpy()
    begin = calls[operations["launch"].drop_nulls().to_numpy()].min(initial=window.start)
    low, high = np.searchsorted(calls, (begin, window.end)).tolist()
    moved = pl.col("launch") - low
    launch = pl.when(pl.col("launch") < high).then(moved).alias("launch")
    events = trace.stream_events.filter(pl.col("launch").is_between(low, high, closed="left"))
    return replace(
        trace,
        operations=operations.with_columns(launch),
        api=trace.api[low:high],
        stream_events=events.with_columns(moved),
        sizes=WorkSizes(),
        captures=trace.captures.clear(),
        lost=trace.lost.clear(),
        window=None,
    )


def _middle_iterations(iterations: Iterations) -> tuple[int, int]:
    """Return the first and one past the last of the iterations to model: all, or MAX_MODELLED kernels in the middle."""
    kernels = np.array([iteration.kernel_count for iteration in iterations.per_iteration])
    count = len(kernels)
    if kernels.sum() <= MAX_MODELLED:
        return 0, count
    middle = (iterations.skipped + count) // 2
    typical = max(int(np.median(kernels[iterations.skipped :])), 1)
    half = max(MAX_MODELLED // typical // 2, 1)
    return max(middle - half, min(iterations.skipped, middle)), min(middle + half, count)


class AnalyzedCapture(NamedTuple):
    """An analysis, and what a page needs of the capture (pipeline/page.py).

    `changes` are those of its model. `other_window` returns the analysis of the window instead of the steady part, or
    the reverse; None if they are the same.
    """

    analysis: Analysis
    changes: Changes | None
    work: TraceWork
    other_window: Callable[[], Analysis | None]


class Modelled(NamedTuple):
    """The analysis of a capture with the time without the profiler, and the changes of its modelled stretch."""

    analysis: Analysis
    changes: Changes | None


def model_capture(analysis: Analysis) -> Modelled:
    """Return the model of a capture before its findings are known.

    It has no changes if nothing can be modelled, nor where no launch has its work in the capture.
    """
    stretch, costs = modelled_stretch(analysis), analysis.options.costs
    if stretch is None or analysis.info.trust.lost_everything:
        return Modelled(analysis, None)
    work = LaunchedWork.from_analysis(stretch)
    if costs is not None:
        time, notes = estimate_unprofiled(stretch, costs, analysis.options.unprofiled_ns, work)
        analysis, stretch = with_unprofiled(analysis, time, notes), with_unprofiled(stretch, time)
    return Modelled(analysis, changes_of_run(stretch, work))
