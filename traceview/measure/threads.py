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


def measuring_threads() -> Executor:
    """Return an executor for parts of the measures. It has THREADS threads, or none if polars has one thread.

    polars has one thread in processes that measure slices side by side. They share the processors, and threads would
    add a fifth to their time.
    """
    return ThreadPoolExecutor(THREADS) if pl.thread_pool_size() > 1 else ThisProcess()


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
