"""Profile a program with a real nsys."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.captures import ROOT

# osrt hangs torch on some machines, and sampling needs rights that CI does not have.
PROFILE = ("profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "--force-overwrite=true")
# On a loaded machine the agent of nsys sometimes dies with this message.
LOST = "Connection to Agent lost"
ATTEMPTS = 3


def run(*command: object, again_if: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command from the root of the clone, and assert that it succeeds.

    A command that fails with the text `again_if` in its output runs again.
    """
    for _ in range(ATTEMPTS if again_if else 1):
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            errors="replace",
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            timeout=120,
            check=False,
        )
        said = f"{command[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        if done.returncode == 0 or not again_if or again_if not in said:
            break
    assert done.returncode == 0, said
    return done


def profiled(nsys: str, report: Path, *command: object, **environment: str) -> str:
    """Profile `command` into `report`, and return its standard error."""
    return run(nsys, *PROFILE, "-o", report, *command, again_if=LOST, **environment).stderr
