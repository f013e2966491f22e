"""The device that a part of the package uses, and what is done on a GPU only."""

from __future__ import annotations

import gc
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from instrument.errors import ConfigError


def usable_device(device: torch.device | str, *, strict: bool = False) -> torch.device:
    """Return the device, or the CPU for a CUDA device on a machine without a usable GPU.

    The first fallback of a process warns. All parts that take a device call this function, so one program runs with
    and without a GPU.

    Args:
        device: a device, or its name: "cuda", "cuda:1", "cpu".
        strict: raise instead of using the CPU.

    Raises:
        ConfigError: `strict`, and torch finds no GPU.
    """
    wanted = torch.device(device)
    if wanted.type != "cuda" or _has_cuda():
        return wanted
    if strict:
        raise ConfigError(f"device {wanted} is not usable: torch finds no CUDA GPU")
    _warn_once(str(wanted))
    return torch.device("cpu")


def current_device(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context that makes a GPU the current device of this thread. A new thread starts with GPU 0."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def synchronize(device: torch.device) -> None:
    """Wait for all work on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_memory() -> None:
    """Return unused memory to the system; a failed backward pass leaves reference cycles."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()


@cache
def _warn_once(device: str) -> None:
    warnings.warn(f"device {device} is not usable: torch finds no CUDA GPU; instrument uses the CPU", stacklevel=4)
