"""The iterations of a capture that a comparison measures: from one border to the next.

A border is the start of an NVTX range or period, or, where the host runs ahead, the end of an iteration's work on the
GPU (measure/iterations/times.py). The time from border to border contains the time between ranges.
"""

from __future__ import annotations

import numpy as np

from traceview.comparison.document import Analyzed
from traceview.intervals import Times
from traceview.measure.iterations.times import IterationTimes
from traceview.model.analysis import NotMeasured
from traceview.model.frozen import dataclass


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


def align_borders(host: IterationTimes) -> AlignedIterations:
    """Return the times from one steady iteration to the next. Their mean is Iterations.time_ns."""
    steady = slice(host.skipped, None)
    begins = np.append(host.start, host.end[-1])[steady]  # host calls after the last range belong to no iteration
    if host.finish is None or not host.runs_ahead:
        start, end = host.moments[:-1], host.moments[1:]
    else:
        start, end = host.gpu_start[steady], host.finish[steady]
    return AlignedIterations(start, end, begins[:-1], begins[1:], host.skipped)
