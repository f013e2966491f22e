"""The iterations of a complete trace, measured at once: what a capture in parts is compared with."""

from __future__ import annotations

from traceview.measure.activity import device_activity
from traceview.measure.gaps import ThreadStates, device_gaps, find_idle_gaps
from traceview.measure.iterations import (
    LaunchSource,
    build_iterations,
    busiest_first,
    choose_iterations,
    gpu_times,
    with_last_work,
)
from traceview.measure.iterations.candidates import LaunchSums
from traceview.measure.iterations.launches import launch_sequence
from traceview.measure.iterations.times import IterationLaunches, MeasuredDevices, breakdown, end_of_launches
from traceview.measure.nvtx import project_operations
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.trace import Trace


def measured_devices(trace: Trace, threads: ThreadStates) -> MeasuredDevices:
    """Measure every device of a trace."""
    rows = range(len(trace.devices))
    activities = [work for row in rows if (work := device_activity(trace, row)) is not None]
    gaps = {work.device: device_gaps(trace, find_idle_gaps(trace, threads, work)) for work in activities}
    return MeasuredDevices(activities, gaps)


def measure_iterations(
    trace: Trace,
    threads: ThreadStates,
    measured: MeasuredDevices | None = None,
    *,
    pattern: str | None = None,
    skip: int | None = None,
) -> Iterations | NotMeasured:
    """Measure every iteration. `measured` has the devices that count, all by default."""
    measured = measured or measured_devices(trace, threads)
    devices, operations = measured.devices, trace.operations
    launches = LaunchSource(
        known=operations["launch"].null_count() < len(operations),
        sums=lambda: LaunchSums.from_trace(trace, project_operations(trace)),
        processes=lambda: busiest_first(gpu_times(trace, devices)),
        sequence=lambda process: launch_sequence(trace, process),
    )
    where = choose_iterations(trace, devices, launches, pattern=pattern, skip=skip)
    if isinstance(where, NotMeasured):
        return where
    until = end_of_launches(where.start, where.end)
    where, work = with_last_work(where, IterationLaunches.from_trace(trace, where.process, where.start, until, devices))
    return build_iterations(where, breakdown(trace, threads, measured, where.process, where.start, where.end), work)
