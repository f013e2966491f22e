"""Run one command, at most so many seconds, and write what it took as JSON.

python -S benchmarks/measured.py RESULT LIMIT_S COMMAND...

A program of its own that stays small: Linux counts as a process's peak what its parent held when it was forked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time


def main() -> None:
    """Run the command line."""
    result, limit_s, *command = sys.argv[1:]
    found = run(command, float(limit_s))
    with open(result, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib would double what this holds
        json.dump(found, file)


def run(command: list[str], limit_s: float) -> dict[str, object]:
    """Run a command to its end, or stop it with all that it started; an `error` is what kept it from running."""
    started = time.perf_counter()
    try:
        process = subprocess.Popen(command, start_new_session=True)
    except OSError as error:
        return {"error": error.strerror}
    stopped = False
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if not stopped and time.perf_counter() - started > limit_s:
            os.killpg(process.pid, signal.SIGKILL)
            stopped = True
        time.sleep(0.005)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "seconds": time.perf_counter() - started,
        "peak_bytes": usage.ru_maxrss * 1024,
        "code": process.returncode,
        "stopped": stopped,
    }


if __name__ == "__main__":
    main()
