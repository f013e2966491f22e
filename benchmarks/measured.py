"""Run one command, at most so many seconds, and see what it took.

python -S benchmarks/measured.py RESULT LIMIT_S COMMAND...

writes it as JSON, from a program that stays small: Linux counts as a process's peak what its parent held when it was
forked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple


class Measured(NamedTuple):
    """What one whole process took, with all that it waited for; `processor` is of user and system together."""

    seconds: float
    processor: float
    peak_bytes: int
    code: int
    stopped: bool


def main() -> None:
    """Run the command line; where the command does not run, `error` says why."""
    result, limit_s, *command = sys.argv[1:]
    found: dict[str, Any]
    try:
        found = run(command, float(limit_s))._asdict()
    except OSError as error:
        found = {"error": error.strerror}
    with open(result, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib would double what this holds
        json.dump(found, file)


def run(command: list[str], limit_s: float, **how: Any) -> Measured:
    """Run a command to its end, or stop it with all that it started. `how` is subprocess.Popen's; raises OSError."""
    started = time.perf_counter()
    process = subprocess.Popen(command, start_new_session=True, **how)
    stopped = False
    try:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if not stopped and time.perf_counter() - started > limit_s:
                os.killpg(process.pid, signal.SIGKILL)
                stopped = True
            time.sleep(0.002)
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, process.returncode, stopped)


if __name__ == "__main__":
    main()
