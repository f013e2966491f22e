"""Run a command with a time limit, and measure its time and peak memory.

    python -S benchmarks/measured.py RESULT LIMIT_S COMMAND...

Writes the result as JSON. This program uses little memory, because Linux includes the parent's memory at the fork in
the peak of a process.
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
    """The cost of a process and the children it waited for. `processor` is user plus system time."""

    seconds: float
    processor: float
    peak_bytes: int
    code: int
    stopped: bool


def main() -> None:
    """Run the command line. `error` is the reason if the command does not start."""
    path, limit_s, *command = sys.argv[1:]
    result: dict[str, Any]
    try:
        result = run(command, float(limit_s))._asdict()
    except OSError as error:
        result = {"error": error.strerror}
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - importing pathlib would double the memory
        json.dump(result, file)


def run(command: list[str], limit_s: float, **how: Any) -> Measured:
    """Run a command to its end, or kill its process group at the limit. `how` goes to Popen. Raises OSError."""
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
