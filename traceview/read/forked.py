"""A copy of this process that does one thing and ends: begun in a millisecond, with all that is imported."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
THREADS = Path("/proc/self/task")
STANDARD = (0, 1, 2)  # input, output and errors


def is_alone() -> bool:
    """Is this the process's one thread? A copy has no other, and what others held at that moment nobody lets go of."""
    try:
        return len(list(THREADS.iterdir())) == 1
    except OSError:  # another system
        return False


def forked(work: Callable[[], object]) -> int:
    """Let a copy of this process do `work`, and return its id; the caller kills it and waits for its end.

    The copy runs nothing else of its parent's: no handler, no `finally`, nothing at exit, no word on its outputs. It
    ends when its parent does. Raises OSError where there is no room for another process.
    """
    parent = os.getpid()
    # Until the copy has handlers of its own, a signal would run its parent's.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    process = -1
    try:
        process = os.fork()
    finally:
        if process:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if not process:
        _be(work, parent, before)
    return process


def _be(work: Callable[[], object], parent: int, mask: set[int]) -> NoReturn:
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # it may have ended before that was said
            for one in (signal.SIGINT, signal.SIGTERM):
                if callable(signal.getsignal(one)):
                    signal.signal(one, signal.SIG_DFL)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for standard in STANDARD:
                os.dup2(nowhere, standard)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            work()
    finally:
        os._exit(0)
