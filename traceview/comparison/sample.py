"""The figures of each steady iteration of a capture or document, or of the whole: one array per figure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from traceview.comparison.align import AlignedIterations, align_borders
from traceview.comparison.change import Series, mean_change
from traceview.comparison.document import AnalysisDocument, Analyzed, DocumentDevice, DocumentKernel
from traceview.comparison.kernels import KernelSamples, KernelShape, sample_kernels
from traceview.errors import RequestError
from traceview.intervals import Intervals, Times, covered_length, length, union
from traceview.measure.activity import COMMUNICATION, COMPUTE, Activity, active_devices
from traceview.measure.gaps import ThreadStates
from traceview.measure.iterations.times import IterationTimes, MeasuredDevices, breakdown
from traceview.model.analysis import CAUSES, Analysis, DeviceUse, Iterations, SyncUse
from traceview.model.comparison import FigureChange
from traceview.model.frozen import dataclass
from traceview.model.trace import KINDS, SOURCES, Trace

GPU_PARTS = ("compute", "exposed_communication", "exposed_h2d", "exposed_d2h")
PARTS = (*GPU_PARTS, "other", "no_gpu", "twice", *(f"idle.{cause}" for cause in CAUSES))
SYNCS = ("sync", "implicit_sync")
SYNC_TIMES = ("blocked", "starved", "refill", "cost")
HOST_FIGURES = (
    *(f"{kind}.{figure}" for kind in SYNCS for figure in ("count", *SYNC_TIMES)),
    "launches",
    "kernels",
    "copies",
)
OTHER_KERNELS = re.compile(r"\(\d+ other kernels\)")  # the row of `kernels` for all beyond the costliest
COUNTS = tuple(name for name in HOST_FIGURES if name.endswith(".count") or "." not in name)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value per iteration for "wall", each of PARTS and each of HOST_FIGURES.

    The parts of each iteration add up to its wall time exactly. With several GPUs each part is their mean. A sample of
    a document lacks some figures, and has one value for a figure whose mean alone is known.
    """

    wall: Times
    start: Times
    skipped: int
    figures: Mapping[str, Times]
    kernels: KernelSamples

    def with_twice_in_other(self) -> Sample:
        """Return the sample without "twice", which a document does not tell apart from "other"."""
        if "twice" not in self.figures:
            return self
        others = {name: values for name, values in self.figures.items() if name != "twice"}
        return replace(self, figures=others | {"other": self.figures["other"] + self.figures["twice"]})


def sample_iterations(analysis: Analysis, at: AlignedIterations) -> Sample:
    """Measure the iterations of a capture on the GPUs of its analysis."""
    iterations = analysis.iterations
    assert isinstance(iterations, Iterations), "an aligned capture has iterations"
    activities = _analyzed_activities(analysis)
    process, wall = iterations.process_id, at.end - at.start
    figures = {"wall": wall} | _parts(analysis, at, activities, process)
    for kind, use in zip(SYNCS, (analysis.host.sync, analysis.host.implicit_sync), strict=True):
        figures |= _sync_figures(kind, use, at, process)
    figures |= _launch_counts(analysis, at, activities, process)
    kernels = sample_kernels(analysis, at, [device.device for device in activities], process)
    return Sample(wall, at.start, at.skipped, figures, kernels)


def sample_capture(analysis: Analysis) -> Sample:
    """Measure a capture without iterations: one value per figure, the mean over the GPUs' windows.

    A window lasts from the first to the last work of its GPU. Raises RequestError if there is no GPU work.
    """
    named = sum(length(_named_work(analysis.trace, activity)) for activity in _analyzed_activities(analysis))
    parts = (_device_part(device, name) for device in analysis.devices for name in GPU_PARTS)
    start, figures = _whole_figures(analysis, {"twice": named - sum(parts)})
    for kind, use in zip(SYNCS, (analysis.host.sync, analysis.host.implicit_sync), strict=True):
        times = {f"{kind}.{name}": int(getattr(use, f"{name}_ns")) for name in SYNC_TIMES}
        figures |= {f"{kind}.count": use.count, **times}
    figures |= _launch_totals(analysis)
    kernels = sample_kernels(analysis, align_capture(analysis), [device.device for device in analysis.devices])
    return _single_sample(start, figures, kernels)


