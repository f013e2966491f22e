"""Measures a capture: its devices, host, iterations and tables, as an analysis without findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from traceview.measure import all_measures
from traceview.measure.activity import Activity, active_devices
from traceview.measure.base import CaptureInput, fill_tables
from traceview.measure.devices import (
    count_unmatched,
    measure_device,
    steady_window,
    with_longest_gaps,
    with_steady_part,
)
from traceview.measure.gaps import ThreadStates
from traceview.measure.host import HostIdle, with_host_states
from traceview.measure.iterations import LocatedIterations, build_iterations, locate_iterations
from traceview.measure.iterations.times import MeasuredDevices, breakdown
from traceview.measure.notes import capture_notes
from traceview.measure.nvtx import Projection, project_operations
from traceview.measure.places import Places, locate_operations
from traceview.measure.run import calls_time, run_time
from traceview.measure.sync import measure_host
from traceview.model.analysis import Analysis, AnalysisOptions, DeviceUse, Iterations, NotMeasured
from traceview.model.trace import Trace


@dataclass(frozen=True)
class TraceWork:
    """The trace of a capture, the work of its measured devices, and what several measures derive from them."""

    trace: Trace
    activities: tuple[Activity, ...]

    @classmethod
    def from_trace(cls, trace: Trace, device: str | None = None) -> TraceWork:
        """Collect the work of all devices, or of the one that `device` names (see active_devices, also for errors)."""
        return cls(trace, active_devices(trace, device))

    @cached_property
    def projection(self) -> Projection:
        """The NVTX ranges of each operation."""
        return project_operations(self.trace)

    @cached_property
    def places(self) -> Places:
        """The place in the program that launches each operation."""
        return locate_operations(self.trace, self.projection)

    @cached_property
    def threads(self) -> ThreadStates:
        """What each host thread does."""
        return ThreadStates.from_trace(self.trace)

    @cached_property
    def host_idle(self) -> HostIdle | None:
        """What the host does while devices are idle; None if nothing shows it."""
        return HostIdle.build(self.trace, self.threads) if self.trace.evidence.shows_idle_host else None


def measure_capture(capture: TraceWork, options: AnalysisOptions) -> Analysis:
    """Return the analysis of a capture without findings, the time without the profiler and an answer."""
    trace, activities = capture.trace, capture.activities
    rows = sorted(work.device for work in activities)
    located = locate_iterations(trace, rows, capture.projection, options.iteration, options.skip)
    devices = tuple(measure_device(trace, capture.threads, work, capture.places) for work in activities)
    iterations = _iterations(capture, devices, located)
    measured = partial(_with_steady_part, capture, iterations, options.top)
    devices = tuple(map(measured, devices, activities))
    host = measure_host(trace, activities)
    given = CaptureInput(
        trace,
        host,
        capture.projection,
        devices,
        iterations,
        options.flops_per_iteration,
        options.whole,
        capture.host_idle,
    )
    tables = fill_tables(all_measures(), given, "capture")
    unmatched = count_unmatched(trace)
    calls = calls_time(trace) if trace.window is None else None
    return Analysis(
        info=trace.info,
        trace=trace,
        devices=devices,
        host=host,
        tables=tables,
        notes=tuple(capture_notes(trace, devices, tables, iterations, unmatched)),
        iterations=iterations,
        unmatched=unmatched,
        whole=options.whole,
        run=run_time([work.window for work in activities], calls),
        options=options,
    )


def _iterations(
    capture: TraceWork, devices: Sequence[DeviceUse], located: LocatedIterations | NotMeasured
) -> Iterations | NotMeasured:
    if isinstance(located, NotMeasured):
        return located
    where, work = located
    measured = MeasuredDevices(capture.activities, {device.device: device.gaps for device in devices})
    figures = breakdown(capture.trace, capture.threads, measured, where.process, where.start, where.end)
    return build_iterations(where, figures, work)


def _with_steady_part(
    capture: TraceWork, iterations: Iterations | NotMeasured, top: int, device: DeviceUse, work: Activity
) -> DeviceUse:
    """Return a device with its steady part, the states of the host in its idle time, and its longest gaps."""
    steady = work.clip(steady_window(iterations, work.window))
    device = with_steady_part(capture.trace, capture.threads, device, steady, capture.places)
    return with_longest_gaps(capture.trace, with_host_states(capture.host_idle, device), top)
