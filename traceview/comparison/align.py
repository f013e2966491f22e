"""Cut every capture into iterations.

The NVTX range around a step ends when the *host* has finished the step. If the host waits for the GPU in every step,
the range is the iteration. Otherwise the host runs ahead: its ranges are short until a queue is full, and one range
contains all the waiting, so their median is meaningless. Then an iteration lasts from the end of the previous
iteration's work on the GPU to the end of its own.

Medians need one cut for all captures. The mean time per iteration needs none: it comes from each capture's analysis
(measure/iterations/times.py), which measures from border to border, so that it contains the time between ranges.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceview.comparison.document import Analyzed
from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.measure.iterations.times import MAX_GPU_LAG, IterationTimes
from traceview.model.analysis import NotMeasured
from traceview.model.frozen import dataclass

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

    def places(self, moments: Times) -> Times:
        """Return the number of the iteration on the GPU in which each moment lies; -1 for none."""
        place = np.searchsorted(self.start, moments, side="right") - 1
        return np.where(moments < self.end[np.maximum(place, 0)], place, -1)


def iteration_times(report: Analyzed) -> IterationTimes | None:
    """Return when the iterations of a capture start and end, and the GPU finishes them; None if it has none."""
    iterations = report.iterations
    if isinstance(iterations, NotMeasured):
        return None
    start, end, finish = (
        np.array([getattr(row, name) for row in iterations.per_iteration])
        for name in ("start_ns", "end_ns", "gpu_end_ns")
    )
    return IterationTimes(start, end, None if None in finish else finish, iterations.skipped)


def choose_cut(
    iterations: Sequence[IterationTimes | None], requested: str, files: Sequence[str], unit: str
) -> tuple[str, str]:
    """Return how to cut every capture ("range", "gpu" or "whole") and the reason, for a `--cut` option.

    `unit` is what the iterations are.

    Raises RequestError for `--cut gpu` if the end of an iteration on the GPU is unknown in a capture.
    """
    for file, host in zip(files, iterations, strict=True):
        if host is None:
            return "whole", f"{file} has no iterations, so each capture is compared as a whole"
    known = [host for host in iterations if host is not None]
    unknown = [file for file, host in zip(files, known, strict=True) if host.finish is None or len(host.start) < 2]
    if requested == "gpu" and unknown:
        raise RequestError(
            f"{unknown[0]}: --cut gpu needs two iterations that each launch kernels, and when the GPU ends them; use "
            "--cut range"
        )
    if requested == "gpu":
        return "gpu", f"--cut gpu: {GPU_CUT}"
    if requested == "auto" and all(host.finish is None for host in known):
        return "range", f"iterations are {unit}: no capture shows when the GPU ends each iteration"
    late = [file for file, host in zip(files, known, strict=True) if host.gpu_lag > MAX_GPU_LAG]
    if requested == "range":
        return "range", f"--cut range: iterations are {unit}"
    if not late:
        return "range", f"iterations are {unit}: the GPU finishes each before it ends"
    ahead = ", ".join(late)
    if unknown:
        return "range", (
            f"iterations are {unit}, although the host runs ahead of the GPU ({ahead}): "
            f"{unknown[0]} does not show when the GPU ends each iteration"
        )
    return "gpu", f"the host runs ahead of the GPU ({ahead}), so {GPU_CUT}"


def align_iterations(host: IterationTimes, cut: str) -> AlignedIterations:
    """Return the steady iterations of a capture for a cut ("range" or "gpu")."""
    begins = host.start
    # Host work between two ranges belongs to the earlier iteration, work after the last range to none.
    next_begin = np.append(begins[1:], host.end[-1])
    steady = slice(host.skipped, None)
    if cut == "range" or host.finish is None:
        return AlignedIterations(begins[steady], host.end[steady], begins[steady], next_begin[steady], host.skipped)
    return AlignedIterations(
        host.gpu_start[steady], host.finish[steady], begins[steady], next_begin[steady], host.skipped
    )


def align_borders(host: IterationTimes) -> AlignedIterations:
    """Return the times from one steady iteration to the next. Their mean is Iterations.time_ns."""
    borders = host.moments
    if host.runs_ahead:
        return align_iterations(host, "gpu")
    return AlignedIterations(borders[:-1], borders[1:], borders[:-1], borders[1:], host.skipped)
