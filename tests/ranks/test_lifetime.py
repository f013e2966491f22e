"""Workers end with their parent process, and signals are deferred while a worker starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ranks.test_command import ENVIRONMENT, REPORT, SLEEPER, is_group_alive
from traceview.workers.processes import starting_workers

# A process that becomes a worker before or after its parent ends; it must end before it writes "late".
MODULE = """
import multiprocessing, os, pathlib, sys, time
from traceview.workers import processes
def worker(folder, parent, order):
    folder = pathlib.Path(folder)
    if order == "watch":
        processes._set_death_signal = lambda: False  # as on systems other than Linux
    if order != "late":
        processes.begin_worker()
    (folder / "ready").touch()
    while os.getppid() == parent:
        time.sleep(0.01)
    if order == "late":
        processes.begin_worker()
    time.sleep(600)  # longer than the test waits for the end of the worker
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    context.Process(target=worker, args=(sys.argv[1], os.getpid(), sys.argv[2])).start()
    time.sleep(600)
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 300
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert path.exists()


def group_ends(group: int) -> bool:
    deadline = time.monotonic() + 300
    while is_group_alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_group_alive(group)


@pytest.mark.parametrize("order", ["begun", "late", "watch"])
def test_worker_ends_with_its_parent(tmp_path: Path, order: str) -> None:
    """The worker begins before the parent is killed, after it, and without Linux's death signal."""
    script = tmp_path / "parent.py"
    script.write_text(MODULE)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), order], env=ENVIRONMENT, start_new_session=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(tmp_path / "ready")
        process.kill()
        process.wait()
        assert group_ends(process.pid)
    finally:
        if is_group_alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)])
def test_terminated_fleet_leaves_no_worker_and_no_traceback(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The worker waits for an nsys that sleeps for a minute."""
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "rank0.nsys-rep").write_bytes(REPORT)
    slow = tmp_path / "nsys"
    slow.write_text(SLEEPER.format(mark=tmp_path / "started"))
    slow.chmod(0o755)
    command = [sys.executable, "-m", "traceview", "fleet", str(runs), "--workers", "1", "--nsys", str(slow)]
    with (tmp_path / "errors").open("w+b") as errors:
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=errors, start_new_session=True)
        try:
            wait_for(tmp_path / "started")
            process.send_signal(number)
            assert process.wait(timeout=300) == code
            assert group_ends(process.pid)
        finally:
            if is_group_alive(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
    printed = (tmp_path / "errors").read_text()
    # After SIGKILL, Python's resource tracker reports the semaphores that it removes.
    assert "Traceback" not in printed and (number == signal.SIGKILL or printed in ("", "traceview: interrupted\n"))


def test_deferred_signal_is_delivered_after_the_block() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    try:
        with starting_workers():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.05)
            inside = list(received)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert inside == [] and set(received) == {signal.SIGTERM}
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM, signal.SIGINT}
