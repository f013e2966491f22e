"""The state of a run as one process would have it, and back: checkpoints fit any number of ranks, DDP or FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from instrument.checkpoint.resume import Parts, Stateful
from instrument.checkpoint.states import fit_optimizer_state, random_state, restore_random_state
from instrument.distributed.world import World
from instrument.distributed.wrap import inner, is_sharded


class Trained(Protocol):
    """What of a learner is kept."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: Any
    device: torch.device

    @property
    def schedule(self) -> Stateful:
        """The learning rate's."""


def parts_of(learner: Trained, world: World) -> Parts:
    """Return what a checkpoint keeps of a learner, whole on the first rank.

    With several ranks a part's state_dict() may need all of them: `SharedCheckpoints` calls it on each.
    Weights are named as without a wrapper.
    """
    model, optimizer = inner(learner.model), learner.optimizer
    parts: dict[str, Stateful] = {"model": model, "optimizer": optimizer}
    if is_sharded(model):
        parts = {"model": WholeModel(model, world), "optimizer": WholeOptimizer(optimizer, world)}
    parts |= {"schedule": learner.schedule, "scaler": learner.scaler}
    if world.size > 1:
        parts["random"] = RandomNumbers(world, learner.device)
    return parts


class WholeModel:
    """A sharded model whose state is whole: on the first rank's CPU, empty on the others.

    Args:
        model: after `fully_shard`.
        world: all its ranks take part in both methods.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self._model, self._world = model, world

    def state_dict(self) -> Mapping[str, Any]:
        """Gather every weight, one after the other."""
        state = {name: _whole(value, self._world) for name, value in self._model.state_dict().items()}
        return state if self._world.first else {}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take each rank's share of a whole state."""
        own = self._model.state_dict()
        shares = {name: _share(value, own[name]) if name in own else value for name, value in state_dict.items()}
        self._model.load_state_dict(shares)


class WholeOptimizer:
    """The optimizer of a sharded model, with the state that it would have in one process.

    Args:
        optimizer: made from the sharded parameters.
        world: all its ranks take part in both methods.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, world: World) -> None:
        self._optimizer, self._world = optimizer, world

    def state_dict(self) -> Mapping[str, Any]:
        """Gather the state of every parameter, one after the other."""
        state = self._optimizer.state_dict()
        whole = {
            number: {name: _whole(value, self._world) for name, value in values.items()}
            for number, values in state["state"].items()
        }
        return {**state, "state": whole} if self._world.first else {}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take each rank's share of a whole state, and keep this run's way of computing."""
        fitted = fit_optimizer_state(self._optimizer, state_dict)
        own = dict(enumerate(one for group in self._optimizer.param_groups for one in group["params"]))
        fitted["state"] = {
            number: {name: _share(value, own[number]) if number in own else value for name, value in values.items()}
            for number, values in fitted["state"].items()
        }
        self._optimizer.load_state_dict(fitted)


class RandomNumbers:
    """The random numbers that every rank would draw next: the first one's, and under "others" the other ranks'.

    One process reads of it what is its own; a rank that the checkpoint does not know keeps its numbers.

    Args:
        world: all its ranks take part in `state_dict`.
        device: where this rank draws.
    """

    def __init__(self, world: World, device: torch.device) -> None:
        self._world, self._device = world, device

    def state_dict(self) -> Mapping[str, Any]:
        """Gather every rank's state."""
        first, *others = gathered(random_state(), self._world)
        return {**first, "others": others}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on with this rank's own numbers."""
        states = [state_dict, *state_dict.get("others", ())]
        if self._world.rank < len(states):
            restore_random_state(states[self._world.rank], self._device)


def gathered(value: Any, world: World) -> list[Any]:
    """Return every rank's value, on every rank, by way of the hosts."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values


def _whole(value: Any, world: World) -> Any:
    """Return a value without its shards, on the CPU; None on ranks that do not need it."""
    if isinstance(value, _dtensor()):
        value = value.full_tensor()
    if not world.first:
        return None
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _share(value: Any, own: Any) -> Any:
    """Return this rank's share of a whole tensor, placed as `own` is, where the two have one shape."""
    if not (isinstance(own, _dtensor()) and isinstance(value, Tensor) and value.shape == own.shape):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)


def _dtensor() -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor
