"""The threads on which parts of the measures run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Thread
from typing import TypeVar

import polars as pl

from traceview.workers import ThisProcess

Result = TypeVar("Result")
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
