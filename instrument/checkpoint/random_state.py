"""The random numbers that a run would draw next: python's, numpy's, torch's on the CPU and on every GPU."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Mapping
from typing import Any

import torch

RandomState = dict[str, Any]


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch; any whole number of at least 0 will do.

    Workers of a DataLoader seed theirs themselves, each another, from the DataLoader's generator.
    """
    random.seed(seed)
    importlib.import_module("numpy").random.seed(seed % (1 << 32))
    torch.manual_seed(seed % (1 << 64))


def random_state() -> RandomState:
    """Return the state of each generator in use, in tensors and plain values alone.

    numpy counts as in use once it is imported, CUDA once it is initialised. torch.Generator objects of
    the program's own are not in it.
    """
    version, words, gauss = random.getstate()
    state: RandomState = {"python": (version, words, gauss), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, keys.tolist(), int(position), int(has_gauss), float(cached))
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
        state["cuda_current"] = torch.cuda.current_device()
    return state


def restore_random_state(state: Mapping[str, Any], device: torch.device | str = "cpu") -> None:
    """Let every generator go on where `state` left it.

    Args:
        state: what `random_state` returned, in this process or another.
        device: where the run goes on. A GPU with another number than the one the state comes from gets that one's
            state; on a CPU the GPUs' states are left out, and generators that `state` lacks keep their own.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"].cpu())
    if "numpy" in state:
        importlib.import_module("numpy").random.set_state(tuple(state["numpy"]))
    if "cuda" in state and torch.device(device).type == "cuda":
        _restore_cuda(state, torch.device(device))


def _restore_cuda(state: Mapping[str, Any], device: torch.device) -> None:
    for index, generator in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(generator.cpu(), index)
    torch.cuda.set_rng_state(state["cuda"][state["cuda_current"]].cpu(), device)
