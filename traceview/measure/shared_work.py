"""Work that measures share: results that follow from one frame are kept, and measures run on threads.

Most measures need the launches of operations, and the rows of a device.
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
from numpy.typing import NDArray

from traceview.intervals import BLOCK, Rows, Times, adjoining, blocks, rows_by_code
from traceview.model.trace import EVERYTHING, Trace

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


@once_per_frame
def rows_of_devices(operations: pl.DataFrame) -> dict[int, Rows]:
    """Return the rows of Trace.operations of each device, ascending. Do not change the result."""
    return dict(rows_by_code(operations["device"].to_numpy()))


MAX_LENGTH = 10_000  # operations: a longer queue has this length
# ns; a delay counts as the edge below it, 32 in a doubling, so that a median is at most 2.2% too small.
DELAY_EDGES = np.unique(np.array([0, *(round(2 ** (step / 32)) for step in range(48 * 32))], np.int64))


class LaunchQueue(NamedTuple):
    """The launches of a device's operations, in the order of their calls.

    `moment` is the start of each call, `ahead` the number of operations that are launched and not started then, at most
    MAX_LENGTH. `delay` is the place in DELAY_EDGES of the ns from the end of the call to the start of the operation, 0
    if it starts before.
    """

    moment: Times
    ahead: NDArray[np.int16]
    delay: NDArray[np.int16]

    @classmethod
    def from_trace(cls, trace: Trace, device: int) -> LaunchQueue:
        """Return the launches of a device (row of Trace.devices) whose calls begin in the window of the trace."""
        launch, (call, returned) = launch_rows(trace.operations), (trace.api[name].to_numpy() for name in TIMES)
        on_device = rows_of_devices(trace.operations)[device]
        rows = adjoining(on_device[launch[adjoining(on_device)] >= 0])
        start, launch = trace.operations["start"].to_numpy()[rows], launch[rows]
        order = np.argsort(call[launch], kind="stable").astype(np.int32)  # fast, because they nearly ascend
        launch = launch[order]
        moment, window = call[launch], trace.window or EVERYTHING
        first, stop = np.searchsorted(moment, [window.start, window.end]).tolist()
        ahead, delay = np.empty((2, stop - first), np.int16)
        for block in blocks(stop - first):
            own = slice(first + block.start, first + block.stop)
            late = start[order[own]] - returned[launch[own]]
            here = moment[own]
            begun = np.searchsorted(here, here) + own.start
            begun[here == here[0]] = np.searchsorted(moment, here[0])  # equal moments may lie in the block before
            low, high = np.searchsorted(start, here[[0, -1]], side="right").tolist()
            length = begun - low - np.searchsorted(start[low:high], here, side="right")
            ahead[block] = np.clip(length, 0, MAX_LENGTH)
            delay[block] = np.searchsorted(DELAY_EDGES, np.maximum(late, 0), side="right") - 1
        return cls(moment[first:stop], ahead, delay)


THREADS = 2  # more share the same memory bus
FEW_ROWS = BLOCK


class _ThisThread(Executor):
    """Makes each call in the thread that submits it."""

    def submit(self, function: Callable[..., Result], /, *values: object, **named: object) -> Future[Result]:
        """Return the result of the call."""
        future: Future[Result] = Future()
        future.set_result(function(*values, **named))
        return future


def measuring_threads(rows: int) -> Executor:
    """Return an executor for what is measured of `rows`. It has THREADS threads, or none if they gain nothing.

    With few rows, threads wait for the interpreter. polars has one thread in processes that read reports side by side.
    They share the processors, and threads would add a fifth to their time.
    """
    return ThreadPoolExecutor(THREADS) if rows > FEW_ROWS and pl.thread_pool_size() > 1 else _ThisThread()


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
