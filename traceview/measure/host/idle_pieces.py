"""The parts of idle gaps for which a host thread is responsible: those before the launch that ends the gap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Intervals
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.model.trace import Trace


class ThreadIdle(NamedTuple):
    """Idle time of a device that ends with launches of one thread (row of Trace.threads).

    `until_launch` lasts to the return of the launch, without the profiler's overhead: the causes `launch`, `sync`,
    `blocking_copy`, `memory`, `api` and `host`. `host` has the cause `host` only.
    """

    thread: int
    until_launch: Intervals
    host: Intervals


def idle_by_thread(trace: Trace, states: ThreadStates, gaps: pl.DataFrame) -> Iterator[ThreadIdle]:
    """Yield the idle time of each launching thread; `gaps` has start, end, operation and thread (see Gaps.frame)."""
    ended = gaps.filter(pl.col("thread").is_not_null())
    if ended.is_empty():
        return
    call = trace.operations["launch"].gather(ended["operation"].to_numpy()).to_numpy()
    start, end, thread = (ended[name].to_numpy() for name in ("start", "end", "thread"))
    launched, returned = (np.clip(trace.api[name].to_numpy()[call], start, end) for name in ("start", "end"))
    profiler = states.profiler.union()
    for caller in np.flatnonzero(np.bincount(thread)).tolist():
        own = thread == caller
        before = intervals.union(start[own], launched[own], ordered=True)
        host = intervals.subtract(before, states.threads[caller].all.calls_near(before))
        blamed = intervals.union(start[own], np.maximum(returned[own], launched[own]), ordered=True)
        yield ThreadIdle(caller, intervals.subtract(blamed, profiler), intervals.subtract(host, profiler))
