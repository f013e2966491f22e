"""What a diagnosis runs: the model alone, and the pipeline of the run; and what both share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import ClassVar

import torch

from instrument.checkpoint.states import seed_generators
from instrument.config.schema import Config
from instrument.config.sections import AUTO_BATCH
from instrument.config.strategies import STRATEGIES
from instrument.data import PREFETCH_FACTOR, Loader, Position
from instrument.distributed.world import World, select_device, torchrun_ranks
from instrument.errors import ConfigError
from instrument.monitor.loader import LoaderGauge
from instrument.monitor.meter import StepMeter
from instrument.monitor.metrics import StepFigures
from instrument.own import StreamLoader
from instrument.strategies import strategy_class
from instrument.sync import SyncPolicy
from instrument.trainer.learner import Batch, Learner
from instrument.trainer.training_run import uses_pinned_batches, with_device
from instrument.trees import map_tensors
from instrument.workload import Workload, open_workload


@dataclass(frozen=True, slots=True)
class StageContext:
    """What both stages are built from.

    Attributes:
        workload: the model, data and loss.
        config: the configuration of the run, with its device.
        device: the device.
        resident: host batches of one step, for the model alone.
        kept: the loader of batches kept in memory, shared by all rounds, once it is made.
    """

    workload: Workload
    config: Config
    device: torch.device
    resident: Sequence[Batch]
    kept: list[Loader | StreamLoader] = field(default_factory=list)

    @classmethod
    def from_config(cls, config: Config, make_workload: Callable[[Config], Workload] = open_workload) -> StageContext:
        """Select the device and load the batches of one step.

        Args:
            config: the configuration of the run.
            make_workload: returns what a configuration with its device trains.

        Raises:
            ConfigError: the device or the data do not exist, the model does not support the device, or torchrun
                started several processes.
        """
        if config.data.batch == AUTO_BATCH:
            raise ConfigError("--batch auto is for instrument.train; give the diagnosis the size that it prints")
        if torchrun_ranks()[2] > 1:  # the processes would share a GPU, and disturb each other's times
            raise ConfigError(
                "a diagnosis measures one process: run it without torchrun; for what ranks wait for, record each with "
                "torchrun ... --no-python traceview record, and read them with traceview fleet"
            )
        single = World()
        device = select_device(config, single)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        workload = make_workload(with_device(config, device, single))
        config = workload.config
        batches = iter(workload.build_loader(replace(config, data=config.data.on_demand()), endless=True))
        resident = [next(batches) for _ in range(config.training.accumulation)]
        return cls(workload, config, device, resident)

    def learner(self) -> Learner:
        """Return a new model with its optimizer."""
        training = self.config.training
        seed_generators(training.seed)
        model = self.workload.build_model(self.device)
        return self.workload.learner(model, training, max(training.steps, 1), self.device)

    def loader(self, gauge: LoaderGauge) -> Loader | StreamLoader:
        """Return the loader of the run, at its first batch."""
        pinned = uses_pinned_batches(self.config, self.device)
        made = self.kept or [self.workload.build_loader(endless=True, pinned=pinned, gauge=gauge)]
        if self.config.data.kept:
            self.kept[:] = made
            made[0].seek(Position())
        return made[0]

    @property
    def steps_ahead(self) -> int:
        """Number of steps whose batches the loader's workers can have ready in advance."""
        data = self.config.data
        if data.kept:
            return 0
        return math.ceil(data.workers * (data.prefetch_factor or PREFETCH_FACTOR) / self.config.training.accumulation)


class Stage:
    """What is measured; this one runs nothing. It is opened for each round and closed after it.

    Attributes:
        name: its name in the table and in JSON.
        launches_only: whether an iteration only launches work, so that the host can launch it ahead of the GPU.
    """

    name: ClassVar[str]
    launches_only: ClassVar[bool] = False

    def __init__(self, context: StageContext) -> None:
        self.config = context.config

    @property
    def title(self) -> str:
        """What runs, in at most 28 characters."""
        return self.name

    def iterate(self) -> None:
        """Run one iteration: this stage's part of one optimizer step."""

    def begin(self) -> None:
        """Discard the measurements of the warm-up."""

    def figures(self) -> Mapping[str, float | None]:
        """Return attributes of `StageResult`, besides the time, measured since `begin`."""
        return {}

    def close(self) -> None:
        """Release all resources, also after a failed iteration."""


class Compute(Stage):
    """A complete step (forward, backward, optimizer) on batches that are on the device."""

    name, launches_only = "compute", True

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._learner = context.learner()
        self._batches = [map_tensors(batch, lambda tensor: tensor.to(context.device)) for batch in context.resident]

    @property
    def title(self) -> str:
        """What runs."""
        return f"the model alone, {self.config.training.precision}"

    def iterate(self) -> None:
        """Run one step."""
        for batch in self._batches:
            self._learner.backward(self._learner.forward(batch), 1 / len(self._batches))
        self._learner.update()


class Pipeline(Stage):
    """Trains on the loader's batches with the strategy and the sync policy of the run, like the training loop."""

    name = "pipeline"

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        training = self.config.training
        self._gauge, self._count = LoaderGauge(), training.accumulation
        self._meter = StepMeter(context.device, self._gauge)
        self._strategy = strategy_class(training.strategy)(self.config, context.learner(), self._meter)
        self._batches = self._strategy.batches(context.loader(self._gauge))
        self._policy = SyncPolicy.from_text(training.sync, STRATEGIES[training.strategy].sync_interval)
        self._late = self._policy.losses(context.device)
        self._step = self._first = 0
        self._counted = self._gauge.counts
        self._measured: list[StepFigures] = []

    @property
    def title(self) -> str:
        """What runs."""
        return f"{self.config.training.strategy}, sync {self._policy.every or 'event'}"

    def iterate(self) -> None:
        """Run one step, and wait if the sync policy requires it."""
        self._meter.begin(self._step)
        batches = [next(self._batches) for _ in range(self._count)]
        self._late.log(self._step, self._strategy.step(batches))
        self._step += 1
        self._measured += self._meter.finished()

    def begin(self) -> None:
        """Discard the steps so far."""
        self._first, self._counted = self._step, self._gauge.counts
        self._measured.clear()

    def figures(self) -> Mapping[str, float | None]:
        """Return what the loader takes for the batches of a step, and the mean waits for it and times of copies."""
        rate = self._gauge.counts.plus(self._counted, -1).batches_per_s
        steps = [step for step in self._measured if step.step >= self._first]
        loading = [step.data_load_ms for step in steps if step.data_load_ms is not None]
        copying = [step.copy_ms for step in steps if step.copy_ms is not None]
        return {
            "loader_ms": None if rate is None else 1000 * self._count / rate,
            "data_load_ms": fmean(loading) if loading else None,
            "copy_ms": fmean(copying) if copying else None,
        }

    def close(self) -> None:
        """Stop the threads and the workers."""
        self._strategy.close()
        self._batches = iter(())
