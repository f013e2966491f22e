"""Samples of a document: what an Analysis measures for each iteration is a mean here, where the document has sums.

A figure that is a mean has an array of one value, so that changes of it have no interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from traceview.comparison.align import align_iterations
from traceview.comparison.document import AnalysisDocument, DocumentDevice, DocumentKernel
from traceview.comparison.kernels import KernelSamples, KernelShape
from traceview.comparison.sample import GPU_PARTS, Sample
from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.measure.iterations.times import IterationTimes
from traceview.model.analysis import CAUSES, Iterations

OTHER_KERNELS = re.compile(r"\(\d+ other kernels\)")  # the row of `kernels` for all beyond the costliest


def sample_document(document: AnalysisDocument, host: IterationTimes | None, cut: str) -> tuple[Sample, Sample]:
    """Return the medians and the means of a document for a cut, as `_Side` has them. Raises RequestError."""
    iterations = document.iterations
    if cut == "whole" or host is None or not isinstance(iterations, Iterations):
        whole = _sample_whole(document)
        return whole, whole
    own = [device for device in document.devices if iterations.process_id in device.process_ids]
    at = align_iterations(host, cut)
    kernels = _kernel_samples((device.steady.kernels for device in own), len(at.start))
    medians = {"wall": at.end - at.start}
    if cut == "range":
        medians |= _parts_of_iterations(iterations, len(own), medians["wall"])
    lengths = host.lengths if document.has_gpu_ends else np.array([iterations.time_ns])
    means = {"wall": lengths} | _mean_parts(own, iterations)
    return (
        Sample(medians["wall"], at.start, at.skipped, medians, kernels),
        Sample(lengths, at.start, at.skipped, means, kernels),
    )


def _parts_of_iterations(iterations: Iterations, gpus: int, wall: Times) -> dict[str, Times]:
    """Return the parts of each counted iteration, the means of its GPUs; "other" has also what counts twice."""
    rows = iterations.per_iteration[iterations.skipped :]
    sums = {name: [getattr(row, f"{name}_ns") for row in rows] for name in GPU_PARTS}
    sums |= {f"idle.{cause}": [row.idle.get(cause, 0) for row in rows] for cause in CAUSES}
    means = {name: np.array(values, np.int64) // max(gpus, 1) for name, values in sums.items()}
    means["no_gpu"] = np.zeros(len(wall), np.int64) if gpus else wall
    means["other"] = wall - np.sum(list(means.values()), axis=0)
    return means | {"idle": np.sum([means[f"idle.{cause}"] for cause in CAUSES], axis=0)}


def _mean_parts(own: Sequence[DocumentDevice], iterations: Iterations) -> dict[str, Times]:
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


def _sample_whole(document: AnalysisDocument) -> Sample:
    """Return the figures of the whole capture, means over the GPUs' windows. Raises RequestError without GPU work."""
    devices = document.devices
    if not devices:
        raise RequestError(f"{document.info.file}: no iterations and no GPU work, so there is nothing to compare")
    wall = sum(device.window_ns[1] - device.window_ns[0] for device in devices) // len(devices)
    sums = {"compute": sum(device.compute_ns for device in devices)}
    sums["exposed_communication"] = sum(device.communication.exposed_ns for device in devices)
    for kind in ("h2d", "d2h"):
        rows = (copies for device in devices for copies in device.copies if copies.kind == kind)
        sums[f"exposed_{kind}"] = sum(copies.exposed_ns for copies in rows)
    sums |= {f"idle.{cause}": sum(device.gaps.causes.get(cause, 0) for device in devices) for cause in CAUSES}
    figures = {name: value // len(devices) for name, value in sums.items()}
    figures |= {"no_gpu": 0, "other": wall - sum(figures.values()), "wall": wall}
    figures["idle"] = sum(figures[f"idle.{cause}"] for cause in CAUSES)
    start = np.array([min(device.window_ns[0] for device in devices)])
    kernels = _kernel_samples((device.kernels for device in devices), 1)
    return Sample(np.array([wall]), start, 0, {name: np.array([value]) for name, value in figures.items()}, kernels)


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
