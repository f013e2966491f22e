"""The iterations of a trace, without the other measures."""

from __future__ import annotations

from traceview.measure.activity import active_devices
from traceview.measure.gaps import ThreadStates, device_gaps
from traceview.measure.iterations import build_iterations, locate_iterations
from traceview.measure.iterations.times import MeasuredDevices, breakdown
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.trace import Trace


def measure_iterations(
    trace: Trace, pattern: str | None = None, skip: int | None = None, device: int | None = None
) -> Iterations | NotMeasured:
    """Measure every iteration, with the work of all devices or of one (row of Trace.devices)."""
    activities = [work for work in active_devices(trace) if device in (None, work.device)]
    located = locate_iterations(trace, [work.device for work in activities], pattern=pattern, skip=skip)
    if isinstance(located, NotMeasured):
        return located
    where = located.where
    threads = ThreadStates.from_trace(trace)
    gaps = {work.device: device_gaps(trace, threads, work) for work in activities}
    measured = MeasuredDevices(activities, gaps)
    return build_iterations(located, breakdown(trace, threads, measured, where.process, where.start, where.end))
