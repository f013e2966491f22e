"""A copy of a process does one thing and ends, whatever happens to it or to its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.captures import ROOT
from traceview.read.forked import forked

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent"),
    # Tests have threads of polars, which do nothing while a copy is made.
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]
PROGRAM = """
import atexit, os, signal, sys, time
from traceview.read.forked import forked, is_alone

atexit.register(print, "at exit")
signal.signal(signal.SIGTERM, lambda *_: print("a handler"))

def work():
    print("work")
    os.write(2, b"work")
    {work}

print(is_alone(), end=" ")
try:
    child = forked(work)
    print(child, flush=True)
    {then}
finally:
    print("finally", flush=True)
"""


def program(work: str, then: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(work=work, then=then)],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def becomes(true: Callable[[], bool]) -> bool:
    """Does it become true within some seconds?"""
    until = time.monotonic() + 20
    while not true() and time.monotonic() < until:
        time.sleep(0.01)
    return true()


@pytest.mark.parametrize("work", ["raise ValueError", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGTERM)", "pass"])
def test_a_copy_says_nothing_and_runs_nothing_of_its_parents(work: str) -> None:
    with program(work, "os.waitpid(child, 0)") as parent:
        out, err = parent.communicate(timeout=60)
    first, *rest = out.splitlines()
    assert first.startswith("True ") and rest == ["finally", "at exit"]
    assert (err, parent.returncode) == ("", 0)


def test_a_copy_ends_with_its_parent() -> None:
    with program("time.sleep(600)", "time.sleep(600)") as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        assert is_there(child)
        parent.kill()
        assert becomes(lambda: not is_there(child))


def test_ctrl_c_ends_a_copy_at_once() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        child = forked(lambda: time.sleep(60))
    finally:
        signal.signal(signal.SIGINT, before)
    os.kill(child, signal.SIGINT)  # which waits until the copy has no handler of its parent's
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT


def test_signals_come_through_after_a_copy_was_made() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    child = forked(lambda: None)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert os.waitpid(child, 0) == (child, 0)
