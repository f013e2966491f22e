"""Shared fixtures: the command, a capture that may change, a real nsys if installed, and a hypothesis profile."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.captures import sample
from tests.cli.command import traceview

__all__ = ["nsys", "traceview"]

# Without bytecode, each process that a test starts compiles all modules anew, for half a second.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

UNPACKED = Path(__file__).resolve().parent.parent / ".nsys" / "nsys"  # by `make nsys`

# A loaded machine must not fail a test, and each run has the same examples; --hypothesis-profile=thorough draws others.
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("traceview", COMMON, max_examples=30, derandomize=True)
settings.register_profile("thorough", COMMON, max_examples=1000)
settings.load_profile("traceview")


def pytest_collection_finish() -> None:
    """Exclude what the test modules imported from garbage collection, where torch alone takes 0.4 s each time."""
    gc.freeze()


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """Return a copy of a capture that a test may change."""
    return Path(shutil.copyfile(sample("dual.sqlite"), tmp_path / "report.sqlite"))


@pytest.fixture(scope="session")
def nsys() -> str:
    """Return the path of nsys. Skip the test without nsys; fail it if TRACEVIEW_NSYS cannot be run."""
    given = os.environ.get("TRACEVIEW_NSYS")
    found = shutil.which(given or "nsys") or (None if given else shutil.which(UNPACKED))
    if given and found is None:
        pytest.fail(f"TRACEVIEW_NSYS={given} is not executable")
    if found is None:
        pytest.skip("needs a real nsys: on PATH, in TRACEVIEW_NSYS, or unpacked by `make nsys`")
    return str(Path(found).absolute())
