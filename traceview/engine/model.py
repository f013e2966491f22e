"""The part of a large capture from which an iteration is modelled, in memory as in parts.

The time without the profiler and predictions rest on some iterations. A trace of a few hundred thousand operations
around them gives about the same model as the capture; rates of copies and the speed of the host are those of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.measure.activity import device_activity
from traceview.measure.gaps import ThreadStates, device_gaps, find_idle_gaps
from traceview.model.analysis import Analysis, Iterations
from traceview.model.devices import DeviceUse
from traceview.model.findings import Finding
from traceview.model.sizes import WorkSizes
from traceview.model.trace import EVERYTHING, Trace, Window
from traceview.model.unprofiled import ProfilerCosts
from traceview.whatif.constants import MAX_MODELLED
from traceview.whatif.outcome import RunModel
from traceview.whatif.prediction import model_of_run, with_predictions
from traceview.whatif.unprofiled import with_profiler_part, with_unprofiled_time


def modelled_part(analysis: Analysis, trace_of: Callable[[Window], Trace]) -> Analysis | None:
    """Return the analysis of a part of the capture with complete iterations; None without iterations.

    `analysis` has the figures of the capture. `trace_of` returns the trace of a time window, or a longer one.
    """
    iterations = analysis.iterations
    if not isinstance(iterations, Iterations):
        return None
    each = iterations.per_iteration
    first, last = _middle_iterations(iterations)
    window = analysis.trace.window or EVERYTHING
    if last - first == len(each):
        trace = replace(trace_of(window), window=None)
    else:
        lag = max(iterations.steady.end - max(iteration.end_ns for iteration in each), 0)
        window = Window(each[max(first - 1, 0)].start_ns, each[min(last, len(each) - 1)].end_ns + lag)
        trace = _work_in(trace_of(window), window)
    threads = ThreadStates.from_trace(trace)
    return replace(
        analysis,
        trace=trace,
        devices=tuple(_with_gaps_of(trace, threads, use) for use in analysis.devices),
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


def _with_gaps_of(trace: Trace, threads: ThreadStates, use: DeviceUse) -> DeviceUse:
    """Return a device with the gaps that it has in a trace."""
    work = device_activity(trace, use.device)
    if work is None:
        return use
    frame = device_gaps(trace, find_idle_gaps(trace, threads, work)).frame
    return replace(use, gaps=replace(use.gaps, frame=frame))


def with_unprofiled_part(
    analysis: Analysis, part: Analysis, costs: ProfilerCosts, given_ns: int | None = None
) -> tuple[Analysis, Analysis]:
    """Return the analyses of a capture and of its modelled part with the time without the profiler.

    `costs` and `given_ns` are those of with_unprofiled_time.
    """
    iterations = analysis.iterations
    assert isinstance(iterations, Iterations), "a part is modelled from iterations"
    part = with_unprofiled_time(part, costs, given_ns)
    time = part.iterations.unprofiled if isinstance(part.iterations, Iterations) else None
    shares = {} if time is None else time.shares
    new = tuple(note for note in part.notes if note not in analysis.notes)
    devices = tuple(with_profiler_part(device, shares.get(device.device)) for device in analysis.devices)
    whole = replace(
        analysis,
        iterations=replace(iterations, unprofiled=time),
        devices=devices if time is not None and time.shares else analysis.devices,
        notes=(*analysis.notes, *new),
    )
    return whole, part


class Modelled(NamedTuple):
    """The analysis of a capture with the time without the profiler, its modelled part, and the model of that part."""

    analysis: Analysis
    part: Analysis | None
    model: RunModel | None

    def with_predictions(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return the findings with what the remedies of the first ones would give."""
        if self.part is None:
            return tuple(findings)
        return with_predictions(replace(self.part, findings=tuple(findings)), self.model).findings


def model_capture(
    analysis: Analysis,
    trace_of: Callable[[Window], Trace] | None,
    costs: ProfilerCosts | None,
    given_ns: int | None = None,
) -> Modelled:
    """Return the model of a capture before its findings are known; it is empty if `trace_of` is None.

    The parameters are those of modelled_part and with_unprofiled_time; `costs` may be None.
    """
    part = None if trace_of is None else modelled_part(analysis, trace_of)
    if part is not None and costs is not None:
        analysis, part = with_unprofiled_part(analysis, part, costs, given_ns)
    return Modelled(analysis, part, None if part is None else model_of_run(part))
