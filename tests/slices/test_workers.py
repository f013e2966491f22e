"""Worker processes end with the process that started them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

STOPPED = """
import os
from traceview.slices.workers import WorkerProcesses

if __name__ == "__main__":
    workers = WorkerProcesses(1, "json")
    print(workers.submit(0, os.getpid).result(), flush=True)
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
