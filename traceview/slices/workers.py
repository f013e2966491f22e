"""Worker processes. Each process runs its calls one after another."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib import import_module
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, TypeVar

from traceview.allocators import limit_memory_and_threads
from traceview.errors import RequestError

Job = TypeVar("Job")
Shared = TypeVar("Shared")
Result = TypeVar("Result")
THREADS = "POLARS_MAX_THREADS"
HAS_FORK_SERVER = "forkserver" in get_all_start_methods()


class WorkerProcesses:
    """Processes with the memory settings of the command.

    Each is a copy of one new process, which imports `module` at once. A copy of this process could inherit locks that
    its threads hold.
    """

    def __init__(self, count: int, module: str = "polars") -> None:
        """Prepare `count` processes, which share the processors. The first call starts them."""
        self.count, self.module = count, module
        self.pools: list[ProcessPoolExecutor] = []
        self.context = get_context("forkserver" if HAS_FORK_SERVER else "spawn")
        if HAS_FORK_SERVER:
            self.context.set_forkserver_preload([module])
            ensure_running()

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_error: object) -> None:
        for pool in self.pools:
            pool.shutdown(cancel_futures=True)

    def _start(self) -> None:
        self.pools = [ProcessPoolExecutor(1, self.context) for _ in range(self.count)]
        threads = max((os.cpu_count() or 1) // self.count, 1)
        for pool in self.pools:
            pool.submit(_configure, threads, self.module)

    def limit(self, count: int) -> None:
        """End the processes after the first `count`."""
        for pool in self.pools[count:]:
            pool.shutdown(cancel_futures=True)
        del self.pools[count:]
        self.count = count

    def in_each(self, function: Callable[..., object], *values: object) -> None:
        """Call a function in each process, before the calls that follow."""
        with TemporaryDirectory(prefix="traceview-") as folder:
            file = Path(folder) / "call"  # through pipes, this process would hold one copy for each of them
            with file.open("xb") as content:
                pickle.dump(partial(function, *values), content, pickle.HIGHEST_PROTOCOL)
            for called in [self.submit(number, _call, file) for number in range(self.count)]:
                result_of(called)

    def submit(self, number: int, function: Callable[..., Result], *values: object) -> Future[Result]:
        """Call a function in the process with this number, modulo their count."""
        if not self.pools:
            self._start()
        return self.pools[number % self.count].submit(function, *values)

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


def _configure(threads: int, module: str) -> None:
    """Set the limits of a process before it uses polars, and import what it needs."""
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ[THREADS] = str(threads)
    limit_memory_and_threads()
    import_module(module)


def _end_with_parent() -> None:
    """End this process when its parent has ended, also if the system ended the parent."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


_function: Callable[[Any], Any] | None = None


def _call(file: Path) -> None:
    """Call the function in a file that no other user can write to."""
    with file.open("rb") as content:
        pickle.load(content)()


def _keep_function(function: Callable[[Any], Any]) -> None:
    """Keep the function of the calls of _call_kept that follow."""
    global _function
    _function = function


def _call_kept(job: Any) -> Any:
    assert _function is not None, "the process has a function"
    return _function(job)
