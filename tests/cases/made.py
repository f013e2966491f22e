"""Makes a case by its name, once for all tests of a process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.captures import CAPTURES, ROOT, analyzed
from traceview.model.analysis import Analysis, Iterations

SCRIPTS = CAPTURES.parent / "cases"
ENDINGS = {"torch": "json", "nsys": "sqlite"}


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="traceview-cases-")  # removed when the process ends


@cache
def case(kind: str, name: str) -> Path:
    """Return the file of a case; `kind` is "torch" or "nsys". Skip the test without the scripts."""
    script = SCRIPTS / f"{kind}_cases.py"
    if not script.is_file():
        pytest.skip(f"{script} is missing: TRACEVIEW_CAPTURES names the folder `captures` beside {SCRIPTS.name}")
    path = Path(_folder().name, f"{name}.{ENDINGS[kind]}")
    subprocess.run([sys.executable, script, path.parent, name], cwd=ROOT, check=True)
    return path


def analyzed_case(kind: str, name: str) -> Analysis:
    """Return the analysis of a case."""
    return analyzed(case(kind, name))


def iterations(analysis: Analysis) -> Iterations:
    """Return the iterations of a case, which has some."""
    assert isinstance(analysis.iterations, Iterations)
    return analysis.iterations


def step_ms(analysis: Analysis) -> float:
    """Return the time of an iteration, in ms with one digit, as the answer states it."""
    return round(iterations(analysis).time_ns / 1e6, 1)


def compute_percent(analysis: Analysis, device: int = 0) -> float:
    """Return the share of compute in the steady part of a GPU, in percent with one digit, as the bar states it."""
    steady = analysis.devices[device].steady
    return round(100 * steady.compute_ns / steady.window.length, 1)
