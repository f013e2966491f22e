"""Cut every capture into iterations in the same way.

The NVTX range around a step ends when the *host* has finished the step. If the host waits for the GPU in every step,
the range is the iteration. Otherwise the host runs ahead: its ranges are short until a queue is full, and one range
contains all the waiting, so their median is meaningless. Then an iteration lasts from the end of the previous
iteration's work on the GPU to the end of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.model.analysis import Analysis, Iterations, NotMeasured

# The host runs ahead if the GPU finishes later than this share of a range after the end of the range.
MAX_GPU_LAG = 0.05
GPU_CUT = "an iteration lasts from the end of the previous iteration's GPU work to the end of its own"


@dataclass(frozen=True, slots=True)
class AlignedIterations:
    """The steady iterations of a capture, in ns on its clock; each array has one value per iteration.

    GPU work belongs to the iteration in [`start`, `end`), host calls to the iteration in [`host`, `host_end`).
    """

    start: Times
    end: Times
    host: Times
    host_end: Times
    skipped: int


@dataclass(frozen=True, slots=True)
class HostIterations:
    """The NVTX ranges of all iterations, and when the GPU finished each (`gpu_end`; None if unknown)."""

    start: Times
    end: Times
    gpu_end: Times | None
    skipped: int

    @property
    def gpu_lag(self) -> float:
        """The median time from the end of a range to the end of its GPU work, as a share of the median range."""
        if self.gpu_end is None:
            return 0.0
        steady = slice(self.skipped, None)
        lag = float(np.median(self.gpu_end[steady] - self.end[steady]))
        wall = float(np.median(self.end[steady] - self.start[steady]))
        return lag / wall if wall else 0.0


def find_host_iterations(analysis: Analysis) -> HostIterations | None:
    """Return the iterations of a capture; None if it has none."""
    iterations = analysis.iterations
    if isinstance(iterations, NotMeasured):
        return None
    start = np.array([row.start_ns for row in iterations.per_iteration], np.int64)
    end = np.array([row.end_ns for row in iterations.per_iteration], np.int64)
    return HostIterations(start, end, _gpu_ends(analysis, iterations, start), iterations.skipped)


def _gpu_ends(analysis: Analysis, iterations: Iterations, start: Times) -> Times | None:
    """Return when the GPUs finish the compute and communication launched in each iteration; None if one has none.

    Copies do not count, because a prefetched batch is work of the next iteration.
    """
    trace = analysis.trace
    devices = [device.device for device in analysis.devices]
    work = trace.operations.filter(
        (pl.col("process") == iterations.process_id)
        & pl.col("device").is_in(devices)
        & pl.col("class").to_physical().is_in([COMPUTE, COMMUNICATION])
        & pl.col("launch").is_not_null()
    )
    launched = trace.api["start"].to_numpy()[work["launch"].to_numpy()]
    place = np.searchsorted(start, launched, side="right") - 1
    gpu_end = np.full(len(start), np.iinfo(np.int64).min)
    known = place >= 0
    np.maximum.at(gpu_end, place[known], work["end"].to_numpy()[known])
    if (np.bincount(place[known], minlength=len(start)) == 0).any():
        return None
    return np.maximum.accumulate(gpu_end)


def choose_cut(
    iterations: Sequence[HostIterations | None], requested: str, files: Sequence[str]
) -> tuple[str, str]:
    """Return how to cut every capture ("range", "gpu" or "whole") and the reason, for a `--cut` option.

    Raises RequestError for `--cut gpu` if the end of an iteration on the GPU is unknown in a capture.
    """
    for file, host in zip(files, iterations, strict=True):
        if host is None:
            return "whole", f"{file} has no iterations, so each capture is compared as a whole"
    known = [host for host in iterations if host is not None]
    unknown = [file for file, host in zip(files, known, strict=True) if host.gpu_end is None or len(host.start) < 2]
    if requested == "gpu" and unknown:
        raise RequestError(f"{unknown[0]}: --cut gpu needs two iterations that each launch kernels; use --cut range")
    if requested == "gpu":
        return "gpu", f"--cut gpu: {GPU_CUT}"
    if requested == "auto" and all(host.gpu_end is None for host in known):
        return "range", "iterations are NVTX ranges: in every capture some iterations launch no kernels"
    late = [file for file, host in zip(files, known, strict=True) if host.gpu_lag > MAX_GPU_LAG]
    if requested == "range":
        return "range", "--cut range: iterations are NVTX ranges"
    if not late:
        return "range", "iterations are NVTX ranges: the GPU finishes each iteration within its range"
    ahead = ", ".join(late)
    if unknown:
        return "range", (
            f"iterations are NVTX ranges, although the host runs ahead of the GPU ({ahead}): "
            f"{unknown[0]} has iterations without kernels, so their end on the GPU is unknown"
        )
    return "gpu", f"the host runs ahead of the GPU ({ahead}), so {GPU_CUT}"


def align_iterations(host: HostIterations, cut: str) -> AlignedIterations:
    """Return the steady iterations of a capture for a cut ("range" or "gpu")."""
    begins = host.start
    # Host work between two ranges belongs to the earlier iteration, work after the last range to none.
    next_begin = np.append(begins[1:], host.end[-1])
    if cut == "range" or host.gpu_end is None:
        steady = slice(host.skipped, None)
        return AlignedIterations(begins[steady], host.end[steady], begins[steady], next_begin[steady], host.skipped)
    # The start of the first iteration on the GPU is unknown.
    first = max(host.skipped, 1)
    gpu_start, gpu_end = host.gpu_end[first - 1 : -1], host.gpu_end[first:]
    return AlignedIterations(gpu_start, gpu_end, begins[first:], next_begin[first:], first)
