"""Workers measure parts of a capture and reports of a fleet: in this process, in processes, or on a Dask cluster.

Each kind is an executor of concurrent.futures, and has the same additional methods: Workers.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib import import_module
from itertools import count as numbers
from multiprocessing import active_children, get_all_start_methods, get_context
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from traceview.allocators import limit_memory_and_threads
from traceview.children import POLL_SECONDS, begin_worker, end_workers, ends_in_order, starting_workers
from traceview.errors import RequestError

Job = TypeVar("Job")
Result = TypeVar("Result")
Call = Callable[[int, Any], Future[Result]]  # starts a job, by its index, in a worker
THREADS = "POLARS_MAX_THREADS"
HAS_FORK_SERVER = "forkserver" in get_all_start_methods()
CALLS_PER_PROCESS = 64  # a new process then replaces this one, because its heap only grows
PART_DIED = "a process that measures slices died, probably out of memory; use less --memory"


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
            if not future.cancelled() and isinstance(future.exception(), BrokenProcessPool):
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

    count = 1

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

    def limit(self, count: int) -> None:
        """Accept any number of processes."""


class Processes(Workers):
    """Processes with the memory settings of the command. A worker is the number of a process.

    Each is a copy of one new process, which imports `module` at once. A copy of this process could inherit locks that
    its threads hold. Each process runs its calls one after another.
    """

    def __init__(self, count: int, module: str = "polars", threads: int | None = None, died: str = PART_DIED) -> None:
        """Prepare `count` processes; each starts at its first call.

        `threads` are those of polars in each process; by default they share the processors. `died` is the reason of
        WorkerDiedError.
        """
        self.count, self.module, self.died = count, module, died
        self.threads = threads or max((os.cpu_count() or 1) // count, 1)
        self.pools: dict[int, ProcessPoolExecutor] = {}
        self.others = set(active_children())
        self.context = get_context("forkserver" if HAS_FORK_SERVER else "spawn")
        self._calls: Counter[int] = Counter()
        self._turn = numbers()
        if HAS_FORK_SERVER:
            self.context.set_forkserver_preload([module])
            with starting_workers():
                ensure_running()

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        self.shutdown(wait=error is None, cancel_futures=True)
        if error is not None:
            end_workers(set(active_children()) - self.others)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all processes."""
        for pool in self.pools.values():
            pool.shutdown(wait, cancel_futures=cancel_futures)
        self.pools.clear()

    def limit(self, count: int) -> None:
        """End the processes after the first `count`."""
        for number in range(count, self.count):
            self._end(number)
        self.count = count

    def submit_to(self, worker: int | None, function: Callable[..., Result], *values: object) -> Future[Result]:
        """Call a function in the process with this number, modulo their count."""
        number = (next(self._turn) if worker is None else worker) % self.count
        try:
            return (self.pools.get(number) or self._start(number)).submit(function, *values)
        except (BrokenProcessPool, EOFError, ConnectionError) as error:  # or the server that starts processes died
            self.pools.pop(number, None)
            failed: Future[Result] = Future()
            failed.set_exception(BrokenProcessPool(str(error)))
            return failed

    def in_each(self, function: Callable[..., object], *values: object) -> None:
        """Call a function in each process, before the calls that follow."""
        with TemporaryDirectory(prefix="traceview-") as folder:
            file = Path(folder) / "call"  # through pipes, this process would hold one copy for each of them
            with file.open("xb") as content:
                pickle.dump(partial(function, *values), content, pickle.HIGHEST_PROTOCOL)
            for called in [self.submit_to(number, _call, file) for number in range(self.count)]:
                self.result(called)

    def in_order(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield function(job) for each job, in order. Job i runs in process i; all begin at once.

        Each process gets `function` once.
        """
        self.in_each(_keep_function, function)
        futures = [self.submit_to(number, _call_kept, job) for number, job in enumerate(jobs)]
        futures.reverse()  # a result is freed as soon as the caller has it
        return (self.result(futures.pop()) for _ in range(len(futures)))

    def result(self, future: Future[Result]) -> Result:
        """Return the result of a call. Raises WorkerDiedError if its process died."""
        try:
            return future.result()
        except BrokenProcessPool:
            raise WorkerDiedError(self.died) from None

    def _start(self, number: int) -> ProcessPoolExecutor:
        with starting_workers():
            self.pools[number] = pool = ProcessPoolExecutor(1, self.context)
            pool.submit(_configure, self.threads, self.module)
        return pool

    def _end(self, number: int) -> None:
        if number in self.pools:
            self.pools.pop(number).shutdown(cancel_futures=True)
        self._calls[number] = 0

    @staticmethod
    def _apply(function: Callable[[Job], Result], job: Job) -> Result:
        with ends_in_order():
            return function(job)

    def slots(self) -> list[Any]:
        """Return the numbers of all processes."""
        return list(range(self.count))

    def _call_ended(self, worker: int, future: Future[Any]) -> None:
        self._calls[worker] += 1
        if self._calls[worker] == CALLS_PER_PROCESS or isinstance(future.exception(), BrokenProcessPool):
            self._end(worker)


def _configure(threads: int, module: str) -> None:
    """Set the limits of a process before it uses polars, and import what it needs."""
    begin_worker()
    os.environ[THREADS] = str(threads)
    limit_memory_and_threads()
    import_module(module)


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
