"""Processes of this machine that read reports: how they start, and end with this process.

Each is a new Python process: a copy of this one could inherit locks that its threads hold.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, spawn, util
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, NoReturn, TypeVar

from traceview.process import NO_WORKING_FOLDER, limit_memory_and_threads

Job = TypeVar("Job")
Result = TypeVar("Result")
POLL_SECONDS = 0.2  # a timeout lets Ctrl-C through: polars makes interrupted system calls restart
DIED = "the process that read it died twice, probably out of memory; use fewer --workers"
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
MAX_TERMINATE_ATTEMPTS = 10
NO_ERROR_OUTPUT = "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 2); "


def in_processes(
    function: Callable[[Job], Result], jobs: Sequence[Job], count: int
) -> Generator[tuple[int, Result | str], None, None]:
    """Yield (index, function(job)) as the calls end in `count` processes.

    A process that dies ends the others, too. Each job that ran then is repeated in a process of its own, and has the
    result DIED if this one dies as well.
    """
    waiting = deque(range(len(jobs)))
    while waiting:
        for index in (yield from _until_death(function, jobs, waiting, count)):
            for _ in (yield from _until_death(function, jobs, deque([index]), 1)):
                yield index, DIED


def in_executor(
    function: Callable[[Job], Result], jobs: Sequence[Job], executor: Executor
) -> Generator[tuple[int, Result | str], None, None]:
    """Yield (index, function(job)) as the calls end in the workers of an executor; one line for a call that fails."""
    running = {executor.submit(function, job): index for index, job in enumerate(jobs)}
    for future in as_completed(running):
        try:
            result: Result | str = future.result()
        except Exception as error:  # the type depends on the executor
            result = f"the worker that read it failed ({type(error).__name__})"
        yield running[future], result


def _until_death(
    function: Callable[[Job], Result], jobs: Sequence[Job], waiting: deque[int], count: int
) -> Generator[tuple[int, Result], None, list[int]]:
    """Yield (index, function(job)) until none is waiting or a process dies; return the jobs that ran then."""
    running: dict[Future[Result], int] = {}
    lost: list[int] = []
    with _opened_pool(count) as pool:
        while running or (waiting and not lost):
            while waiting and len(running) < count and not lost:
                try:
                    with starting_workers():
                        future = pool.submit(_run, function, jobs[waiting[0]])
                except BrokenProcessPool:
                    break
                running[future] = waiting.popleft()
            for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                index = running.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    lost.append(index)
                else:
                    yield index, future.result()
    return lost


@contextmanager
def _opened_pool(count: int) -> Iterator[Executor]:
    """Yield a pool of processes, which end with the block."""
    others = set(active_children())
    with starting_workers():  # its locks start a process that watches them
        pool = ProcessPoolExecutor(count, get_context("spawn"), begin_worker)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        end_workers(set(active_children()) - others)
        raise
    pool.shutdown()


def _run(function: Callable[[Job], Result], job: Job) -> Result:
    """Call a function. SIGTERM ends the process, after a running nsys and temporary folders are cleaned up."""
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        return function(job)
    except SystemExit:
        os._exit(1)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_on_signal(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.unraisablehook = lambda _: os._exit(1)  # Python does not raise an exception in a finalizer
    sys.exit(1)


def begin_worker() -> None:
    """Prepare a new worker: it ends with its parent and ignores Ctrl-C and the end of the terminal.

    Both reach the process group; the parent then ends its workers.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    limit_memory_and_threads()


def _exit_after(parent: BaseProcess) -> None:
    """Wait until the parent ends, then end this process."""
    parent.join()
    os._exit(1)


def end_workers(workers: Collection[BaseProcess]) -> None:
    """Terminate workers, which first end an nsys that they run; kill those that do not react."""
    # Repeated, because a process that is handling Ctrl-C may pass the signal to a thread that never wakes up.
    for _ in range(MAX_TERMINATE_ATTEMPTS):
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
        for worker in workers:
            worker.join(POLL_SECONDS / len(workers))
    for worker in workers:
        if worker.is_alive():
            worker.kill()


@contextmanager
def starting_workers() -> Iterator[None]:
    """Let multiprocessing start processes in the block.

    They do not import from the working folder. Nor do they import the program that calls traceview: it would run again,
    or has no file. They have the signals of ENDING blocked until `begin_worker`, because a process that is interrupted
    as it starts prints a traceback. They print no errors, unless TRACEVIEW_DEBUG is set, because their exceptions reach
    this process.
    """
    start, prepare = util.spawnv_passfds, spawn.get_preparation_data
    is_quiet = not os.environ.get("TRACEVIEW_DEBUG") and sys.__stderr__ is not None
    prefix = NO_WORKING_FOLDER + NO_ERROR_OUTPUT * is_quiet

    def start_safely(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
        words = list(args)
        code = words.index("-c") + 1
        words[code] = prefix + words[code]
        # multiprocessing unblocks some signals when it has started its resource tracker.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            return start(path, words, passfds)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def prepare_without_program(name: str) -> dict[str, Any]:
        return {key: value for key, value in prepare(name).items() if not key.startswith("init_main")}

    util.spawnv_passfds, spawn.get_preparation_data = start_safely, prepare_without_program
    try:
        yield
    finally:
        util.spawnv_passfds, spawn.get_preparation_data = start, prepare
