"""Which NVTX ranges each GPU operation belongs to (METRICS.md "NVTX projected on the GPU")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.measure.nvtx.stretches import Stretches
from traceview.model.trace import Trace

Value = TypeVar("Value", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Projection:
    """Which ranges each GPU operation belongs to: those open in the stretch of its launch.

    Operations that follow each other and belong to the same are a run; `begin` is the row of Trace.operations of
    each run's first. `stretch` is that of a run, 0 where it belongs to nothing; `via_process` says that the launching
    thread had no range open, and the annotating thread had.
    """

    stretches: Stretches
    operations: int
    begin: Times
    stretch: Times
    via_process: NDArray[np.bool_]

    def each(self, of_run: NDArray[Value]) -> NDArray[Value]:
        """Return the value of each operation's run."""
        return np.repeat(of_run, np.diff(self.begin, append=self.operations))


def project(trace: Trace) -> Projection:
    """Find the ranges of every operation; one without a launch in the capture belongs to nothing."""
    launch = trace.operations["launch"].fill_null(-1).to_numpy().astype(np.int64)  # so it is an index as it is
    stretches = Stretches.of(*(trace.ranges[name].to_numpy() for name in ("start", "end", "thread")))
    if trace.api.is_empty() or trace.ranges.is_empty():
        none = np.zeros(min(len(launch), 1), np.int64)
        return Projection(stretches, len(launch), none, none, none > 0)
    among, thread = stretches.among(trace.api["start"].to_numpy()), trace.api["thread"].to_numpy()
    begin = _runs(among.passed()[launch], thread[launch])
    call = launch[begin]
    own = np.where(call >= 0, thread[call], -1)
    stretch = among.at(own, call)
    lost = np.flatnonzero(stretch == 0)
    stretch[lost] = among.at(annotating_threads(trace)[own[lost]], call[lost])
    via_process = np.zeros(len(begin), np.bool_)
    via_process[lost] = stretch[lost] > 0
    return Projection(stretches, len(launch), begin, stretch, via_process)


def _runs(*columns: NDArray[np.int32]) -> Times:
    """Return the first row of each run of rows that are alike."""
    differ = np.ones(len(columns[0]), np.bool_)
    differ[1:] = False
    for values in columns:
        differ[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(differ)


def annotating_threads(trace: Trace) -> Times:
    """Return for each thread the one of its process that annotates, with the most range time; -1 for none.

    The last entry is that of no thread.
    """
    totals = (
        trace.ranges.group_by("process", "thread")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread"], descending=[True, False])
        .unique("process", keep="first", maintain_order=True)
    )
    process = trace.threads["process"].to_numpy()
    thread = np.full(len(process) + 1, -1, np.int64)
    for one, of, _ in totals.iter_rows():
        thread[:-1][process == one] = of
    return thread
