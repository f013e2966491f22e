"""The loss on batches that a run does not train on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor, nn

from instrument.checkpoint.states import random_state_kept
from instrument.data import Position
from instrument.distributed.world import World, mean_over_ranks
from instrument.ranges import VALIDATE, phase
from instrument.trainer.learner import Learner
from instrument.trees import map_tensors
from instrument.workload import Workload

LOSS = "validation/loss"
_VALIDATE = phase(VALIDATE)
Report = Callable[[int, Mapping[str, float | None]], None]


class Validation:
    """Measures the validation loss every `training.validate_every` steps, for the learning-rate schedule.

    It changes neither the weights, nor the mode of a module, nor the random numbers of the training. The host waits for
    the GPU. Each measurement uses the same batches, at most `data.validation_batches` on each rank. Without
    `data.validation`, synthetic data comes from another seed.

    Args:
        workload: what the run trains.
        learner: the learner of the run.
        world: the ranks, which measure different batches and share the mean.
        report: receives the number of steps done, and the loss and the metrics of the loss function by name.

    Raises:
        ConfigError: the validation data cannot be read or is smaller than a batch.
    """

    def __init__(self, workload: Workload, learner: Learner, world: World, report: Report) -> None:
        config = workload.config
        self._learner, self._world, self._report = learner, world, report
        data = replace(config.data.on_demand(), path=config.data.validation)
        seed = config.training.seed + (data.path is None)
        config = replace(config, data=data, training=replace(config.training, seed=seed))
        self._loader = workload.validation(config).build_loader(rank=world.rank, world=world.size, endless=False)
        self._count, self._every = data.validation_batches, config.training.validate_every
        self._last = (-1, math.nan)

    def after(self, done: int) -> None:
        """Measure after step number `done`, counted from 1, if it is time to."""
        if done % self._every == 0:
            self.loss(done)

    def loss(self, done: int) -> float:
        """Return the loss after `done` steps, measured now unless it is known."""
        if self._last[0] != done:
            with _VALIDATE:
                figures = mean_over_ranks(self._measure(), self._world)
            loss = figures[LOSS]
            self._last = done, math.nan if loss is None else loss
            self._learner.schedule.report(self._last[1])
            self._report(done, figures)
        return self._last[1]

    def _measure(self) -> dict[str, float | None]:
        model, device = self._learner.model, self._learner.device
        self._loader.seek(Position())
        measured: dict[str, list[Tensor]] = {LOSS: []}
        own = self._learner.metrics  # those of a CUDA graph are computed in place and not returned again
        with _in_evaluation(model), torch.no_grad(), random_state_kept(device):
            for batch in islice(iter(self._loader), self._count):
                on_device = map_tensors(batch, lambda tensor: tensor.to(device))
                measured[LOSS].append(self._learner.forward(on_device))
                for name, metric in self._learner.metrics.items():
                    measured.setdefault(f"validation/{name}", []).append(metric)
        self._learner.metrics = own
        return {
            name: torch.stack(values).float().mean().item() if values else None for name, values in measured.items()
        }


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode, and each of its modules back into its own mode after the block."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
