"""The iterations of a trace that is one part, without the other measures."""

from __future__ import annotations

from traceview.engine.iterations import find_iterations_in_parts, measure_iteration_part, merge_iteration_parts
from traceview.engine.part import PartTrace
from traceview.measure.activity import active_devices
from traceview.measure.gaps import device_gaps, find_idle_gaps
from traceview.measure.iterations import build_iterations
from traceview.measure.iterations.times import MeasuredDevices
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.trace import EVERYTHING, Trace


def measure_iterations(
    trace: Trace, pattern: str | None = None, skip: int | None = None, device: int | None = None
) -> Iterations | NotMeasured:
    """Measure every iteration, with the work of all devices or of one (row of Trace.devices)."""
    part = PartTrace(trace.with_window(trace.window or EVERYTHING))
    activities = [work for work in active_devices(trace) if device in (None, work.device)]
    devices = [work.device for work in activities]
    found, _ = find_iterations_in_parts(trace, devices, lambda use: map(use, [part]), pattern=pattern, skip=skip)
    if isinstance(found, NotMeasured):
        return found
    where, work = found
    gaps = {work.device: device_gaps(trace, find_idle_gaps(trace, part.threads, work)) for work in activities}
    measured = measure_iteration_part(part.trace, part.threads, MeasuredDevices(activities, gaps), devices, where)
    return build_iterations(where, merge_iteration_parts(where, [measured]), work)
