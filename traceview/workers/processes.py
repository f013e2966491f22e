"""Processes of this machine as workers: how they start, run calls, and end with this process."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import count as numbers
from multiprocessing import active_children, get_all_start_methods, get_context, spawn, util
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn

from traceview.workers import (
    NO_WORKING_FOLDER,
    POLL_SECONDS,
    Job,
    Result,
    WorkerDiedError,
    Workers,
    limit_memory_and_threads,
)

THREADS = "POLARS_MAX_THREADS"
HAS_FORK_SERVER = "forkserver" in get_all_start_methods()
CALLS_PER_PROCESS = 64  # a new process then replaces this one, because its heap only grows
PART_DIED = "a process that measures parts died, probably out of memory; use less --memory"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
MAX_TERMINATE_ATTEMPTS = 10
NO_ERROR_OUTPUT = "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 2); "


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
        self.context: BaseContext = get_context("spawn")
        self._calls: Counter[int] = Counter()
        self._turn = numbers()
        if HAS_FORK_SERVER:
            self._start_server()

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

    def _start_server(self) -> None:
        """Start the process that others are copies of, unless the path of its socket is too long (108 bytes on Linux).

        The socket lies in the folder of temporary files. Each process then starts alone, which takes longer.
        """
        context = get_context("forkserver")
        context.set_forkserver_preload([self.module])
        with starting_workers(), suppress(OSError):
            ensure_running()
            self.context = context

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


@contextmanager
def starting_workers() -> Iterator[None]:
    """Let multiprocessing start processes in the block; every pool is made and first called in such a block.

    They do not import from the working folder. Nor do they import the program that calls traceview: it would run again,
    or has no file. They have the signals of ENDING blocked until `begin_worker`, because a process that is interrupted
    as it starts prints a traceback. They print no errors, unless TRACEVIEW_DEBUG is set, because their exceptions reach
    this process. Signals to this process are delivered after the block.
    """
    start, prepare = util.spawnv_passfds, spawn.get_preparation_data
    util.spawnv_passfds, spawn.get_preparation_data = _safely(start), partial(_without_program, prepare)
    try:
        with _signals_deferred():
            yield
    finally:
        util.spawnv_passfds, spawn.get_preparation_data = start, prepare


def _without_program(prepare: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any]:
    """Return what multiprocessing prepares in each Python process, without the program that a process imports."""
    return {key: value for key, value in prepare(name).items() if not key.startswith("init_main")}


def _safely(start: Callable[..., int]) -> Callable[..., int]:
    """Return a safe form of `start`, the function with which multiprocessing starts each Python process."""
    is_quiet = not os.environ.get("TRACEVIEW_DEBUG") and sys.__stderr__ is not None
    prefix = NO_WORKING_FOLDER + NO_ERROR_OUTPUT * is_quiet

    def start_safely(path: Any, arguments: Sequence[Any], descriptors: Sequence[int]) -> int:
        words = list(arguments)
        code = words.index("-c") + 1
        words[code] = prefix + words[code]
        # multiprocessing unblocks some signals when it has started its resource tracker.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            return start(path, words, descriptors)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return start_safely


def begin_worker() -> None:
    """Prepare a new worker: it ends with its parent and ignores Ctrl-C and the end of the terminal.

    Both reach the process group; the parent then ends its workers. SIGTERM ends a worker at once, except inside
    `ends_in_order`.
    """
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def end_with_parent() -> None:
    """Kill this process when its parent ends, or at once if the parent has already ended."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    has_signal = _set_death_signal()
    # The signal comes from the fork server, if this process is a copy of it, and not from a parent that has ended.
    if not has_signal or os.getppid() != parent.pid:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _set_death_signal() -> bool:
    """Make Linux send SIGKILL when the parent ends; return False on another system."""
    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0)
    except (AttributeError, OSError, TypeError):
        return False


def _exit_after(parent: BaseProcess) -> None:
    """Wait until the parent ends, then end this process."""
    parent.join()
    os._exit(1)


@contextmanager
def ends_in_order() -> Iterator[None]:
    """Make SIGTERM raise SystemExit in the block, so that a running nsys and temporary folders are cleaned up."""
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_on_signal(_number: int, _frame: FrameType | None) -> NoReturn:
    # In a finalizer Python prints the exception instead of raising it; the parent then sends SIGTERM again.
    sys.unraisablehook = lambda _: None
    sys.exit(1)


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
def _signals_deferred() -> Iterator[None]:
    """Deliver the signals of ENDING after the block, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    # Handlers are replaced too: another thread may receive the signal, and Python runs the handler in this one.
    before = {number: signal.getsignal(number) for number in ENDING}
    replaced = [number for number, handler in before.items() if callable(handler)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        for number in replaced:
            signal.signal(number, lambda sent, _frame: received.append(sent))
        yield
    finally:
        for number in replaced:
            signal.signal(number, before[number])
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if received:
            signal.raise_signal(received[0])
