"""Runs functions in real processes that form a group of ranks, as torchrun starts them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing
from torch.multiprocessing.spawn import start_processes

from instrument.distributed.world import World, process_group

PRELOADED = ["torch._dynamo", "torch.distributed.fsdp", "tests.instrument.ranks", "instrument.trainer.training_run"]
Scenario = Callable[[World, Path], Any]


def run(scenarios: Sequence[Scenario], folder: Path, size: int = 2, device: str = "cpu") -> Mapping[str, list[Any]]:
    """Run module-level functions one after the other on each rank; return the results of all ranks by function name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # One process imports torch, and each rank is a fork of it.
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    arguments = (size, port, scenarios, folder, device)
    start_processes(_rank, arguments, nprocs=size, start_method="forkserver")  # type: ignore[no-untyped-call]
    ranks = [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(size)]
    return {name: [results[name] for results in ranks] for name in ranks[0]}


def _rank(rank: int, size: int, port: int, scenarios: Sequence[Scenario], folder: Path, device: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    with process_group(device) as world:
        results = {scenario.__name__: scenario(world, folder) for scenario in scenarios}
    torch.save(results, folder / f"rank-{rank}.pt")
