"""State that a checkpoint cannot store as it is: random number generators, and an optimizer on another device."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

RandomState = dict[str, Any]

_IMPLEMENTATION_OPTIONS = ("capturable", "fused", "foreach", "differentiable")
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch.

    DataLoader workers seed their own generators from the DataLoader's generator.

    Args:
        seed: any integer of at least 0.
    """
    random.seed(seed)
    importlib.import_module("numpy").random.seed(seed % (1 << 32))
    torch.manual_seed(seed % (1 << 64))


def random_state() -> RandomState:
    """Return the state of every global generator in use, as tensors and plain values.

    Covers Python, torch on the CPU, NumPy if it is imported, and all GPUs if CUDA is initialized. `torch.Generator`
    objects of the program are not included.
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
    """Set the global generators to a state that `random_state` returned.

    Generators that `state` does not include keep their state.

    Args:
        state: the result of `random_state`, from this process or another.
        device: where the run continues. A GPU gets the state of the GPU that was current when the state was taken,
            even if its index differs. On the CPU, GPU states are ignored.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"].cpu())
    if "numpy" in state:
        importlib.import_module("numpy").random.set_state(tuple(state["numpy"]))
    if "cuda" in state and torch.device(device).type == "cuda":
        _restore_cuda(state, torch.device(device))


@contextmanager
def random_state_kept(device: torch.device | str = "cpu") -> Iterator[None]:
    """Restore the global random number generators after the block, which may run a user's code."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state, device)


def draws_random_numbers(function: Callable[[], object]) -> bool:
    """Return whether a call of `function` draws from a global generator on the host. Their states stay the same."""
    with random_state_kept():
        before = _host_state()
        function()
        return _host_state() != before


def _host_state() -> dict[str, Any]:
    state = random_state()
    return {"python": state["python"], "torch": state["torch"].tolist(), "numpy": state.get("numpy")}


def _restore_cuda(state: Mapping[str, Any], device: torch.device) -> None:
    for index, generator in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(generator.cpu(), index)
    torch.cuda.set_rng_state(state["cuda"][state["cuda_current"]].cpu(), device)


def fit_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state` with the implementation options of `optimizer`, such as `capturable` and `fused`.

    These options depend on the device and the strategy, so a saved value may not fit this run. A CUDA graph needs the
    learning rate as a tensor on the GPU: each rate becomes a tensor or a number, as in `optimizer`.
    """
    groups = state.get("param_groups", [])
    if len(groups) != len(optimizer.param_groups):
        return dict(state)  # load_state_dict reports this
    fitted = [_fit_group(dict(saved), own) for saved, own in zip(groups, optimizer.param_groups, strict=True)]
    return {**state, "param_groups": fitted}


def _fit_group(saved: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    for name in _IMPLEMENTATION_OPTIONS:
        if name in own:
            saved[name] = own[name]
    for name in _RATES:
        if name in saved and name in own:
            saved[name] = _convert_rate(saved[name], own[name])
    return saved


def _convert_rate(value: Any, own: Any) -> Any:
    if isinstance(own, torch.Tensor):
        return torch.as_tensor(value, dtype=own.dtype, device=own.device)
    return float(value) if isinstance(value, torch.Tensor) else value
