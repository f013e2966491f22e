"""A worker ends with the process that started it, and signals wait while one is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fleet.test_command import ENVIRONMENT, REPORT, SLEEPER, _alive
from traceview.fleet.lifetime import signals_deferred

# A worker that waits until its parent is gone, or becomes a worker first; then it should not live to write "late".
MODULE = """
import multiprocessing, os, pathlib, sys, time
from traceview.fleet import lifetime
def worker(folder, parent, order):
    folder = pathlib.Path(folder)
    if order == "watch":
        lifetime._kernel_kills = lambda: False  # as on another system than Linux
    if order != "late":
        lifetime.begin_worker()
    (folder / "ready").touch()
    while os.getppid() == parent:
        time.sleep(0.01)
    if order == "late":
        lifetime.begin_worker()
    time.sleep(2)
    (folder / "late").touch()
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    context.Process(target=worker, args=(sys.argv[1], os.getpid(), sys.argv[2])).start()
    time.sleep(60)
"""


def waits_for(what: Path) -> None:
    deadline = time.monotonic() + 60
    while not what.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert what.exists()


def group_ends(group: int, within: float) -> bool:
    deadline = time.monotonic() + within
    while _alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _alive(group)


@pytest.mark.parametrize("order", ["begun", "late", "watch"])
def test_a_worker_ends_with_its_parent(tmp_path: Path, order: str) -> None:
    """Begun before the parent is killed, after it, and without the help of Linux."""
    script = tmp_path / "parent.py"
    script.write_text(MODULE)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), order], env=ENVIRONMENT, start_new_session=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        waits_for(tmp_path / "ready")
        process.kill()
        process.wait()
        assert group_ends(process.pid, 30)
        assert not (tmp_path / "late").exists()
    finally:
        if _alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)])
def test_a_fleet_that_is_ended_leaves_no_worker_and_no_traceback(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Its worker waits for an nsys that sleeps for a minute."""
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "rank0.nsys-rep").write_bytes(REPORT)
    slow = tmp_path / "nsys"
    slow.write_text(SLEEPER.format(mark=tmp_path / "asked"))
    slow.chmod(0o755)
    command = [sys.executable, "-m", "traceview", "fleet", str(runs), "--workers", "1", "--nsys", str(slow)]
    with (tmp_path / "errors").open("w+b") as errors:
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=errors, start_new_session=True)
        try:
            waits_for(tmp_path / "asked")
            process.send_signal(number)
            assert process.wait(timeout=60) == code
            assert group_ends(process.pid, 20)
        finally:
            if _alive(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
    said = (tmp_path / "errors").read_text()
    # After SIGKILL, Python's own tracker says that it removes the semaphores.
    assert "Traceback" not in said and (number == signal.SIGKILL or said in ("", "traceview: interrupted\n"))


def test_a_signal_in_the_block_is_delivered_behind_it() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: came.append(number))
    try:
        with signals_deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.05)
            inside = list(came)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert inside == [] and set(came) == {signal.SIGTERM}
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM, signal.SIGINT}
