"""What every steady iteration of one capture was made of: one array a figure, in ns or counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceview.comparison.align import Aligned
from traceview.comparison.kernels import Kernels, kernels_of
from traceview.intervals import Intervals, Times, covered_length, union
from traceview.measure.activity import COMMUNICATION, COMPUTE, Activity, active_devices
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.iterations.breakdown import MeasuredDevices, breakdown
from traceview.model.analysis import CAUSES, Analysis, Iterations, SyncUse
from traceview.model.trace import KINDS, SOURCES, Trace

GPU_PARTS = ("compute", "exposed_communication", "exposed_h2d", "exposed_d2h")
PARTS = (*GPU_PARTS, "other", "no_gpu", "twice", *(f"idle.{cause}" for cause in CAUSES))
SYNCS = ("sync", "implicit_sync")
HOST_FIGURES = (
    *(f"{kind}.{figure}" for kind in SYNCS for figure in ("count", "blocked", "starved", "refill", "cost")),
    "launches",
    "kernels",
    "copies",
)
COUNTS = tuple(name for name in HOST_FIGURES if name.endswith(".count") or "." not in name)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value an iteration; `figures` has "wall", "idle", PARTS and HOST_FIGURES.

    The parts of each iteration add up to its wall, exactly: where there are several GPUs, each part is their
    mean. `kernels` has the same iterations.
    """

    wall: Times
    start: Times
    skipped: int
    figures: Mapping[str, Times]
    kernels: Kernels


def sample_of(analysis: Analysis, at: Aligned) -> Sample:
    """Measure the iterations of one capture, on the GPUs that its analysis looked at."""
    found = analysis.iterations
    assert isinstance(found, Iterations), "what is aligned has iterations"
    activities = activities_of(analysis)
    wall = at.end - at.start
    figures = {"wall": wall} | _parts(analysis, at, activities, found.process_id)
    for kind, use in zip(SYNCS, (analysis.host.sync, analysis.host.implicit_sync), strict=True):
        figures |= _calls(kind, use, at, found.process_id)
    figures |= _launches(analysis, at, activities, found.process_id)
    kernels = kernels_of(analysis, at, [device.device for device in activities], found.process_id)
    return Sample(wall, at.start, at.skipped, figures, kernels)


def activities_of(analysis: Analysis) -> tuple[Activity, ...]:
    """Return the work of the GPUs that an analysis looked at: all, or the one that it was asked for."""
    chosen = {device.device for device in analysis.devices}
    return tuple(work for work in active_devices(analysis.trace) if work.device in chosen) if chosen else ()


def _parts(analysis: Analysis, at: Aligned, activities: Sequence[Activity], process: int) -> dict[str, Times]:
    """Split each iteration into PARTS that add up to it."""
    trace = analysis.trace
    measured = MeasuredDevices(activities, {of.device: of.gaps for of in analysis.devices})
    processes = trace.devices["processes"].to_list()
    own = [device for device in activities if process in processes[device.device]]
    gpus = max(1, len(own))
    of = breakdown(trace, ThreadStates.from_trace(trace), measured, process, at.start, at.end)
    parts = {name: of.figures[f"{name}_ns"] for name in GPU_PARTS}
    none = np.zeros(len(at.start), np.int64)
    named = _total([none, *(covered_length(named_work(trace, device), at.start, at.end) for device in own)])
    # Two exposed kinds at once are in both of them, and so are taken off once.
    parts["twice"] = named - _total(parts.values())
    # Where no GPU of this process was looked at, all of an iteration is the host's.
    parts["no_gpu"] = none if own else at.end - at.start
    idle = {f"idle.{cause}": of.idle[code] for code, cause in enumerate(CAUSES)}
    means = {name: values // gpus for name, values in (parts | idle).items()}
    # d2d copies and memsets; and the ns that a mean of GPUs rounds off.
    means["other"] = at.end - at.start - _total(means.values())
    return means | {"idle": _total(means[name] for name in idle)}


def _total(values: Iterable[Times]) -> Times:
    total: Times = np.add.reduce(list(values), dtype=np.int64)
    return total


def named_work(trace: Trace, device: Activity) -> Intervals:
    """Return when a GPU did any of GPU_PARTS, exposed or not."""
    kind = trace.operations["kind"].to_physical().fill_null(len(KINDS)).to_numpy()[device.rows]
    copies = np.isin(kind, [KINDS.index("h2d"), KINDS.index("d2h")])
    chosen = copies | np.isin(device.codes, [COMPUTE, COMMUNICATION])
    return union(device.start[chosen], device.end[chosen], ordered=True)


def _calls(kind: str, use: SyncUse, at: Aligned, process: int) -> dict[str, Times]:
    """Add up the blocking calls that each iteration made; cost = starved + refill (METRICS.md "Synchronization")."""
    frame = use.frame.filter(pl.col("process") == process)
    columns = {name: frame[name].to_numpy() for name in ("blocked", "starved", "refill")}
    start = frame["start"].to_numpy()
    sums = {name: _sums(start, values, at) for name, values in columns.items()}
    sums |= {"count": _sums(start, np.ones(len(start), np.int64), at), "cost": sums["starved"] + sums["refill"]}
    return {f"{kind}.{name}": values for name, values in sums.items()}


def _launches(analysis: Analysis, at: Aligned, activities: Sequence[Activity], process: int) -> dict[str, Times]:
    """Count the calls that launched kernels or graphs, the kernels and the copies of each iteration."""
    work = analysis.trace.operations.filter(
        (pl.col("process") == process)
        & pl.col("device").is_in([device.device for device in activities])
        & pl.col("launch").is_not_null()
    )
    source = work["source"].to_physical().to_numpy()
    launch = work["launch"].to_numpy()
    began = analysis.trace.api["start"].to_numpy()
    codes = {name: source == SOURCES.index(name) for name in ("kernel", "graph", "memcpy")}
    calls = np.unique(launch[codes["kernel"] | codes["graph"]])
    found = {"launches": calls, "kernels": launch[codes["kernel"]], "copies": launch[codes["memcpy"]]}
    return {name: _sums(began[rows], np.ones(len(rows), np.int64), at) for name, rows in found.items()}


def _sums(moment: Times, values: Times, at: Aligned) -> Times:
    """Add up values by the iteration whose part of the host's time holds their moment."""
    order = np.argsort(moment, kind="stable")
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(values[order], dtype=np.int64)])
    ordered = moment[order]
    first, last = (np.searchsorted(ordered, edge, side="left") for edge in (at.host, at.host_end))
    found: Times = running[last] - running[first]
    return found