def _whole_figures(report: Analyzed, more: dict[str, int]) -> tuple[int, dict[str, int]]:
    """Return the start of the GPU work, and "wall" and PARTS of the whole capture: means over the GPUs.

    `more` are further sums of parts. Raises RequestError if there is no GPU work.
    """
    devices, gpus = report.devices, len(report.devices)
    if not devices:
        raise RequestError(f"{report.info.file}: no iterations and no GPU work, so there is nothing to compare")
    wall = sum(device.window.length for device in devices) // gpus
    sums = {name: sum(_device_part(device, name) for device in devices) for name in GPU_PARTS}
    idle = {f"idle.{cause}": sum(device.gaps.causes.get(cause, 0) for device in devices) for cause in CAUSES}
    figures = {name: value // gpus for name, value in (sums | {"no_gpu": 0} | more | idle).items()}
    figures |= {"wall": wall, "other": wall - sum(figures.values())}
    return min(device.window.start for device in devices), figures


def _single_sample(start: int, figures: Mapping[str, int], kernels: KernelSamples) -> Sample:
    arrays = {name: _single(value) for name, value in figures.items()}
    return Sample(arrays["wall"], _single(start), 0, arrays, kernels)


def align_capture(analysis: Analysis) -> AlignedIterations:
    """Return the time from the first to the last GPU work as one iteration."""
    start = _single(min(device.window.start for device in analysis.devices))
    end = _single(max(device.window.end for device in analysis.devices))
    return AlignedIterations(start, end, start, end, skipped=0)


def _analyzed_activities(analysis: Analysis) -> tuple[Activity, ...]:
    """Return the work of the GPUs in an analysis: all GPUs, or the one chosen with --device."""
    chosen = {device.device for device in analysis.devices}
    return tuple(work for work in active_devices(analysis.trace) if work.device in chosen) if chosen else ()


def _parts(analysis: Analysis, at: AlignedIterations, activities: Sequence[Activity], process: int) -> dict[str, Times]:
    """Split each iteration into PARTS that add up to its wall time."""
    trace = analysis.trace
    measured = MeasuredDevices(activities, {device.device: device.gaps for device in analysis.devices})
    processes = trace.devices["processes"].to_list()
    own = [device for device in activities if process in processes[device.device]]
    gpus = max(1, len(own))
    split = breakdown(trace, ThreadStates.from_trace(trace), measured, process, at.start, at.end)
    sums = {name: split.figures[f"{name}_ns"] for name in GPU_PARTS}
    zeros = np.zeros(len(at.start), np.int64)
    named = _sum_arrays([zeros, *(covered_length(_named_work(trace, device), at.start, at.end) for device in own)])
    # Time with two exposed kinds at once is in both sums. "twice" is negative and subtracts it once.
    sums["twice"] = named - _sum_arrays(sums.values())
    # If the analysis has no GPU of this process, all of the iteration is host time.
    sums["no_gpu"] = zeros if own else at.end - at.start
    idle = {f"idle.{cause}": split.idle[code] for code, cause in enumerate(CAUSES)}
    means = {name: values // gpus for name, values in (sums | idle).items()}
    # d2d copies, memsets, and the ns that the means round off.
    means["other"] = at.end - at.start - _sum_arrays(means.values())
    return means


def _sum_arrays(values: Iterable[Times]) -> Times:
    total: Times = np.add.reduce(list(values), dtype=np.int64)
    return total


def _named_work(trace: Trace, device: Activity) -> Intervals:
    """Return when a GPU does any of GPU_PARTS, exposed or not."""
    kind = trace.operations["kind"].to_physical().fill_null(len(KINDS)).to_numpy()[device.rows]
    copies = np.isin(kind, [KINDS.index("h2d"), KINDS.index("d2h")])
    chosen = copies | np.isin(device.codes, [COMPUTE, COMMUNICATION])
    return union(device.start[chosen], device.end[chosen], ordered=True)


def _sync_figures(kind: str, use: SyncUse, at: AlignedIterations, process: int) -> dict[str, Times]:
    """Sum the blocking calls of each iteration (docs/definitions.md "Synchronization")."""
    frame = use.frame.filter(pl.col("process") == process)
    start = frame["start"].to_numpy()
    sums = {f"{kind}.{name}": _sum_by_iteration(start, frame[name].to_numpy(), at) for name in SYNC_TIMES}
    return {f"{kind}.count": _sum_by_iteration(start, np.ones(len(start), np.int64), at), **sums}


def _launch_counts(
    analysis: Analysis, at: AlignedIterations, activities: Sequence[Activity], process: int
) -> dict[str, Times]:
    """Count the calls that launch kernels or graphs, the kernels and the copies of each iteration."""
    work = analysis.trace.operations.filter(
        (pl.col("process") == process)
        & pl.col("device").is_in([device.device for device in activities])
        & pl.col("launch").is_not_null()
    )
    source = work["source"].to_physical().to_numpy()
    launch = work["launch"].to_numpy()
    call_start = analysis.trace.api["start"].to_numpy()
    kernel, graph, copy = (source == SOURCES.index(name) for name in ("kernel", "graph", "memcpy"))
    calls = {"launches": np.unique(launch[kernel | graph]), "kernels": launch[kernel], "copies": launch[copy]}
    return {name: _sum_by_iteration(call_start[rows], np.ones(len(rows), np.int64), at) for name, rows in calls.items()}


def _sum_by_iteration(moment: Times, values: Times, at: AlignedIterations) -> Times:
    """Sum values by the iteration whose host time contains their moment."""
    order = np.argsort(moment, kind="stable")
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(values[order], dtype=np.int64)])
    ordered = moment[order]
    first, last = (np.searchsorted(ordered, edge, side="left") for edge in (at.host, at.host_end))
    sums: Times = running[last] - running[first]
    return sums


