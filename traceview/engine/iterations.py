"""Finds the iterations of a capture, and measures the parts of the time of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from traceview.measure.iterations import (
    IterationRanges,
    LaunchSource,
    busiest_first,
    choose_iterations,
    gpu_times,
    with_last_work,
)
from traceview.measure.iterations.candidates import LaunchSums
from traceview.measure.iterations.launches import launch_sequence
from traceview.measure.iterations.times import IterationLaunches, end_of_launches
from traceview.measure.nvtx import Projection, project_operations
from traceview.model.analysis import NotMeasured
from traceview.model.trace import Trace


class LocatedIterations(NamedTuple):
    """Where the iterations are, and what they launch."""

    where: IterationRanges
    work: IterationLaunches


def locate_iterations(
    trace: Trace,
    devices: Sequence[int],
    projection: Projection | None = None,
    pattern: str | None = None,
    skip: int | None = None,
) -> LocatedIterations | NotMeasured:
    """Return where the iterations are, and what they launch, or why there are none.

    `devices` are the measured ones, rows of Trace.devices. `projection` is that of the trace, if it is known. What
    ranges launch outside the window counts, too. The other parameters and errors are those of choose_iterations.
    """
    whole = trace if trace.window is None else replace(trace, window=None)
    launches = LaunchSource(
        known=whole.operations["launch"].null_count() < len(whole.operations),
        sums=lambda: LaunchSums.from_trace(whole, projection or project_operations(whole)),
        processes=lambda: busiest_first(gpu_times(whole, devices)),
        sequence=lambda process: launch_sequence(whole, process),
    )
    where = choose_iterations(trace, devices, launches, pattern=pattern, skip=skip)
    if isinstance(where, NotMeasured):
        return where
    until = end_of_launches(where.start, where.end)
    work = IterationLaunches.from_trace(whole, where.process, where.start, until, devices)
    return LocatedIterations(*with_last_work(where, work))
