"""Starts other Pythons, defers signals while they start, and ends them with this process.

Python puts the working folder first on the path of `python -c` and `python -m`: there a file `socket.py` would run in
place of Python's own module. No Python that is started here imports from the working folder. `-P` does the same from
Python 3.11 on; `-I` also ignores PYTHONPATH and the user's packages.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import util
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
POLL_SECONDS = 0.2
MAX_TERMINATE_ATTEMPTS = 10
# The path of `python -c` begins with "", the working folder; without it under -P, -I and PYTHONSAFEPATH.
NO_WORKING_FOLDER = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
NO_ERROR_OUTPUT = "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 2); "


def python_command(code: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs `code` in a new Python, which does not import from the working folder."""
    return [python, "-c", NO_WORKING_FOLDER + code, *arguments]


@contextmanager
def starting_workers() -> Iterator[None]:
    """Let multiprocessing start processes in the block; every pool is made and first called in such a block.

    They do not import from the working folder, and have the signals of ENDING blocked until `begin_worker`: a process
    that is interrupted as it starts prints a traceback. They print no errors, unless TRACEVIEW_DEBUG is set, because
    their exceptions reach this process. Signals to this process are delivered after the block.
    """
    start = util.spawnv_passfds
    util.spawnv_passfds = _safely(start)
    try:
        with _signals_deferred():
            yield
    finally:
        util.spawnv_passfds = start


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
