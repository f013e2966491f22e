"""What every test needs: a hypothesis profile that a slow machine cannot fail, and a real nsys where there is one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

UNPACKED = Path(__file__).resolve().parent.parent / ".nsys" / "nsys"  # by `make nsys`

# Timing is no property of the code: a loaded machine must not fail a test.
settings.register_profile("traceview", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("traceview")


@pytest.fixture(scope="session")
def nsys() -> str:
    """Return the program; skip the test where there is none, fail where the one that is named cannot be run."""
    given = os.environ.get("TRACEVIEW_NSYS")
    found = shutil.which(given or "nsys") or (None if given else shutil.which(UNPACKED))
    if given and found is None:
        pytest.fail(f"TRACEVIEW_NSYS={given} is no program that can be run")
    if found is None:
        pytest.skip("needs a real nsys: on PATH, in TRACEVIEW_NSYS, or unpacked by `make nsys`")
    return str(Path(found).absolute())
