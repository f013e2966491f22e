"""Rank and device of this process, the process group, and decisions and means over all ranks.

Decisions are made on the hosts, which do not wait for their GPUs.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from instrument.config.schema import Config
from instrument.errors import ConfigError

# Longer than writing a large checkpoint, for which the other ranks wait. A rank that hangs is detected after it.
TIMEOUT = timedelta(minutes=10)
_TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class World:
    """This process and the group of processes it trains with.

    Attributes:
        rank: number of this process, from 0.
        local_rank: number of this process on its machine, from 0; it is the number of its GPU.
        size: number of processes.
        device_type: "cuda" or "cpu".
    """

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    device_type: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and messages for all ranks."""
        return self.rank == 0


@contextmanager
def process_group(device_setting: str) -> Iterator[World]:
    """Context manager: join the process group of torchrun; without torchrun, yield a world of one process.

    CPU tensors are exchanged with gloo, GPU tensors with NCCL. The device becomes the current device of torch.

    Args:
        device_setting: "auto", "cpu", "cuda" or "cuda:N", as in `config.Training`.

    Raises:
        ConfigError: the device does not exist, or "cuda:N" is used with torchrun.
    """
    rank, local_rank, size = torchrun_ranks()
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
        _abort_process_group()
        raise
    dist.destroy_process_group()
    # A wrapped model is part of a reference cycle and keeps the threads of gloo. One that still drops a tensor while
    # the interpreter ends aborts the process, though all steps are done.
    gc.collect()


def select_device(config: Config, world: World) -> torch.device:
    """Return the device of this rank.

    Raises:
        ConfigError: as in `process_group`.
    """
    return _device(config.training.device, world.local_rank, world.size)


def torchrun_ranks() -> tuple[int, int, int]:
    """Return rank, local rank and size from torchrun; 0, 0, 1 without it."""
    if not all(name in os.environ for name in _TORCHRUN_VARIABLES):
        return 0, 0, 1
    try:
        rank, local_rank, size = (int(os.environ[name]) for name in _TORCHRUN_VARIABLES[:3])
    except ValueError as error:
        raise ConfigError(f"RANK, LOCAL_RANK, WORLD_SIZE: {error}; start the processes with torchrun") from error
    return rank, local_rank, size


def _device(setting: str, local_rank: int, size: int) -> torch.device:
    wanted, _, number = setting.partition(":")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise ConfigError(f"device {setting}: torch finds no GPU; use --device cpu or install torch with CUDA")
    if number and size > 1:
        raise ConfigError(f"device {setting}: torchrun assigns a GPU to each process; use --device cuda")
    index = int(number) if number else local_rank
    if index < gpus:
        return torch.device("cuda", index)
    if size > 1:
        raise ConfigError(f"process {index} has no GPU: torch finds {gpus}; use --nproc-per-node {gpus}")
    raise ConfigError(f"device {setting}: torch finds {gpus} GPUs, numbered from 0; use one of these numbers")


def _abort_process_group() -> None:
    """Leave the process group without waiting for ranks that may have failed."""
    group = dist.group.WORLD
    with suppress(RuntimeError):
        if group is not None and hasattr(group, "abort"):  # torch 2.4 aborts its communicators without it
            group.abort()
        dist.destroy_process_group()


class StopVote:
    """Stops all ranks after the same step if one of them is requested to stop.

    Each rank calls it once per step. The ranks vote every `every` steps, so that hosts rarely wait for each other.

    Args:
        world: the ranks; a single process stops immediately.
        every: steps between two votes, at least 1.
    """

    def __init__(self, world: World, every: int = 5) -> None:
        self._world, self._every = world, 1 if world.size == 1 else every
        self._calls, self._requested = 0, False

    def __call__(self, requested: bool) -> bool:
        """Return whether all ranks stop after this step."""
        self._calls += 1
        self._requested |= requested
        return self._calls % self._every == 0 and any_rank(self._requested, self._world)


def any_rank(value: bool, world: World) -> bool:
    """Return on all ranks whether `value` is true on any rank. Each host waits for the others."""
    return min_over_ranks(int(not value), world) == 0


def min_over_ranks(value: int, world: World) -> int:
    """Return on all ranks the minimum over the ranks. Each host waits for the others."""
    if world.size == 1:
        return value
    values = torch.tensor([value])
    dist.all_reduce(values, dist.ReduceOp.MIN)
    return int(values.item())


def is_equal_on_ranks(value: int, world: World) -> bool:
    """Return on all ranks whether all of several ranks have the same value; False for a single process."""
    return world.size > 1 and min_over_ranks(value, world) == -min_over_ranks(-value, world)


def mean_over_ranks(values: Mapping[str, float | None], world: World) -> dict[str, float | None]:
    """Return the mean of each value over the ranks that measured it; None if no rank did.

    All ranks must call it at the same step and with the same names. Each host waits for the others.
    """
    of_ranks = gather_values(dict(values), world)
    known = {name: [each[name] for each in of_ranks if each[name] is not None] for name in values}
    return {name: sum(each) / len(each) if each else None for name, each in known.items()}


def gather_values(value: Any, world: World) -> list[Any]:
    """Return the values of all ranks on every rank, exchanged between the hosts."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values
