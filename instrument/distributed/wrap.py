"""Wraps a model in DDP or FSDP2, and controls when its gradients are reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from instrument.config.sections import Distributed
from instrument.distributed.world import World
from instrument.errors import ConfigError
from instrument.models import repeated_blocks


def wrap(model: nn.Module, config: Distributed, world: World, device: torch.device) -> nn.Module:
    """Return the model wrapped in DDP or FSDP2 as configured, or the model itself for a single process.

    All ranks start with the weights of rank 0. Create the optimizer from the returned model, because sharding replaces
    the parameters.

    Raises:
        ConfigError: sharding is configured for a single process, or torch has no FSDP2.
    """
    if config.shard:
        return _shard(model, config, world)
    if world.size == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        bucket_cap_mb=config.bucket_mb,
        gradient_as_bucket_view=True,
    )


def gradient_reduction(model: nn.Module, now: bool) -> AbstractContextManager[Any]:
    """Return a context manager for forward and backward: `now` decides whether the ranks reduce the gradients."""
    if now:
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


@contextmanager
def _without_reduction(model: nn.Module) -> Iterator[None]:
    set_sync: Callable[[bool], None] = model.set_requires_gradient_sync  # type: ignore[assignment]
    set_sync(False)
    try:
        yield
    finally:
        set_sync(True)


def _shard(model: nn.Module, config: Distributed, world: World) -> nn.Module:
    """Shard each block of a ModuleList, so that one is gathered while another computes, then the root module."""
    if world.size == 1:
        raise ConfigError("--shard needs several processes; start with torchrun --nproc-per-node 2 or more")
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise ConfigError(f"--shard needs torch 2.6 or later; this is torch {torch.__version__}") from error
    _broadcast_weights(model)
    # Autocast casts the inputs. Norms and losses get them in the precision that autocast chooses.
    in_bf16 = config.shard_precision == "bf16"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if in_bf16 else None,
        reduce_dtype=torch.float32 if in_bf16 else None,
        cast_forward_inputs=False,
    )
    for blocks in repeated_blocks(model):  # inner modules must be sharded first
        for block in blocks:
            fully_shard(block, mp_policy=policy, reshard_after_forward=config.reshard_after_forward)
        _prefetch(list(blocks), config.shard_prefetch)
    fully_shard(model, mp_policy=policy)
    return model


def _prefetch(blocks: Sequence[Any], ahead: int) -> None:
    """Gather the next `ahead` blocks while a block computes: the following ones in forward, the earlier in backward."""
    for number, block in enumerate(blocks if ahead else ()):
        block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + ahead])
        block.set_modules_to_backward_prefetch(blocks[max(number - ahead, 0) : number][::-1])


def _broadcast_weights(model: nn.Module) -> None:
    """Copy the weights of rank 0 to all ranks, as DDP does."""
    for tensor in (*model.parameters(), *model.buffers()):
        torch.distributed.broadcast(tensor.detach(), src=0)
