"""A capture without iterations as one sample: its window on the GPUs."""

from __future__ import annotations

import numpy as np

from traceview.comparison.align import Aligned
from traceview.comparison.kernels import kernels_of
from traceview.comparison.sample import GPU_PARTS, SYNCS, Sample, activities_of, named_work
from traceview.errors import RequestError
from traceview.intervals import Times, length
from traceview.model.analysis import CAUSES, Analysis, DeviceUse, SyncUse
from traceview.model.trace import SOURCES


def whole_sample(analysis: Analysis) -> Sample:
    """Return one value a figure: the mean of the GPUs' windows, first to last work, and what filled them.

    Raises RequestError where there is neither an iteration nor GPU work.
    """
    if not analysis.devices:
        raise RequestError(f"{analysis.info.file}: neither iterations nor GPU work, so there is nothing to compare")
    gpus = len(analysis.devices)
    start = min(device.window.start for device in analysis.devices)
    end = max(device.window.end for device in analysis.devices)
    wall = sum(device.window.length for device in analysis.devices) // gpus
    parts = {name: sum(_part(device, name) for device in analysis.devices) for name in GPU_PARTS}
    parts["no_gpu"] = 0  # a GPU without work is none of the analysis's
    works = (named_work(analysis.trace, one) for one in activities_of(analysis))
    parts["twice"] = sum(length(work) for work in works) - sum(parts.values())
    idle = {f"idle.{cause}": sum(of.gaps.causes[cause] for of in analysis.devices) for cause in CAUSES}
    figures = {name: value // gpus for name, value in (parts | idle).items()}
    figures |= {"wall": wall, "other": wall - sum(figures.values()), "idle": sum(figures[name] for name in idle)}
    for kind, use in zip(SYNCS, (analysis.host.sync, analysis.host.implicit_sync), strict=True):
        figures |= _calls(kind, use)
    figures |= _launches(analysis)
    at = Aligned(_one(start), _one(end), _one(start), _one(end), skipped=0)
    kernels = kernels_of(analysis, at, [device.device for device in analysis.devices])
    return Sample(_one(wall), _one(start), 0, {name: _one(value) for name, value in figures.items()}, kernels)


def _one(value: int) -> Times:
    return np.array([value], np.int64)


def _part(device: DeviceUse, name: str) -> int:
    if name == "compute":
        return device.compute_ns
    if name == "exposed_communication":
        return device.communication.exposed_ns
    return sum(copies.exposed_ns for copies in device.copies if f"exposed_{copies.kind}" == name)


def _calls(kind: str, use: SyncUse) -> dict[str, int]:
    figures = {"count": use.count, "blocked": use.blocked_ns, "starved": use.starved_ns, "refill": use.refill_ns}
    return {f"{kind}.{name}": value for name, value in (figures | {"cost": use.starved_ns + use.refill_ns}).items()}


def _launches(analysis: Analysis) -> dict[str, int]:
    work = analysis.trace.operations
    source = work["source"].to_physical().to_numpy()
    launch = work["launch"].fill_null(-1).to_numpy()
    kernel, graph, copy = (source == SOURCES.index(name) for name in ("kernel", "graph", "memcpy"))
    calls = np.unique(launch[(kernel | graph) & (launch >= 0)])
    return {
        "launches": len(calls),
        "kernels": int(np.count_nonzero(kernel)),
        "copies": int(np.count_nonzero(copy)),
    }
