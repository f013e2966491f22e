"""Measures a capture: its devices, host, iterations, tables and notes, as an analysis without findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

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
from traceview.measure.nvtx import Projection, project_operations
from traceview.measure.places import Places, locate_operations
from traceview.measure.run import ProgramCalls, run_time
from traceview.measure.sync import measure_host
from traceview.model.analysis import Analysis, AnalysisOptions, DeviceUse, Iterations, NotMeasured, Unmatched
from traceview.model.columns import Table
from traceview.model.drift import Drift
from traceview.model.frozen import dataclass
from traceview.model.program import capture_advice
from traceview.model.trace import EVERYTHING, Note, Trace
from traceview.model.units import quantity, share


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
    devices = tuple(with_longest_gaps(trace, [with_host_states(host_idle, each) for each in devices], options.top))
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


def capture_notes(
    trace: Trace,
    devices: Sequence[DeviceUse],
    tables: Mapping[str, Table],
    iterations: Iterations | NotMeasured,
    unmatched: Unmatched,
) -> Iterator[Note]:
    """Yield the notes on a capture."""
    yield from trace.info.health
    yield from trace.info.left_out
    lost_ranges = any(note.id == "lost_ranges" for note in trace.info.health)
    every = [table for device in devices for table in device.tables.values()] + list(tables.values())
    for table in {table.name: table for table in every if table.not_measured}.values():
        kind = "package" if table.package else "no"
        if not (lost_ranges and table.name == "nvtx"):
            yield Note(f"{kind}_{table.name}", str(table.not_measured), affects=(table.name,))
    if isinstance(iterations, NotMeasured):
        yield Note("no_iterations", iterations.reason, affects=("iterations",))
    elif iterations.drift is not None:
        yield _drift(iterations.drift)
    count = _operation_count(trace)
    yield from _missing_data(trace, count)
    yield from _cut_capture(trace, count, unmatched)


def _drift(drift: Drift) -> Note:
    """Return a note on iterations that change during the run, or on their kernels alone."""
    if drift.of_iterations:
        return Note(
            "drift",
            f"{f'Iterations {drift.words} during the run: {drift.reason}'.removesuffix(': ')}.",
            ("iterations.time_ns",),
        )
    return Note("kernel_drift", drift.kernel_words, ("devices.kernels",))


def _operation_count(trace: Trace) -> int:
    """Return the number of operations that start in the window."""
    window, start = trace.window or EVERYTHING, trace.operations["start"].to_numpy()
    first, stop = np.searchsorted(start, (window.start, window.end)).tolist()
    return int(stop - first)


def _missing_data(trace: Trace, count: int) -> Iterator[Note]:
    """Yield a note if the capture has no GPU work, or no call: they are not traced, or the profiler lost them."""
    how_to = capture_advice(trace.info.profiler)
    if not count:
        lost = any(note.id == "lost_launches" for note in trace.info.health)
        if lost:
            advice = f"Capture it again, with {how_to['newer']}, "
        elif len(trace.api):
            advice = (
                "No launch is recorded: another process launches, or a crash lost it. Capture it to its regular end, "
            )
        else:
            advice = "The profiler traced no GPU, or the program uses none of NVIDIA, AMD or Intel. Capture it again, "
        yield Note(
            "no_gpu_work",
            "The capture has no GPU work: only ranges, iterations and other times of the host are measured. "
            f"{advice}with `{how_to['gpu']}`.",
            affects=("devices", "findings"),
        )
    elif not len(trace.api):
        yield Note(
            "no_cuda_calls",
            "The capture has no CUDA API calls: idle time has the cause `unknown`, and synchronizations are not "
            f"measured. {how_to['calls']}",
            affects=("idle", "host.sync", "findings"),
        )


def _cut_capture(trace: Trace, count: int, unmatched: Unmatched) -> Iterator[Note]:
    """Yield a note if operations lack their launch or ranges their end: the capture starts or stops inside a step."""
    without = unmatched.kernels + unmatched.copies + unmatched.memsets + unmatched.graphs
    open_ranges = int(trace.ranges["open"].sum())
    texts = [f"{quantity(without, 'GPU operation')} ({share(without, count)}) without a launch"] if without else []
    texts += [f"{quantity(open_ranges, 'range')} without an end"] if open_ranges else []
    if texts:
        yield Note(
            "cut_capture",
            f"The capture is cut: {' and '.join(texts)}. Idle time before an operation without a launch has the cause "
            "`unknown`, and such an operation belongs to no range. A range without an end lasts until the end of the "
            "capture. Start and stop the capture between two steps, while the GPU is idle.",
            affects=("idle.unknown", "nvtx"),
        )