def _single(value: int) -> Times:
    return np.array([value], np.int64)


def _device_part(device: DeviceUse | DocumentDevice, name: str) -> int:
    if name == "compute":
        return device.compute_ns
    if name == "exposed_communication":
        return device.communication.exposed_ns
    return sum(copies.exposed_ns for copies in device.copies if f"exposed_{copies.kind}" == name)


def _launch_totals(analysis: Analysis) -> dict[str, int]:
    work = analysis.trace.operations
    source = work["source"].to_physical().to_numpy()
    launch = work["launch"].fill_null(-1).to_numpy()
    kernel, graph, copy = (source == SOURCES.index(name) for name in ("kernel", "graph", "memcpy"))
    calls = np.unique(launch[(kernel | graph) & (launch >= 0)])
    return {"launches": len(calls), "kernels": int(np.count_nonzero(kernel)), "copies": int(np.count_nonzero(copy))}


def mean_parts(
    time: FigureChange, old: Series, new: Series, before: Mapping[str, Times], after: Mapping[str, Times]
) -> tuple[FigureChange, ...]:
    """Compare the means of the figures that add up to the time. What rounding leaves over is in "other"."""
    names = [name for name in PARTS if name in before and name in after]
    changes = {name: mean_change(name, old.with_values(before[name]), new.with_values(after[name])) for name in names}
    rest_before = time.before - sum(change.before for change in changes.values())
    rest_after = time.after - sum(change.after for change in changes.values())
    other = changes["other"]
    old_other, new_other = other.before + rest_before, other.after + rest_after
    changes["other"] = replace(
        other,
        before=old_other,
        after=new_other,
        mean_before=old_other,
        mean_after=new_other,
        difference=new_other - old_other,
    )
    return tuple(changes.values())


def sample_document(document: AnalysisDocument, host: IterationTimes | None, is_whole: bool) -> Sample:
    """Return the figures of a document: of its iterations, or of the whole capture.

    Where the document has sums, a figure that an Analysis has for each iteration is a mean: an array of one value. Its
    changes have no interval. Raises RequestError.
    """
    iterations = document.iterations
    if is_whole or host is None or not isinstance(iterations, Iterations):
        kernels = _kernel_samples((device.kernels for device in document.devices), 1)
        return _single_sample(*_whole_figures(document, {}), kernels)
    own = [device for device in document.devices if iterations.process_id in device.process_ids]
    at = align_borders(host)
    kernels = _kernel_samples((device.steady.kernels for device in own), iterations.counted)
    figures = {"wall": at.end - at.start} | _parts_of_sums(own, iterations)
    return Sample(figures["wall"], at.start, at.skipped, figures, kernels)


def _parts_of_sums(own: Sequence[DocumentDevice], iterations: Iterations) -> dict[str, Times]:
    """Return the mean parts of an iteration: the sums of the steady part over its iterations and GPUs.

    A GPU is idle, for an unknown cause, in the time of iterations outside its steady part: before its first work, and
    after its last one.
    """
    count = max(len(own), 1) * iterations.counted
    outside = iterations.time_ns * count - sum(
        device.steady.window_ns[1] - device.steady.window_ns[0] for device in own
    )
    sums = {name: sum(getattr(device.steady, f"{name}_ns") for device in own) for name in GPU_PARTS}
    sums |= {f"idle.{cause}": sum(device.steady.causes.get(cause, 0) for device in own) for cause in CAUSES}
    sums["idle.unknown"] += max(outside, 0) if own else 0
    means = {name: np.array([value // count]) for name, value in sums.items()}
    return means | {"no_gpu": np.array([0 if own else iterations.time_ns]), "other": np.array([0])}


def _kernel_samples(tables: Iterable[Sequence[DocumentKernel]], iterations: int) -> KernelSamples:
    """Return the kernels of several devices, each with the sums over all iterations."""
    sums: dict[KernelShape, tuple[int, int]] = {}
    is_complete = True
    for row in (row for rows in tables for row in rows):
        if OTHER_KERNELS.fullmatch(row.name):
            is_complete = False
            continue
        shape = KernelShape(row.name, row.label, row.grid or (), row.block or ())
        launches, ns = sums.get(shape, (0, 0))
        sums[shape] = launches + row.count, ns + row.total_ns
    shapes = tuple(sorted(sums, key=str))
    count, time = np.array([sums[shape] for shape in shapes], np.int64).reshape(-1, 2).T
    first, place = np.arange(len(shapes) + 1), np.zeros(len(shapes), np.int64)
    return KernelSamples(shapes, first, place, count, time, iterations, is_total=True, is_complete=is_complete)
