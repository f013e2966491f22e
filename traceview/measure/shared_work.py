"""Work that measures share: results that follow from one frame are kept, and measures run on threads.

Most measures need the launches of operations, and the rows of a device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import wraps
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import (
    BEFORE_ALL,
    BLOCK,
    Intervals,
    Rows,
    Times,
    adjoining,
    index_ranges,
    rows_by_code,
    sorted_unique,
)
from traceview.model.trace import EVERYTHING, Trace

Result = TypeVar("Result")
TIMES = ("start", "end")
LONG = 100_000  # ns; events, CUDA graphs and copies between GPUs need less to start the next operation


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


def once_per_trace(function: Callable[[Trace], Result]) -> Callable[[Trace], Result]:
    """Return the function with its results kept by the operations of a trace. A result must not hold its frames."""

    @once_per_frame
    def kept(_operations: pl.DataFrame) -> list[Result]:
        return []

    @wraps(function)
    def result_of(trace: Trace) -> Result:
        known = kept(trace.operations)
        if not known:
            known.append(function(trace))
        return known[0]

    return result_of


@once_per_frame
def _known_codes(_frame: pl.DataFrame) -> dict[str, NDArray[Any]]:
    return {}


def codes_of(frame: pl.DataFrame, name: str) -> NDArray[Any]:
    """Return a column as an array, an Enum column as codes, null as the number of texts. Do not change the result."""
    known = _known_codes(frame)
    if name not in known:
        codes = frame[name].to_physical()
        if codes.null_count() and isinstance(texts := frame.schema[name], pl.Enum):
            codes = codes.fill_null(len(texts.categories))
        known[name] = codes.to_numpy()
    return known[name]


@once_per_frame
def launch_rows(operations: pl.DataFrame) -> Rows:
    """Return the row of Trace.api of the call that launched each operation, -1 for none. Do not change the result."""
    launch = operations["launch"]
    return (launch.fill_null(-1) if launch.null_count() else launch).to_numpy()


@once_per_frame
def first_launched(operations: pl.DataFrame) -> Rows:
    """Return the first operation that each call launches, -1 for none, by row of Trace.api; later rows launch none."""
    launch = launch_rows(operations)
    first = np.full(int(launch.max(initial=-1)) + 2, -1, np.int32)
    first[launch[::-1]] = np.arange(len(launch), dtype=np.int32)[::-1]  # the first is written last
    first[-1] = -1
    return first


@once_per_frame
def long_calls(api: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of more than LONG ns, with their `row` of Trace.api: during these, a GPU may wait for one."""
    rows = np.flatnonzero(api["end"].to_numpy() - api["start"].to_numpy() > LONG)
    return api[rows].with_columns(row=pl.Series(rows, dtype=pl.UInt32))


def calls_during(api: pl.DataFrame, times: Intervals) -> Times:
    """Return the rows of calls that overlap some disjoint ascending times, and of some calls before these."""
    begin, long = api["start"].to_numpy(), long_calls(api)
    low, high = np.searchsorted(begin, times.start - LONG), np.searchsorted(begin, times.end)
    low[1:] = np.maximum(low[1:], high[:-1])
    rows = index_ranges(low, np.maximum(high - low, 0))
    return sorted_unique(np.append(rows, long["row"].to_numpy()))


@once_per_frame
def rows_of_devices(operations: pl.DataFrame) -> dict[int, Rows]:
    """Return the rows of Trace.operations of each device, ascending. Do not change the result."""
    return dict(rows_by_code(operations["device"].to_numpy()))


class LaunchQueue(NamedTuple):
    """The launches of a device's operations, in the order of their calls.

    `operation` and `call` are rows of Trace.operations and Trace.api, and `moment` the start of each call. `ahead` is
    the number of operations that are launched and not started then, and `delay` the ns from the end of the call to the
    start of the operation, 0 if it starts before.
    """

    operation: Rows
    call: Rows
    moment: Times
    ahead: Rows
    delay: Times

    @classmethod
    def from_trace(cls, trace: Trace, device: int) -> LaunchQueue:
        """Return the launches of a device (row of Trace.devices) whose calls begin in the window of the trace."""
        launch, (begin, returned) = launch_rows(trace.operations), (trace.api[name].to_numpy() for name in TIMES)
        on_device = rows_of_devices(trace.operations)[device]
        rows = on_device[launch[adjoining(on_device)] >= 0]
        start, launch = (column[adjoining(rows)] for column in (trace.operations["start"].to_numpy(), launch))
        order = np.argsort(launch, kind="stable")  # calls are sorted by start, and launches nearly
        call, window = launch[order], trace.window or EVERYTHING
        moment = begin[call]
        first, stop = np.searchsorted(moment, [window.start, window.end]).tolist()
        every = np.arange(len(moment), dtype=np.int32)
        begun = np.maximum.accumulate(np.where(np.diff(moment, prepend=BEFORE_ALL), every, 0))
        inside = slice(first, stop)
        moment, call, order = moment[inside], call[inside], order[inside]
        ahead = np.maximum(begun[inside] - np.searchsorted(start, moment, side="right"), 0).astype(np.int32)
        return cls(rows[order], call, moment, ahead, np.maximum(start[order] - returned[call], 0))


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
