"""The configuration, device, batches and loaders that all stages share, and the protocol of a running stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from instrument.checkpoint.states import seed_generators
from instrument.config.schema import Config
from instrument.config.training import AUTO_BATCH, Precision
from instrument.data.datasets import Loader
from instrument.data.loading import PREFETCH_FACTOR
from instrument.data.order import Position
from instrument.distributed.world import World, select_device
from instrument.errors import ConfigError
from instrument.own.streams import StreamLoader
from instrument.own.workload import open_workload
from instrument.trainer.learner import Batch, Learner
from instrument.trainer.training_run import uses_pinned_batches, with_device
from instrument.trees import map_tensors
from instrument.workload import Workload


class StageRun:
    """A stage that is ready to run. This base class measures nothing besides the time.

    Attributes:
        launches_only: whether an iteration only launches work, so that the host can launch it ahead of the GPU.
    """

    launches_only = False

    def iterate(self) -> None:
        """Run one iteration: this stage's part of one optimizer step."""
        raise NotImplementedError

    def begin(self) -> None:
        """Discard the measurements of the warm-up."""

    def figures(self) -> Mapping[str, float | None]:
        """Return attributes of `StageResult`, besides the time, measured since `begin`."""
        return {}

    def close(self) -> None:
        """Release all resources, also after a failed iteration."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """What all stages are built from.

    Attributes:
        workload: the model, data and loss.
        config: the configuration of the run, with its device.
        device: the device.
        resident: host batches of one step, for the stages without a loader.
        loaders: loaders of batches kept in memory, by whether they are pinned, shared by all stages and rounds.
    """

    workload: Workload
    config: Config
    device: torch.device
    resident: Sequence[Batch]
    loaders: dict[bool, Loader | StreamLoader] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: Config, make_workload: Callable[[Config], Workload] = open_workload) -> StageContext:
        """Select the device and load the batches of one step.

        Args:
            config: the configuration of the run.
            make_workload: returns what a configuration with its device trains.

        Raises:
            ConfigError: the device or the data do not exist, or the model does not support the device.
        """
        if config.data.batch == AUTO_BATCH:
            raise ConfigError("--batch auto is for instrument.train; give the diagnosis the size that it prints")
        single = World()
        device = select_device(config, single)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        workload = make_workload(with_device(config, device, single))
        config = workload.config
        batches = iter(workload.build_loader(replace(config, data=config.data.on_demand()), endless=True))
        resident = [next(batches) for _ in range(config.training.accumulation)]
        return cls(workload, config, device, resident)

    def learner(self, precision: Precision) -> Learner:
        """Return a new model with its optimizer.

        Raises:
            ConfigError: the model does not support this precision.
        """
        training = replace(self.config.training, precision=precision)
        seed_generators(training.seed)
        model = self.workload.build_model(self.device, precision)
        return self.workload.learner(model, training, max(training.steps, 1), self.device)

    def on_device(self) -> list[Batch]:
        """Return the resident batches on the device."""
        return [map_tensors(batch, lambda tensor: tensor.to(self.device)) for batch in self.resident]

    def loader(self, config: Config) -> Loader | StreamLoader:
        """Return the loader of a run with `config`, at its first batch."""
        pinned = uses_pinned_batches(config, self.device)
        if not config.data.kept:
            return self.workload.build_loader(config, endless=True, pinned=pinned)
        if pinned not in self.loaders:
            self.loaders[pinned] = self.workload.build_loader(config, endless=True, pinned=pinned)
        self.loaders[pinned].seek(Position())
        return self.loaders[pinned]

    @property
    def steps_ahead(self) -> int:
        """Number of steps whose batches the loader's workers can have ready in advance."""
        data = self.config.data
        if data.kept:
            return 0
        return math.ceil(data.workers * (data.prefetch_factor or PREFETCH_FACTOR) / self.config.training.accumulation)
