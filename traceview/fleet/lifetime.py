"""A worker lives as long as the process that started it, and signals wait while one is started."""

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

    Ctrl-C reaches the whole group; the parent decides what becomes of its workers. SIGTERM ends a worker at once, but
    for the time that `ends_in_order` covers.
    """
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def end_with_parent() -> None:
    """Have this process killed when its parent ends; end it at once if the parent has ended already."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if not _kernel_kills():
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    # A parent that ended before the call above sends no signal.
    if os.getppid() != parent.pid:
        os._exit(1)


def _kernel_kills() -> bool:
    """Have Linux send SIGKILL when the parent ends; False on another system."""
    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0)
    except (AttributeError, OSError, TypeError):
        return False


def _watch(parent: multiprocessing.process.BaseProcess) -> None:
    """Wait for the end of the parent, whose end of a pipe the system closes, and end this process."""
    parent.join()
    os._exit(1)


@contextmanager
def ends_in_order() -> Iterator[None]:
    """Have SIGTERM raise an exception in the block, so that an nsys under way and temporary folders go first."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    # Where Python raises nothing, as at the end of an object, it prints this instead; the parent sends SIGTERM again.
    sys.unraisablehook = lambda _: None
    sys.exit(1)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Deliver Ctrl-C and SIGTERM after the block: half-started, a worker would print a traceback.

    A worker that is started in the block has both signals blocked until `begin_worker`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    # Handlers are replaced as well: another thread may receive the signal, and Python handles it in this one.
    before = {number: signal.getsignal(number) for number in ENDING}
    replaced = [number for number, handler in before.items() if callable(handler)]
    try:
        for number in replaced:
            signal.signal(number, lambda sent, _frame: came.append(sent))
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        yield
    finally:
        for number in replaced:
            signal.signal(number, before[number])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if came:
            signal.raise_signal(came[0])
