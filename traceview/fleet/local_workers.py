"""Reads and measures reports in processes of this machine."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from traceview.errors import RequestError
from traceview.fleet.lifetime import signals_deferred
from traceview.fleet.partials import P, Work
from traceview.fleet.worker import Job, loaded, measure_in_process, prepare_process, work_in_process
from traceview.model.fleet import ReportResult
from traceview.slices.memory import MIN_MEMORY, free_memory

MAX_MEASURED_HERE = 256  # reports; new processes start more slowly than so many are measured
REPORTS_PER_LEAF = 32
REPORTS_PER_WORKER = 64  # then a new process replaces the worker, because its heap only grows
POLL_SECONDS = 0.2
MAX_TERMINATE_ATTEMPTS = 10
DIED = "the process that read it died twice, probably out of memory; use fewer --workers, or a smaller --memory"

IndexedResult = tuple[int, ReportResult | str]


class LocalWorkers:
    """Processes of this machine. Results are kept in files of a temporary folder, which ends with the block."""

    def __init__(self, workers: int) -> None:
        """`workers` is the number of processes."""
        self._workers = workers
        self._open = ExitStack()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> LocalWorkers:
        self._folder = Path(self._open.enter_context(TemporaryDirectory(prefix="traceview-fleet-")))
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def kept(self, index: int) -> Path:
        """Return the file with the result of a report."""
        return self._folder / str(index)

    def read(self, paths: Sequence[Path], job: Job) -> Generator[IndexedResult, None, None]:
        """Yield (index in `paths`, header or the reason why there is none) as reports complete.

        A process that dies breaks its pool. The reports that were in progress are then read again, one at a time, and a
        report whose process dies again is given up.
        """
        if job.memory is None:
            job = replace(job, memory=max(free_memory() // 2 // self._workers, MIN_MEMORY))
        waiting = deque(range(len(paths)))
        while waiting:
            batch = deque(waiting.popleft() for _ in range(min(len(waiting), REPORTS_PER_WORKER * self._workers)))
            suspects = yield from self._read_batch(paths, job, batch, min(self._workers, len(batch)))
            for index in suspects:
                failed = yield from self._read_batch(paths, job, deque([index]), 1)
                yield from ((again, DIED) for again in failed)
            waiting.extendleft(reversed(batch))

    def _read_batch(
        self, paths: Sequence[Path], job: Job, indices: deque[int], workers: int
    ) -> Generator[IndexedResult, None, list[int]]:
        """Read from the front of `indices` until it is empty or a process dies; return what was in progress then.

        At most one report per worker is in progress, so that few reports are read again.
        """
        running: dict[Future[ReportResult | str], int] = {}
        with _process_pool(workers) as pool:
            try:
                while indices or running:
                    while indices and len(running) < workers:
                        index = indices.popleft()
                        with signals_deferred():  # the first calls start the workers
                            running[pool.submit(work_in_process, str(paths[index]), job, self.kept(index))] = index
                    # A timeout lets Ctrl-C through: polars makes interrupted system calls restart.
                    for future in wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        yield running.pop(future), result
            except BrokenProcessPool:
                return sorted(running.values())
        return []

    def run(self, work: Work[P], kept: Sequence[tuple[int, Path]]) -> P:
        """Measure kept results, in the processes if there are many, and merge the partial measures as they come.

        Raises RequestError if a process dies.
        """
        if len(kept) <= MAX_MEASURED_HERE or self._workers == 1:
            return work(loaded(kept))
        if self._pool is None:
            self._pool = self._open.enter_context(_process_pool(self._workers))
        leaves = deque(kept[first : first + REPORTS_PER_LEAF] for first in range(0, len(kept), REPORTS_PER_LEAF))
        running: set[Future[P]] = set()
        total: P | None = None
        try:
            while leaves or running:
                while leaves and len(running) <= self._workers:
                    with signals_deferred():  # the first calls start the workers
                        running.add(self._pool.submit(measure_in_process, work, leaves.popleft()))
                done, running = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    part = future.result()
                    total = part if total is None else total.merged(part)
        except BrokenProcessPool:
            raise RequestError(
                "a process that merges results died, probably out of memory; use fewer --workers"
            ) from None
        assert total is not None
        return total


@contextmanager
def _process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of single-threaded workers; an error terminates them without waiting for their results."""
    # Spawn, not fork: fork does not copy the threads of polars.
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=prepare_process)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        _terminate(set(multiprocessing.active_children()) - before)
        raise


def _terminate(children: set[multiprocessing.process.BaseProcess]) -> None:
    """Terminate processes, which first end an nsys that they run; kill those that do not react."""
    # Repeated, because a process that is handling Ctrl-C may pass the signal to a thread that never wakes up.
    for _ in range(MAX_TERMINATE_ATTEMPTS):
        for child in children:
            if child.is_alive():
                child.terminate()
        for child in children:
            child.join(POLL_SECONDS / len(children))
    for child in children:
        if child.is_alive():
            child.kill()
