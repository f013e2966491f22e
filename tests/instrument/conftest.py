"""The fixture that records NVTX calls, and the GPUs that a test needs."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from instrument import ranges
from tests.instrument.test_ranges import Recorder

collect_ignore_glob = [] if find_spec("torch") else ["*"]  # these tests need torch


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test with the marker `gpu`, or `gpu(2)`, where there are fewer GPUs."""
    import torch

    needed = max((mark.args[0] if mark.args else 1 for mark in item.iter_markers("gpu")), default=0)
    if needed and torch.cuda.device_count() < needed:
        pytest.skip(f"needs CUDA GPUs: {needed}")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Return what records the calls of `instrument` to nvtx in their place."""
    made = Recorder()
    monkeypatch.setattr(ranges, "nvtx", made)
    return made


@pytest.fixture(autouse=True, scope="module")
def no_accelerator() -> None:
    """Forget the state of accelerate that other files of this process leave: with it, plain loaders give a warning."""
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
