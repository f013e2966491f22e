"""What a stage is while it runs, and what all stages share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from instrument.checkpoint.states import seed_generators
from instrument.config.schema import Config, Precision
from instrument.data.datasets import Loader, build_loader
from instrument.data.loading import PREFETCH_FACTOR
from instrument.data.order import Position
from instrument.distributed import World, device_of
from instrument.models import build
from instrument.trainer.learner import Batch, Learner
from instrument.trainer.run import pins_batches, resolved
from instrument.trees import map_tensors


class Running(Protocol):
    """One stage, built and ready."""

    @property
    def launches_only(self) -> bool:
        """Whether an iteration is launches alone, so that it can be launched ahead of the GPU."""

    def iterate(self) -> None:
        """Run one iteration: what one optimizer step takes, of this stage."""

    def begin(self) -> None:
        """Forget what was measured so far: the warm-up is over."""

    def figures(self) -> Mapping[str, float | None]:
        """Return what was measured since besides the time: attributes of `Row`."""

    def close(self) -> None:
        """Let go of everything, also after an iteration that failed."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all stages are made from.

    Attributes:
        config: the run's, with the device that was found.
        device: that device.
        resident: host batches of one step, for the stages that load none.
        steps: iterations that a stage may run, for the learning-rate schedule.
        loaders: of batches that are kept, by whether they are pinned: all stages and rounds share them.
    """

    config: Config
    device: torch.device
    resident: Sequence[Batch]
    steps: int
    loaders: dict[bool, Loader] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config, steps: int) -> Setting:
        """Find the device and load one step's batches.

        Raises:
            ConfigError: there is no such device or no such data, or the model cannot run there.
        """
        alone = World()
        device = device_of(config, alone)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        config = resolved(config, device, alone)
        batches = iter(build_loader(replace(config, data=config.data.on_demand()), endless=True))
        resident = [next(batches) for _ in range(config.training.accumulation)]
        return cls(config, device, resident, steps)

    def learner(self, precision: Precision) -> Learner:
        """Return a new model and its optimizer.

        Raises:
            ConfigError: the model has no kernels for this precision.
        """
        training = replace(self.config.training, precision=precision)
        seed_generators(training.seed)
        model = build(self.config.model, self.config.data, self.device, precision=precision)
        return Learner(model, training, self.steps, self.device)

    def on_device(self) -> list[Batch]:
        """Return the resident batches on the device."""
        return [map_tensors(batch, lambda tensor: tensor.to(self.device)) for batch in self.resident]

    def loader(self, config: Config) -> Loader:
        """Return the loader that a run of `config` has, at its first batch."""
        pinned = pins_batches(config, self.device)
        if not config.data.kept:
            return build_loader(config, endless=True, pinned=pinned)
        if pinned not in self.loaders:
            self.loaders[pinned] = build_loader(config, endless=True, pinned=pinned)
        self.loaders[pinned].seek(Position())
        return self.loaders[pinned]

    @property
    def steps_ahead(self) -> int:
        """How many steps' batches the loader's workers have ready when they are not asked for any."""
        data = self.config.data
        if data.kept:
            return 0
        return math.ceil(data.workers * (data.prefetch_factor or PREFETCH_FACTOR) / self.config.training.accumulation)
