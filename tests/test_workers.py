"""Workers run calls in order or as they end; processes are replaced, and end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from traceview.workers import ThisProcess, WorkerDiedError
from traceview.workers import processes as module
from traceview.workers.processes import Processes

STOPPED = """
import os
from traceview.workers.processes import Processes

if __name__ == "__main__":
    workers = Processes(1, "json")
    print(workers.submit(os.getpid).result(), flush=True)
    os._exit(1)  # nothing cleans up
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "stopped.py"
    program.write_text(STOPPED)
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    process = Path("/proc") / ended.stdout.strip()
    assert process.name.isdigit(), ended.stderr
    deadline = time.monotonic() + 30
    while process.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not process.exists()


def process_of(_job: int) -> int:
    return os.getpid()


def end_if_odd(job: int) -> int:
    if job % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return job


def test_processes_are_replaced_after_some_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLS_PER_PROCESS", 2)
    with Processes(1, "json") as workers:
        ended = dict(workers.as_completed(process_of, range(5)))
        used = {workers.result(ended[index]) for index in range(5)}
    assert len(used) == 3


def test_call_that_ends_its_process_twice_does_not_end_the_others() -> None:
    with Processes(2, "json", died="gone") as workers:
        ended = dict(workers.as_completed(end_if_odd, range(5)))
        assert [workers.result(ended[index]) for index in (0, 2, 4)] == [0, 2, 4]
        for index in (1, 3):
            with pytest.raises(WorkerDiedError, match="gone"):
                workers.result(ended[index])
        assert list(workers.in_order(abs, [-3, -2])) == [3, 2]


def test_this_process_begins_a_call_when_its_result_is_read() -> None:
    begun: list[int] = []
    with ThisProcess() as workers:
        results = workers.in_order(lambda job: begun.append(job) or job, [1, 2])
        assert begun == [] and next(results) == 1 and begun == [1]
        assert {index: future.result() for index, future in workers.as_completed(abs, [-1, 2])} == {0: 1, 1: 2}
        with pytest.raises(ValueError, match="abc"):
            workers.submit(int, "abc").result()
