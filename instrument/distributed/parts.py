"""Checkpoint state as in a single process, so that a checkpoint fits any number of ranks, with DDP or FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from instrument.checkpoint.resume import Parts, Stateful
from instrument.checkpoint.states import fit_optimizer_state, random_state, restore_random_state
from instrument.distributed.world import World
from instrument.distributed.wrap import is_sharded, unwrap
from instrument.trainer.learner import Learner


def checkpoint_parts(learner: Learner, world: World, *, gathered: bool = True) -> Parts:
    """Return the parts of a checkpoint. Their complete state is on rank 0; without `gathered`, each rank has its own.

    With several ranks state_dict() may be a collective operation, so `SharedCheckpoints` calls it on every rank.
    Parameter names are those of the model without a wrapper.
    """
    model, optimizer = unwrap(learner.model), learner.optimizer
    parts: dict[str, Stateful] = {"model": model, "optimizer": optimizer}
    if gathered and is_sharded(model):
        parts = {"model": GatheredModel(model, world), "optimizer": GatheredOptimizer(optimizer, world)}
    parts |= {"schedule": learner.schedule, "scaler": learner.scaler}
    if gathered and world.size > 1:
        parts["random"] = RankRandomState(world, learner.device)
    return parts


class GatheredModel:
    """A sharded model whose complete state is on the CPU of rank 0 and empty on the other ranks.

    Args:
        model: the model after `fully_shard`.
        world: The ranks. Every rank must call both methods.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self._model, self._world = model, world

    def state_dict(self) -> Mapping[str, Any]:
        """Gather the weights one by one."""
        state = {name: _full_value(value, self._world) for name, value in self._model.state_dict().items()}
        return state if self._world.first else {}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Load the shard of this rank from a complete state."""
        own = self._model.state_dict()
        shards = {name: _local_shard(value, own[name]) if name in own else value for name, value in state_dict.items()}
        self._model.load_state_dict(shards)


class GatheredOptimizer:
    """The optimizer of a sharded model, with the state it would have in a single process.

    Args:
        optimizer: the optimizer of the sharded parameters.
        world: The ranks. Every rank must call both methods.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, world: World) -> None:
        self._optimizer, self._world = optimizer, world

    def state_dict(self) -> Mapping[str, Any]:
        """Gather the state of the parameters one by one."""
        state = self._optimizer.state_dict()
        full = {
            number: {name: _full_value(value, self._world) for name, value in values.items()}
            for number, values in state["state"].items()
        }
        return {**state, "state": full} if self._world.first else {}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Load the shard of this rank from a complete state; keep the options of this run, such as fused."""
        fitted = fit_optimizer_state(self._optimizer, state_dict)
        groups = self._optimizer.param_groups
        own = dict(enumerate(weight for group in groups for weight in group["params"]))
        fitted["state"] = {
            number: {
                name: _local_shard(value, own[number]) if number in own else value for name, value in values.items()
            }
            for number, values in fitted["state"].items()
        }
        self._optimizer.load_state_dict(fitted)


class RankRandomState:
    """The random number generators of all ranks: those of rank 0, and under "others" those of the other ranks.

    A single process restores the state of rank 0. A rank without a state in the checkpoint keeps its own.

    Args:
        world: the ranks, all of which must call `state_dict`.
        device: device of this rank.
    """

    def __init__(self, world: World, device: torch.device) -> None:
        self._world, self._device = world, device

    def state_dict(self) -> Mapping[str, Any]:
        """Gather the states of all ranks."""
        first, *others = gather_values(random_state(), self._world)
        return {**first, "others": others}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Restore the state of this rank."""
        states = [state_dict, *state_dict.get("others", ())]
        if self._world.rank < len(states):
            restore_random_state(states[self._world.rank], self._device)


def gather_values(value: Any, world: World) -> list[Any]:
    """Return the values of all ranks on every rank, exchanged between the hosts."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values


def _full_value(value: Any, world: World) -> Any:
    """Return the unsharded value on the CPU of rank 0; None on other ranks."""
    if isinstance(value, _dtensor_type()):
        value = value.full_tensor()
    if not world.first:
        return None
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _local_shard(value: Any, own: Any) -> Any:
    """Return the shard of this rank of a complete tensor, placed as `own`, if both have the same shape."""
    if not (isinstance(own, _dtensor_type()) and isinstance(value, Tensor) and value.shape == own.shape):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)


def _dtensor_type() -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor
