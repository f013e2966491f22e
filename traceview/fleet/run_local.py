"""Reports read by processes of this machine."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

from traceview.fleet.form import packed
from traceview.fleet.job import Job
from traceview.fleet.lifetime import signals_deferred
from traceview.fleet.worker import begin, work_in_process

RECYCLED = 64  # reports after which a worker makes room for a new one: heaps only grow
HEARD_IN = 0.2  # seconds
PATIENCE = 10  # times that a process is asked to end
DIED = "the process that read it died twice, most likely for want of memory; give fewer --workers"

Numbered = tuple[int, bytes]


def read_locally(paths: Sequence[Path], job: Job, workers: int) -> Generator[Numbered, None, None]:
    """Yield (place in `paths`, packed result) as they come, from so many processes at once.

    A process that dies takes its pool with it: what it had not finished is read again, one by one, and a report
    that kills its reader again is given up.
    """
    waiting = deque(range(len(paths)))
    while waiting:
        batch = deque(waiting.popleft() for _ in range(min(len(waiting), RECYCLED * workers)))
        suspects = yield from _batch(paths, job, batch, min(workers, len(batch)))
        for place in suspects:
            lost = yield from _batch(paths, job, deque([place]), 1)
            yield from ((again, packed(DIED)) for again in lost)
        waiting.extendleft(reversed(batch))


def _batch(paths: Sequence[Path], job: Job, places: deque[int], workers: int) -> Generator[Numbered, None, list[int]]:
    """Read from the front of `places` until it is empty or a process dies; return what was under way then.

    No more are handed out than there are workers, so that few are under suspicion.
    """
    running: dict[Future[bytes], int] = {}
    with _pool(workers) as pool:
        try:
            while places or running:
                while places and len(running) < workers:
                    place = places.popleft()
                    with signals_deferred():  # the first calls start the workers
                        running[pool.submit(work_in_process, str(paths[place]), job)] = place
                # Not for ever: polars has signals restart what they interrupt, so Ctrl-C would wait as well.
                for future in wait(running, timeout=HEARD_IN, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    yield running.pop(future), result
        except BrokenProcessPool:
            return sorted(running.values())
    return []


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Have workers with one thread each; on the way out of an error they are ended, not waited for."""
    # Spawned, not forked: polars has threads, which a fork would lose.
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=begin)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        _end(set(multiprocessing.active_children()) - before)
        raise


def _end(children: set[multiprocessing.process.BaseProcess]) -> None:
    """End processes that may have an nsys under way, which they end first; one that does not listen is killed."""
    # Again and again: one that handles Ctrl-C just then may give the signal to a thread that nothing wakes up.
    for _ in range(PATIENCE):
        for child in children:
            if child.is_alive():
                child.terminate()
        for child in children:
            child.join(HEARD_IN / len(children))
    for child in children:
        if child.is_alive():
            child.kill()
