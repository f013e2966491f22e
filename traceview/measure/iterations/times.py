"""How long an iteration takes: on the host, or on the GPU where the host runs ahead (docs/definitions.md "Iterations").

A host that runs ahead launches an iteration long before the GPU executes it, and waits only where a queue is full. The
starts of its iterations then say little. The times when the GPU finishes each iteration do not have this defect.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import BEFORE_ALL, Times
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.model.trace import Trace, Window

# The host runs ahead if the GPU finishes later than this share of an iteration after the end of the iteration.
MAX_GPU_LAG = 0.05


class IterationTimes(NamedTuple):
    """When the iterations start and end on the host, and when the GPU finishes each; `skipped` are warm-up.

    `finish` is None where an iteration launches no compute, so that its end on the GPU is unknown.
    """

    start: Times
    end: Times
    finish: Times | None
    skipped: int

    @property
    def gpu_lag(self) -> float:
        """Median time from the end of an iteration to the end of its GPU work, as a share of the median iteration."""
        if self.finish is None:
            return 0.0
        steady = slice(self.skipped, None)
        lag = float(np.median(self.finish[steady] - self.end[steady]))
        wall = float(np.median(self.end[steady] - self.start[steady]))
        return lag / wall if wall else 0.0

    @property
    def runs_ahead(self) -> bool:
        """True if the host launches an iteration long before the GPU finishes it."""
        return self.finish is not None and self.gpu_lag > MAX_GPU_LAG

    @property
    def steady(self) -> Window:
        """The time from the first counted iteration to the last, on the GPU where the host runs ahead."""
        first, last = int(self.start[self.skipped]), int(self.end.max())
        if self.finish is None or not self.runs_ahead:
            return Window(first, last)
        begin = int(self.finish[self.skipped - 1]) if self.skipped else first
        return Window(begin, max(int(self.finish[-1]), begin + 1))

    @property
    def moments(self) -> Times:
        """The borders between counted iterations, at least two: from each to the next is the time of an iteration."""
        if self.finish is not None and self.runs_ahead:
            # The end of the last skipped iteration begins the first counted one.
            borders = self.finish[max(self.skipped - 1, 0) :]
        else:
            borders = self.start[self.skipped :]
        return borders if len(borders) > 1 else np.array([self.start[-1], self.end[-1]])

    @property
    def time_ns(self) -> int:
        """The mean time from one counted iteration to the next."""
        moments = self.moments
        return int(moments[-1] - moments[0]) // (len(moments) - 1)


def finish_times(trace: Trace, process: int, start: Times, devices: Collection[int]) -> Times | None:
    """Return when the GPUs finish the compute and communication that each iteration launches.

    `start` are the starts of the iterations of a process, `devices` rows of Trace.devices. Copies do not count, because
    a prefetched batch belongs to the next iteration. Return None if an iteration launches nothing.
    """
    return finish_from_ends(last_ends(trace, process, start, devices))


def finish_from_ends(ends: Times) -> Times | None:
    """Return the result of finish_times from that of last_ends."""
    return None if (ends == BEFORE_ALL).any() else np.maximum.accumulate(ends)


def last_ends(trace: Trace, process: int, start: Times, devices: Collection[int]) -> Times:
    """Return the last end of the compute and communication launched between each of `start` and the next.

    BEFORE_ALL stands for none. The parameters are those of finish_times.
    """
    calls = trace.api["start"].to_numpy()
    work = trace.operations.lazy().filter(
        pl.col("class").to_physical() <= max(COMPUTE, COMMUNICATION),
        pl.col("launch").is_not_null(),
        pl.col("process") == process,
        pl.col("device").is_in(list(devices)),
    )
    launched = work.select("launch", "end").collect()
    # Number the calls by iteration, so that an operation needs one look-up.
    borders = np.searchsorted(calls, start, side="left")
    iteration_of_call = np.repeat(np.arange(-1, len(start)), np.diff(borders, prepend=0, append=len(calls)))
    # The last entry stands for work before the first iteration, number -1.
    ends = np.full(len(start) + 1, BEFORE_ALL)
    np.maximum.at(ends, iteration_of_call.take(launched["launch"].to_numpy()), launched["end"].to_numpy())
    return ends[:-1]
