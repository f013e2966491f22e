"""Worker processes. Each process runs its calls one after another."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

from traceview.allocators import limit_memory_and_threads
from traceview.errors import RequestError

Job = TypeVar("Job")
Shared = TypeVar("Shared")
Result = TypeVar("Result")
THREADS = "POLARS_MAX_THREADS"


class WorkerProcesses:
    """Processes with the memory settings of the command.

    They are new processes, not copies of this one, whose threads may hold locks.
    """

    def __init__(self, count: int) -> None:
        """Start `count` processes."""
        self.count, context = count, get_context("spawn")
        self.pools = [ProcessPoolExecutor(1, context) for _ in range(count)]
        # New processes inherit the environment. They share the processors.
        threads = os.environ.get(THREADS)
        os.environ[THREADS] = str(max((os.cpu_count() or 1) // count, 1))
        self.in_each(limit_memory_and_threads)
        if threads is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = threads

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_error: object) -> None:
        for pool in self.pools:
            pool.shutdown(cancel_futures=True)

    def in_each(self, function: Callable[..., object], *values: object) -> None:
        """Call a function in each process, before the calls that follow."""
        content = pickle.dumps(partial(function, *values), pickle.HIGHEST_PROTOCOL)
        for pool in self.pools:
            pool.submit(_call, content)

    def submit(self, number: int, function: Callable[..., Result], *values: object) -> Future[Result]:
        """Call a function in the process with this number, modulo their count."""
        return self.pools[number % len(self.pools)].submit(function, *values)

    def map(self, function: Callable[[Shared, Job], Result], shared: Shared, jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield function(shared, job) for each job, in order. Job i runs in process i; all begin at once.

        Each process gets `shared` once.
        """
        self.in_each(_keep_function, partial(function, shared))
        futures = [self.submit(number, _call_kept, job) for number, job in enumerate(jobs)]
        futures.reverse()  # a result is freed as soon as the caller has it
        return (result_of(futures.pop()) for _ in range(len(futures)))


def result_of(future: Future[Result]) -> Result:
    """Return the result of a call in a process. Raises RequestError if the process died."""
    try:
        return future.result()
    except BrokenProcessPool:
        raise RequestError("a process that measures slices died, probably out of memory; use less --memory") from None


_function: Callable[[Any], Any] | None = None


def _call(content: bytes) -> None:
    pickle.loads(content)()


def _keep_function(function: Callable[[Any], Any]) -> None:
    """Keep the function of the calls of _call_kept that follow."""
    global _function
    _function = function


def _call_kept(job: Any) -> Any:
    assert _function is not None, "the process has a function"
    return _function(job)
