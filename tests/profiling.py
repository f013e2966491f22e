"""A real nsys profiles a program for the tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.captures import ROOT

# No osrt, which hangs torch on some machines, and no sampling, which needs rights that CI has not.
PROFILE = ("profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "--force-overwrite=true")
# Now and then nsys's own agent dies on a loaded machine, and nsys says so: no property of what is tested.
LOST = "Connection to Agent lost"
ATTEMPTS = 3


def run(*command: object, again_if: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command from the root of the clone; what it said is shown where it fails.

    A failure of whose words `again_if` is a part has further attempts.
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
    """Profile `command` into `report`; return what the command told its user."""
    return run(nsys, *PROFILE, "-o", report, *command, again_if=LOST, **environment).stderr
