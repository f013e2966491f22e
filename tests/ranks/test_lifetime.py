"""Workers end with their parent process, and one that dies costs its report alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

from tests.ranks.test_command import ENVIRONMENT, REPORT, SLEEPER, is_group_alive
from traceview.ranks.processes import DIED, in_processes

# A process that becomes a worker before or after its parent ends; it must end before it sleeps.
MODULE = """
import multiprocessing, os, pathlib, sys, time
from traceview.ranks import processes
def worker(folder, parent, order):
    folder = pathlib.Path(folder)
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


@pytest.mark.parametrize("order", ["begun", "late"])
def test_worker_ends_with_its_parent(tmp_path: Path, order: str) -> None:
    """The worker begins before the parent is killed, or after it."""
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


def end_if_odd(job: int) -> int:
    if job % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return job


def test_job_that_ends_its_process_twice_does_not_end_the_others() -> None:
    died = {1: DIED, 3: DIED}
    assert dict(in_processes(end_if_odd, range(5), 2)) == {0: 0, 2: 2, 4: 4} | died


def test_no_process_is_left_of_calls_that_are_given_up() -> None:
    others = set(active_children())  # of tests that ran before in this process
    calls = in_processes(abs, [-1] * 100, 2)
    assert next(calls)[1] == 1 and set(active_children()) - others
    calls.close()
    for process in set(active_children()) - others:
        process.join(30)  # a process that was just started ends when its pipe closes
    assert not set(active_children()) - others
