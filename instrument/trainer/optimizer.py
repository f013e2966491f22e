"""The optimizer of a run and its learning rates: AdamW with the trainer's schedules, or those of the user."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from instrument.config.sections import Training
from instrument.errors import ConfigError

MakeOptimizer = Callable[..., Any]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return a group of the weights with decay, and one of the parameters of one dimension (biases, norms) without."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = (
        {"params": [parameter for parameter in trained if parameter.dim() >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.dim() < 2], "weight_decay": 0.0},
    )
    return [group for group in groups if group["params"]]


def build_optimizer(
    model: nn.Module, training: Training, steps: int, device: torch.device, make: MakeOptimizer | None = None
) -> tuple[torch.optim.Optimizer, LearningRateSchedule | OwnSchedule]:
    """Return the optimizer of a model, and the schedule of its learning rates.

    AdamW on a GPU is fused and capturable, with its step count and rate there, for every strategy.

    Args:
        model: the model.
        training: learning rate, decay and schedule.
        steps: length of the run in optimizer steps.
        device: device of the model.
        make: a class or function of the user. It gets the groups of `parameter_groups`, `lr` and `model` if it has
            parameters of these names, and returns an optimizer, or an optimizer and a scheduler, which replaces
            `training.schedule` and is stepped after each optimizer step. None for AdamW.

    Raises:
        ConfigError: `make` fails or returns something else.
    """
    groups = parameter_groups(model, training.weight_decay)
    if make is None:
        on_gpu = device.type == "cuda"
        rate = torch.tensor(training.learning_rate, device=device) if on_gpu else training.learning_rate
        optimizer: Any = torch.optim.AdamW(groups, lr=rate, fused=on_gpu, capturable=on_gpu)
        return optimizer, LearningRateSchedule(optimizer, training, steps)
    accepted = inspect.signature(make).parameters
    known = {"lr": training.learning_rate, "model": model}
    try:
        made = make(groups, **{name: value for name, value in known.items() if name in accepted})
    except Exception as error:
        raise ConfigError(f"--optimizer {training.optimizer} fails with {type(error).__name__}: {error}") from error
    optimizer, scheduler = made if isinstance(made, tuple) else (made, None)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"--optimizer {training.optimizer} returns {type(optimizer).__name__}, not a torch.optim.Optimizer, "
            "alone or with a scheduler"
        )
    if scheduler is None:
        rates = [group.get("lr", training.learning_rate) for group in optimizer.param_groups]
        return optimizer, LearningRateSchedule(optimizer, training, steps, rates)
    return optimizer, OwnSchedule(scheduler)


class OwnSchedule:
    """A scheduler of the user, such as those of torch.optim.lr_scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._follows_loss = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)

    def step(self) -> None:
        """Set the learning rate of the next step."""
        if not self._follows_loss:
            self._scheduler.step()

    def report(self, loss: float) -> None:
        """Add a validation loss, which ReduceLROnPlateau follows."""
        if self._follows_loss:
            self._scheduler.step(loss)

    def rewind(self, steps: int) -> None:
        """Do nothing: a scheduler cannot return to an earlier step."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state for a checkpoint."""
        state: Mapping[str, Any] = self._scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: Any, /) -> None:
        """Restore the state of a checkpoint."""
        self._scheduler.load_state_dict(state_dict)


class LearningRateSchedule:
    """Sets the learning rate of every parameter group before each step, after a linear warm-up.

    A learning rate that is a tensor, as in a CUDA graph, is filled in place, without a copy or a synchronization.

    Args:
        optimizer: the optimizer.
        training: warm-up and shape.
        steps: length of the run in optimizer steps.
        base_lrs: rate of each group after the warm-up; None for `training.learning_rate`.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, training: Training, steps: int, base_lrs: Sequence[float] | None = None
    ) -> None:
        self._optimizer, self._training, self._steps = optimizer, training, steps
        rates = [training.learning_rate for _ in optimizer.param_groups] if base_lrs is None else base_lrs
        self.base_lrs = [float(rate) for rate in rates]
        self.step_count = 0
        self._best, self._waited, self._halvings = math.inf, 0, 0  # for the schedule `plateau`
        self._set_rates()

    def step(self) -> None:
        """Set the learning rate of the next step."""
        self.step_count += 1
        self._set_rates()

    def report(self, loss: float) -> None:
        """Add a validation loss: plateau halves the rate when more than `patience` in turn are not the lowest."""
        if self._training.schedule != "plateau":
            return
        if loss < self._best:
            self._best, self._waited = loss, 0
            return
        self._waited += 1
        if self._waited > self._training.patience:
            self._waited, self._halvings = 0, self._halvings + 1
            self._set_rates()

    def rewind(self, steps: int) -> None:
        """Return to the rate before the last `steps` steps, after steps that updated nothing."""
        self.step_count -= steps
        self._set_rates()

    def rate_fraction(self, step: int) -> float:
        """Return the fraction of the base rate at a step, counted from 0."""
        warmup, shape = self._training.warmup, self._training.schedule
        if step < warmup:
            return (step + 1) / warmup
        if shape in ("constant", "plateau"):
            return 0.5**self._halvings
        done = min((step - warmup) / max(self._steps - warmup, 1), 1.0)
        return 1.0 - done if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state for a checkpoint."""
        plateau = [self._best, self._waited, self._halvings]
        return {"step_count": self.step_count, "plateau": plateau}

    def load_state_dict(self, state_dict: Any, /) -> None:
        """Restore the state of a checkpoint; the rates are those of this run."""
        self.step_count = int(state_dict["step_count"])
        best, waited, halvings = state_dict.get("plateau", (math.inf, 0, 0))  # older checkpoints lack it
        self._best, self._waited, self._halvings = float(best), int(waited), int(halvings)
        self._set_rates()

    def _set_rates(self) -> None:
        fraction = self.rate_fraction(self.step_count)
        for group, base in zip(self._optimizer.param_groups, self.base_lrs, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(base * fraction)
            else:
                group["lr"] = base * fraction
