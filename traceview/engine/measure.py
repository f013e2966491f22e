"""Measures a capture: its devices, host, iterations and tables, as an analysis without findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

from traceview.measure import all_measures
from traceview.measure.activity import Activity, active_devices
from traceview.measure.base import CaptureInput, fill_tables
from traceview.measure.devices import (
    count_unmatched,
    measure_device,
    with_longest_gaps,
)
from traceview.measure.gaps import ThreadStates
from traceview.measure.host import HostIdle, with_host_states
from traceview.measure.iterations import LocatedIterations, build_iterations, locate_iterations
from traceview.measure.iterations.drift import iteration_drift
from traceview.measure.iterations.intact import joined_holes, launch_holes
from traceview.measure.iterations.times import MeasuredDevices, breakdown
from traceview.measure.notes import capture_notes
from traceview.measure.nvtx import Projection, project_operations
from traceview.measure.places import Places, locate_operations
from traceview.measure.run import ProgramCalls, run_time
from traceview.measure.sync import measure_host
from traceview.model.analysis import Analysis, AnalysisOptions, DeviceUse, Iterations, NotMeasured
from traceview.model.frozen import dataclass
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
    def host_idle(self) -> HostIdle | None:
        """What the host does while devices are idle; None if nothing shows it."""
        if not self.trace.evidence.shows_idle_host:
            return None
        return HostIdle.build(self.trace, ThreadStates.from_trace(self.trace))


def measure_capture(capture: TraceWork, options: AnalysisOptions) -> Analysis:
    """Return the analysis of a capture without findings, the time without the profiler and an answer."""
    trace, activities, host_idle = capture.trace, capture.activities, capture.host_idle
    threads = ThreadStates.from_trace(trace) if host_idle is None else host_idle.threads
    rows = sorted(work.device for work in activities)
    located = locate_iterations(trace, rows, capture.projection, options.iteration, options.skip)
    steady = None if isinstance(located, NotMeasured) else located.times.steady
    measured = partial(measure_device, trace, threads, places=capture.places, steady=steady)
    devices = tuple(measured(work) for work in activities)
    iterations = _iterations(capture, threads, devices, located)
    devices = tuple(with_longest_gaps(trace, with_host_states(host_idle, each), options.top) for each in devices)
    host = measure_host(trace, activities)
    given = CaptureInput(
        trace,
        host,
        capture.projection,
        devices,
        iterations,
        options.flops_per_iteration,
        options.whole,
        host_idle,
    )
    tables = fill_tables(all_measures(), given, "capture")
    unmatched = count_unmatched(trace)
    processes = trace.devices["processes"].explode().drop_nulls().unique().to_list()
    calls = ProgramCalls(trace, processes).time() if trace.window is None else None
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
        holes=joined_holes((*launch_holes(trace), *(() if isinstance(located, NotMeasured) else located.lost.holes))),
    )


def _iterations(
    capture: TraceWork, threads: ThreadStates, devices: Sequence[DeviceUse], located: LocatedIterations | NotMeasured
) -> Iterations | NotMeasured:
    if isinstance(located, NotMeasured):
        return located
    where, work, lost = located
    measured = MeasuredDevices(capture.activities, {device.device: device.gaps for device in devices})
    figures = breakdown(capture.trace, threads, measured, where.process, where.start, where.end)
    iterations = replace(build_iterations(located, figures), lost=lost.lost, apart=lost.apart)
    drift = iteration_drift(capture.trace, iterations, located.times.moments, work, measured.devices)
    return replace(iterations, drift=drift)
