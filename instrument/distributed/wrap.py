"""DDP or FSDP2 around a model, and when its gradients are reduced."""

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

_graph_known: WeakSet[nn.Module] = WeakSet()


def wrap(model: nn.Module, config: Distributed, world: World, device: torch.device) -> nn.Module:
    """Return the model as `config` shares it between ranks: DDP, FSDP2, or the model itself where there is one rank.

    All ranks begin with the weights of rank 0. Make the optimizer from what is returned: sharded parameters
    are others than the model had.

    Raises:
        ConfigError: sharding is asked of one process, or of a torch that has no FSDP2.
    """
    if config.shard:
        return _sharded(model, world)
    if world.size == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        bucket_cap_mb=config.bucket_mb,
        gradient_as_bucket_view=config.gradient_as_bucket_view,
        static_graph=config.static_graph,
    )


def reduced(model: nn.Module, now: bool) -> AbstractContextManager[Any]:
    """Return the context of a forward and backward pass whose gradients the ranks reduce `now`, or not yet."""
    if now or _learns_its_graph(model):
        return nullcontext()
    if isinstance(model, DistributedDataParallel):
        context: AbstractContextManager[Any] = model.no_sync()
        return context
    if is_sharded(model):
        return _unreduced(model)
    return nullcontext()


def inner(model: nn.Module) -> nn.Module:
    """Return the model inside DDP, whose weights have their own names; FSDP2 adds none."""
    if isinstance(model, DistributedDataParallel):
        module: nn.Module = model.module
        return module
    return model


def is_sharded(model: nn.Module) -> bool:
    """Return whether FSDP2 has sharded the model."""
    return hasattr(model, "set_requires_gradient_sync")


def _learns_its_graph(model: nn.Module) -> bool:
    """Say once that a static graph is not known yet: its first pass has to be reduced, or torch fails.

    The step that holds it is right all the same: an average does not change when it is averaged again.
    """
    if not isinstance(model, DistributedDataParallel) or not model.static_graph or model in _graph_known:
        return False
    _graph_known.add(model)
    return True


@contextmanager
def _unreduced(model: nn.Module) -> Iterator[None]:
    set_sync: Callable[[bool], None] = model.set_requires_gradient_sync  # type: ignore[assignment]
    set_sync(False)
    try:
        yield
    finally:
        set_sync(True)


def _sharded(model: nn.Module, world: World) -> nn.Module:
    """Shard each block of a list, so that one is gathered while another computes, and the rest as the root."""
    if world.size == 1:
        raise ConfigError("--shard shares a model between GPUs: start it by torchrun with 2 processes or more")
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        raise ConfigError(f"--shard needs torch 2.6 or later, this is {torch.__version__}: leave it off") from error
    _same_weights(model)
    # What is inside another comes after it in modules(), and has to be sharded before it.
    for blocks in [module for module in model.modules() if isinstance(module, nn.ModuleList)][::-1]:
        for block in blocks:
            fully_shard(block)
    fully_shard(model)
    return model


def _same_weights(model: nn.Module) -> None:
    """Give all ranks the first one's weights, as DDP does."""
    for tensor in (*model.parameters(), *model.buffers()):
        torch.distributed.broadcast(tensor.detach(), src=0)
