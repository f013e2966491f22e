"""Work that measures share: results that follow from one frame are kept, and parts of a measure run on threads.

The parts of a capture share the frame of NVTX ranges: what follows from it alone is computed once in each process.
Most measures need the launches of operations.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import wraps
from threading import Thread
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl

from traceview.intervals import Rows, Times
from traceview.model.trace import EVERYTHING, Trace
from traceview.workers import ThisProcess

Result = TypeVar("Result")
TIMES = ("start", "end")


def once_per_frame(function: Callable[[pl.DataFrame], Result]) -> Callable[[pl.DataFrame], Result]:
    """Return the function with its results kept by frame. A result must not hold its frame."""
    kept: dict[int, tuple[weakref.ref[pl.DataFrame], Result]] = {}

    @wraps(function)
    def result_of(frame: pl.DataFrame) -> Result:
        key = id(frame)
        known = kept.get(key)
        if known is not None and known[0]() is frame:
            return known[1]
        result = function(frame)
        kept[key] = (weakref.ref(frame, lambda _: kept.pop(key, None)), result)
        return result

    return result_of


@once_per_frame
def launch_rows(operations: pl.DataFrame) -> Rows:
    """Return the row of Trace.api of the call that launched each operation, -1 for none. Do not change the result."""
    launch = operations["launch"]
    return (launch.fill_null(-1) if launch.null_count() else launch).to_numpy()


class LaunchQueue(NamedTuple):
    """The launches of a device's operations, in the order of their calls.

    `moment` is the start of each call, `ahead` the number of operations that are launched and not started then, and
    `delay` the ns from the end of the call to the start of the operation, 0 if it starts before.
    """

    moment: Times
    ahead: Times
    delay: Times

    @classmethod
    def from_trace(cls, trace: Trace, device: int) -> LaunchQueue:
        """Return the launches of a device (row of Trace.devices) whose calls begin in the window of the trace.

        A part of a capture has all work that is in the queue at a moment of its window.
        """
        launch, (call, returned) = launch_rows(trace.operations), (trace.api[name].to_numpy() for name in TIMES)
        rows = np.flatnonzero((trace.operations["device"].to_numpy() == device) & (launch >= 0))
        start, moment = trace.operations["start"].to_numpy()[rows], call[launch[rows]]
        delay = np.maximum(start - returned[launch[rows]], 0)
        window = trace.window or EVERYTHING
        order = np.argsort(moment, kind="stable")  # fast, because they nearly ascend
        moment, delay = moment[order], delay[order]
        own = slice(*np.searchsorted(moment, [window.start, window.end]).tolist())
        ahead = np.searchsorted(moment, moment[own]) - np.searchsorted(start, moment[own], side="right")
        return cls(moment[own], np.maximum(ahead, 0), delay[own])


THREADS = 2  # more share the same memory bus
FEW_ROWS = 1 << 15


def measuring_threads(rows: int) -> Executor:
    """Return an executor for what is measured of `rows`. It has THREADS threads, or none if they gain nothing.

    With few rows, threads wait for the interpreter. polars has one thread in processes that measure parts side by
    side. They share the processors, and threads would add a fifth to their time.
    """
    return ThreadPoolExecutor(THREADS) if rows > FEW_ROWS and pl.thread_pool_size() > 1 else ThisProcess()


def started_beside(function: Callable[[], Result]) -> Callable[[], Result]:
    """Start a function in a thread of its own. Return a function that waits for its result."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future.result
