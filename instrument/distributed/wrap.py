"""Wraps a model in DDP or FSDP2, and controls when its gradients are reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from instrument.config.schema import Distributed
from instrument.distributed.world import World
from instrument.errors import ConfigError

_first_pass_done: WeakSet[nn.Module] = WeakSet()


def wrap(model: nn.Module, config: Distributed, world: World, device: torch.device) -> nn.Module:
    """Return the model wrapped in DDP or FSDP2 as configured, or the model itself for a single process.

    All ranks start with the weights of rank 0. Create the optimizer from the returned model, because sharding replaces
    the parameters.

    Raises:
        ConfigError: sharding is configured for a single process, or torch has no FSDP2.
    """
    if config.shard:
        return _shard(model, world)
    if world.size == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        bucket_cap_mb=config.bucket_mb,
        gradient_as_bucket_view=config.gradient_as_bucket_view,
        static_graph=config.static_graph,
    )


def gradient_reduction(model: nn.Module, now: bool) -> AbstractContextManager[Any]:
    """Return a context manager for forward and backward: `now` decides whether the ranks reduce the gradients."""
    if now or _must_reduce_first_pass(model):
        return nullcontext()
    if isinstance(model, DistributedDataParallel):
        context: AbstractContextManager[Any] = model.no_sync()
        return context
    if is_sharded(model):
        return _without_reduction(model)
    return nullcontext()


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside DDP, with its own parameter names. FSDP2 does not rename parameters."""
    if isinstance(model, DistributedDataParallel):
        module: nn.Module = model.module
        return module
    return model


def is_sharded(model: nn.Module) -> bool:
    """Return whether FSDP2 has sharded the model."""
    return hasattr(model, "set_requires_gradient_sync")


def _must_reduce_first_pass(model: nn.Module) -> bool:
    """Return true once for a static graph: torch fails unless its first pass is reduced.

    The step is still correct, because averaging an average again does not change it.
    """
    if not isinstance(model, DistributedDataParallel) or not model.static_graph or model in _first_pass_done:
        return False
    _first_pass_done.add(model)
    return True


@contextmanager
def _without_reduction(model: nn.Module) -> Iterator[None]:
    set_sync: Callable[[bool], None] = model.set_requires_gradient_sync  # type: ignore[assignment]
    set_sync(False)
    try:
        yield
    finally:
        set_sync(True)


def _shard(model: nn.Module, world: World) -> nn.Module:
    """Shard each block of a ModuleList, so that one is gathered while another computes, then the root module."""
    if world.size == 1:
        raise ConfigError("--shard needs several processes; start with torchrun --nproc-per-node 2 or more")
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        raise ConfigError(f"--shard needs torch 2.6 or later; this is torch {torch.__version__}") from error
    _broadcast_weights(model)
    # modules() yields outer modules first; inner ones must be sharded first.
    for blocks in [module for module in model.modules() if isinstance(module, nn.ModuleList)][::-1]:
        for block in blocks:
            fully_shard(block)
    fully_shard(model)
    return model


def _broadcast_weights(model: nn.Module) -> None:
    """Copy the weights of rank 0 to all ranks, as DDP does."""
    for tensor in (*model.parameters(), *model.buffers()):
        torch.distributed.broadcast(tensor.detach(), src=0)
