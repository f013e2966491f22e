"""Which rank this process is, and on which device it computes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from instrument.config.schema import Config
from instrument.errors import ConfigError

# Longer than writing a large checkpoint takes, which the other ranks wait for; a rank that hangs is noticed after it.
TIMEOUT = timedelta(minutes=10)
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class World:
    """This process among those that train together.

    Attributes:
        rank: its place, from 0.
        local_rank: its place on its own machine, from 0: the number of its GPU.
        size: how many processes there are.
        device_type: "cuda" or "cpu".
    """

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    device_type: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether it is the one that writes and speaks for all."""
        return self.rank == 0


@contextmanager
def joined(device_setting: str) -> Iterator[World]:
    """Join the processes that torchrun started, for as long as the block runs; alone where there are none.

    Tensors on the CPU are exchanged by gloo, those on GPUs by NCCL. The device becomes torch's current one.

    Args:
        device_setting: "auto", "cpu", "cuda" or "cuda:N", as in `config.Training`.

    Raises:
        ConfigError: the device is not there; or torchrun, which gives each process a GPU of its own, meets cuda:N.
    """
    rank, local_rank, size = _torchrun()
    device = _device(device_setting, local_rank, size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    world = World(rank, local_rank, size, device.type)
    if size == 1:
        yield world
        return
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT, device_id=device if on_gpu else None
    )
    try:
        yield world
    except BaseException:
        _abandon()
        raise
    dist.destroy_process_group()


def device_of(config: Config, world: World) -> torch.device:
    """Return the device that this rank computes on.

    Raises:
        ConfigError: as `joined`.
    """
    return _device(config.training.device, world.local_rank, world.size)


def _torchrun() -> tuple[int, int, int]:
    """Return rank, local rank and size as torchrun says them; 0, 0, 1 without it."""
    if not all(name in os.environ for name in _TORCHRUN):
        return 0, 0, 1
    try:
        rank, local_rank, size = (int(os.environ[name]) for name in _TORCHRUN[:3])
    except ValueError as error:
        raise ConfigError(f"RANK, LOCAL_RANK, WORLD_SIZE: {error}: start it by torchrun") from error
    return rank, local_rank, size


def _device(setting: str, local_rank: int, size: int) -> torch.device:
    wanted, _, number = setting.partition(":")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise ConfigError(f"device {setting}: torch sees no GPU here: use --device cpu, or a torch built for CUDA")
    if number and size > 1:
        raise ConfigError(f"device {setting}: torchrun gives each process a GPU of its own: use --device cuda")
    index = int(number) if number else local_rank
    if index < gpus:
        return torch.device("cuda", index)
    if size > 1:
        raise ConfigError(f"process {index} finds no GPU of its own among {gpus}: use --nproc-per-node {gpus}")
    raise ConfigError(f"device {setting}: there are {gpus} GPUs here, counted from 0: use one of these")


def _abandon() -> None:
    """Leave without waiting for ranks that may be gone: what is left unfinished never will be."""
    group = dist.group.WORLD
    with suppress(RuntimeError):
        if group is not None and hasattr(group, "abort"):  # torch 2.4 ends its communicators without waiting anyway
            group.abort()
        dist.destroy_process_group()
