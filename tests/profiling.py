"""Profile a program with a real nsys."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.captures import ROOT

# osrt hangs torch on some machines, and sampling needs rights that CI does not have.
WITHOUT_SAMPLES = ("-t", "nvtx", "-s", "none")
ALWAYS = ("--cpuctxsw=none", "--force-overwrite=true")
LOST = "Connection to Agent lost"
TIMEOUT = 300  # s; far more than a loaded machine needs
ATTEMPTS = 4  # on a loaded machine nsys sometimes loses its agent, or ends without making a report of its stream


def run(*command: object) -> None:
    """Run a command from the root of the clone, and assert that it succeeds."""
    done = _ended(*command)
    assert done.returncode == 0, _account(done)


def profiled(
    nsys: str, report: Path, *command: object, options: Sequence[str] = WITHOUT_SAMPLES, **environment: str
) -> str:
    """Profile `command` into `report`, and return its standard error. It runs again if nsys makes no report."""
    for _ in range(ATTEMPTS):
        done = _ended(nsys, "profile", *options, *ALWAYS, "-o", report, *command, **environment)
        if done.returncode == 0 and report.is_file():
            return done.stderr
        if done.returncode and LOST not in _account(done):
            break
    pytest.fail(f"nsys makes no report: {_account(done)}")


def _ended(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        timeout=TIMEOUT,
        check=False,
    )


def _account(done: subprocess.CompletedProcess[str]) -> str:
    return f"{done.args[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
