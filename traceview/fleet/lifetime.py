"""Ends workers with their parent process, and defers signals while a worker starts."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ENDING = {signal.SIGINT, signal.SIGTERM}


def begin_worker() -> None:
    """Prepare a new worker: it ends with its parent and ignores Ctrl-C.

    Ctrl-C reaches the process group; the parent then ends its workers. SIGTERM ends a worker at once, except inside
    `ends_in_order`.
    """
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def end_with_parent() -> None:
    """Kill this process when its parent ends, or at once if the parent has already ended."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if not _set_death_signal():
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()
    # A parent that ended before the call above does not trigger the signal.
    if os.getppid() != parent.pid:
        os._exit(1)


def _set_death_signal() -> bool:
    """Make Linux send SIGKILL when the parent ends; return False on another system."""
    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0)
    except (AttributeError, OSError, TypeError):
        return False


def _exit_after(parent: multiprocessing.process.BaseProcess) -> None:
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


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Deliver Ctrl-C and SIGTERM after the block, because a worker that is starting would print a traceback.

    A worker that starts in the block has both signals blocked until `begin_worker`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    # Handlers are replaced too: another thread may receive the signal, and Python runs the handler in this one.
    before = {number: signal.getsignal(number) for number in ENDING}
    replaced = [number for number, handler in before.items() if callable(handler)]
    try:
        for number in replaced:
            signal.signal(number, lambda sent, _frame: received.append(sent))
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        yield
    finally:
        for number in replaced:
            signal.signal(number, before[number])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if received:
            signal.raise_signal(received[0])
