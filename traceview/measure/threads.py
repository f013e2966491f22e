"""The threads on which parts of the measures run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

import polars as pl

Result = TypeVar("Result")

THREADS = 2  # more share the same memory bus


class _InTurn(Executor):
    """Runs each call at once, in the thread that submits it."""

    def submit(self, function: Callable[..., Result], /, *values: Any, **named: Any) -> Future[Result]:
        """Return the result of the call."""
        future: Future[Result] = Future()
        try:
            future.set_result(function(*values, **named))
        except BaseException as error:
            future.set_exception(error)
        return future


def measuring_threads() -> Executor:
    """Return an executor for parts of the measures. It has THREADS threads, or none if polars has one thread.

    polars has one thread in processes that measure slices side by side. They share the processors, and threads would
    add a fifth to their time.
    """
    return ThreadPoolExecutor(THREADS) if pl.thread_pool_size() > 1 else _InTurn()
