"""The fixture that records NVTX calls."""

from __future__ import annotations

import pytest

from instrument import ranges
from tests.instrument.test_ranges import Recorder


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Return what records the calls of `instrument` to nvtx in their place."""
    made = Recorder()
    monkeypatch.setattr(ranges, "nvtx", made)
    return made
