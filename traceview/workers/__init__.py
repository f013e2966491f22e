"""Workers measure parts of a capture and reports of a fleet: in this process, in processes, or on a Dask cluster.

Each kind is an executor of concurrent.futures, and has the same additional methods: Workers. `processes.py` and
`cluster.py` hold the others, so that a small capture imports neither multiprocessing nor TLS.

Python puts the working folder first on the path of `python -c` and `python -m`: there a file `socket.py` would run in
place of Python's own module. No Python that is started here imports from the working folder. `-P` does the same from
Python 3.11 on; `-I` also ignores PYTHONPATH and the user's packages.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from traceview.errors import RequestError

Job = TypeVar("Job")
Result = TypeVar("Result")
Call = Callable[[int, Any], Future[Result]]  # starts a job, by its index, in a worker
POLL_SECONDS = 0.2


class WorkerDiedError(RequestError):
    """A worker died in a call, or cannot run it."""


class Workers(Executor):
    """An executor whose calls can choose their worker."""

    poll_seconds = POLL_SECONDS  # a timeout lets Ctrl-C through: polars makes interrupted system calls restart

    def submit(self, function: Callable[..., Result], /, *values: Any, **named: Any) -> Future[Result]:
        """Call a function in any worker."""
        return self.submit_to(None, partial(function, **named), *values)

    def submit_to(self, worker: Any, function: Callable[..., Result], *values: object) -> Future[Result]:
        """Call a function in a worker; None for any."""
        raise NotImplementedError

    def in_each(self, function: Callable[..., object], *values: object) -> None:
        """Call a function in each worker, before the calls that follow."""
        raise NotImplementedError

    def in_order(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield function(job) for each job, in order."""
        return self.map(function, jobs)

    def result(self, future: Future[Result]) -> Result:
        """Return the result of a call. Raises WorkerDiedError, or RequestError if all workers are lost."""
        return future.result()

    def as_completed(
        self,
        function: Callable[[Job], Result],
        jobs: Sequence[Job],
        worker_of: Callable[[Job], Any] = lambda _job: None,
    ) -> Iterator[tuple[int, Future[Result]]]:
        """Yield (index in `jobs`, future of function(job)) as the calls end.

        Few calls are in progress at once: one in each process. `worker_of` returns the worker that a job prefers. The
        jobs in progress in processes that die are repeated at the end, one at a time.
        """
        shared = self._shared(function)

        def call(index: int, worker: Any) -> Future[Result]:
            preferred = worker_of(jobs[index])
            return self.submit_to(worker if preferred is None else preferred, self._apply, shared, jobs[index])

        lost: list[int] = []
        for index, future in self._ended(call, range(len(jobs)), self.slots()):
            if not future.cancelled() and isinstance(future.exception(), BrokenExecutor):
                lost.append(index)
            else:
                yield index, future
        for index in lost:
            yield from self._ended(call, [index], self.slots()[:1])

    def _ended(self, call: Call[Result], indices: Sequence[int], workers: list[Any]) -> Iterator[Any]:
        """Yield (index, future) as the calls end, at most one in progress for each of `workers`."""
        waiting, free = deque(indices), deque(workers)
        running: dict[Future[Result], tuple[int, Any]] = {}
        while waiting or running:
            while waiting and free:
                index, worker = waiting.popleft(), free.popleft()
                running[call(index, worker)] = index, worker
            done = wait(running, self.poll_seconds, FIRST_COMPLETED).done
            self._polled(bool(done))
            for future in done:
                index, worker = running.pop(future)
                self._call_ended(worker, future)
                free.append(worker)
                yield index, future

    @staticmethod
    def _apply(function: Callable[[Job], Result], job: Job) -> Result:
        return function(job)

    def slots(self) -> list[Any]:
        """Return the worker of each call that is in progress at once."""
        return [None]

    def _shared(self, value: Any) -> Any:
        """Return what stands for a value in the calls of many jobs."""
        return value

    def _polled(self, has_ended: bool) -> None:
        """Notice whether a call ended. Raises RequestError if none will end."""

    def _call_ended(self, worker: Any, future: Future[Any]) -> None:
        """Notice that a worker ended a call."""


class ThisProcess(Workers):
    """Runs each call at once, in the thread that submits it."""

    def submit_to(self, worker: Any, function: Callable[..., Result], *values: object) -> Future[Result]:
        """Return the result of the call."""
        future: Future[Result] = Future()
        try:
            future.set_result(function(*values))
        except BaseException as error:
            future.set_exception(error)
        return future

    def in_each(self, function: Callable[..., object], *values: object) -> None:
        """Call the function."""
        function(*values)

    def in_order(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield function(job) for each job, in order; each call begins as the caller reaches it."""
        return map(function, jobs)


M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD = -8, -4, -1  # malloc.h
TRIM_THRESHOLD_BYTES = 64 << 20
MAX_POLARS_THREADS = 4
# The path of `python -c` begins with "", the working folder; without it under -P, -I and PYTHONSAFEPATH.
NO_WORKING_FOLDER = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "


def python_command(code: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs `code` in a new Python, which does not import from the working folder."""
    return [python, "-c", NO_WORKING_FOLDER + code, *arguments]


def limit_memory_and_threads() -> None:
    """Configure the allocators and thread pools for one short command; this saves a quarter of the memory.

    - glibc: all threads share one heap, also for the largest arrays. It keeps freed memory for the next arrays: the
      system clears each page that it gives, which takes a quarter of the time at 10 million kernels.
    - jemalloc, which polars uses: its threads share one arena too. Freed memory serves the next frames for 0.2 s and
      then returns to the system.
    - The cyclic garbage collector is off: one command creates almost no cycles.
    - OpenBLAS gets one thread, because nothing multiplies matrices.
    """
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if (os.cpu_count() or 1) > MAX_POLARS_THREADS:  # 32 threads use 1.5 times the processor time of 4
        os.environ.setdefault("POLARS_MAX_THREADS", str(MAX_POLARS_THREADS))
    os.environ.setdefault("_RJEM_MALLOC_CONF", "narenas:1,dirty_decay_ms:200,muzzy_decay_ms:0")
    with suppress(AttributeError, OSError):  # only glibc has mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def return_freed_memory() -> None:
    """Return to the system what malloc keeps of freed arrays."""
    with suppress(AttributeError, OSError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
