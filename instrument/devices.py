"""The device that a part of the package uses."""

from __future__ import annotations

import warnings
from functools import cache

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


@cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()


@cache
def _warn_once(device: str) -> None:
    warnings.warn(f"device {device} is not usable: torch finds no CUDA GPU; instrument uses the CPU", stacklevel=4)
