"""Notes on a capture: what it lost, what was left out of it, what it lacks, and what is not measured for that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from traceview.model.analysis import DeviceUse, Iterations, NotMeasured, Unmatched
from traceview.model.columns import Table
from traceview.model.drift import Drift
from traceview.model.program import capture_advice
from traceview.model.trace import EVERYTHING, Note, Trace
from traceview.model.units import quantity, share


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
        return Note("drift", f"Iterations {drift.words} during the run: {drift.reason}.", ("iterations.time_ns",))
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
            advice = "The recorded processes call CUDA and launch nothing. Capture those that do, "
        else:
            advice = (
                "Either the program uses no GPU of NVIDIA, AMD or Intel, or its work was not traced. Capture it on a "
                "machine with such a GPU, "
            )
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
