"""The stages of a diagnosis, in order: each adds something to the ones before it; and what all stages share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch

from instrument.checkpoint.states import seed_generators
from instrument.config.schema import Config
from instrument.config.sections import AUTO_BATCH, Precision
from instrument.config.settings import did_you_mean
from instrument.config.strategies import STRATEGIES
from instrument.data import PREFETCH_FACTOR, Loader, Position
from instrument.distributed.world import World, select_device, torchrun_ranks
from instrument.errors import ConfigError, InstrumentError
from instrument.monitor.meter import StepMeter
from instrument.monitor.metrics import StepFigures
from instrument.own import StreamLoader
from instrument.strategies import strategy_class
from instrument.sync import SyncPolicy
from instrument.trainer.learner import Batch, Learner
from instrument.trainer.training_run import uses_pinned_batches, with_device
from instrument.trees import map_tensors
from instrument.workload import Workload, open_workload


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


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a run that is measured separately.

    Attributes:
        name: name in `--stages`, in JSON and in the diagnosis.
        title: returns the title for a configuration, at most 28 characters.
        open: builds the stage; raises InstrumentError if it cannot be measured.
    """

    name: str
    title: Callable[[Config], str]
    open: Callable[[StageContext], StageRun]


class TrainStage(StageRun):
    """A complete step (forward, backward, optimizer) on batches that are on the device."""

    launches_only = True

    def __init__(self, context: StageContext, precision: Precision) -> None:
        self._learner = context.learner(precision)
        self._batches = context.on_device()

    def iterate(self) -> None:
        """Run one step."""
        for batch in self._batches:
            self._learner.backward(self._learner.forward(batch), 1 / len(self._batches))
        self._learner.update()


class LoaderStage(StageRun):
    """Loads the host batches of a step and does nothing with them."""

    def __init__(self, context: StageContext) -> None:
        self._batches: Iterator[Any] = iter(context.loader(context.config))
        self._count = context.config.training.accumulation

    def iterate(self) -> None:
        """Load the batches of one step."""
        for _ in range(self._count):
            next(self._batches)

    def close(self) -> None:
        """Stop the workers."""
        self._batches = iter(())


class PipelineStage(StageRun):
    """Trains on the loader's batches with a strategy and a sync policy, like the training loop.

    Args:
        context: what all stages share.
        config: the configuration of the run, or one with another strategy and sync policy.
    """

    def __init__(self, context: StageContext, config: Config) -> None:
        self._meter = StepMeter(context.device)
        learner = context.learner(config.training.precision)
        self._strategy = strategy_class(config.training.strategy)(config, learner, self._meter)
        self._batches = self._strategy.batches(context.loader(config))
        policy = SyncPolicy.from_text(config.training.sync, STRATEGIES[config.training.strategy].sync_interval)
        self._late = policy.losses(context.device)
        self._count = config.training.accumulation
        self._step = self._first = 0
        self._measured: list[StepFigures] = []

    def iterate(self) -> None:
        """Run one step, and wait if the sync policy requires it."""
        self._meter.begin(self._step)
        batches = [next(self._batches) for _ in range(self._count)]
        self._late.log(self._step, self._strategy.step(batches))
        self._step += 1
        self._measured += self._meter.finished()

    def begin(self) -> None:
        """Discard the steps so far."""
        self._first = self._step
        self._measured.clear()

    def figures(self) -> Mapping[str, float | None]:
        """Return the mean times of loading and copying over the completed steps."""
        steps = [step for step in self._measured if step.step >= self._first]
        loading = [step.data_load_ms for step in steps if step.data_load_ms is not None]
        copying = [step.copy_ms for step in steps if step.copy_ms is not None]
        return {"data_load_ms": fmean(loading) if loading else None, "copy_ms": fmean(copying) if copying else None}

    def close(self) -> None:
        """Stop the threads and the workers."""
        self._strategy.close()
        self._batches = iter(())


def _open_training(context: StageContext) -> StageRun:
    return TrainStage(context, "fp32")


def _open_mixed(context: StageContext) -> StageRun:
    precision = context.config.training.precision
    if precision == "fp32":
        raise InstrumentError("the run uses fp32; use --precision bf16 to measure mixed precision")
    return TrainStage(context, precision)


def _open_plain(context: StageContext) -> StageRun:
    """Return the baseline: blocking copies from pageable memory, and a wait after each step."""
    if context.device.type != "cuda":
        raise InstrumentError("without a GPU nothing is copied, so it equals the pipeline")
    training = replace(context.config.training, strategy="serial", sync="every")
    return PipelineStage(context, replace(context.config, training=training))


def _mixed_title(config: Config) -> str:
    precision = config.training.precision
    return f"training, {'mixed precision' if precision == 'fp32' else precision}"


def _pipeline_title(config: Config) -> str:
    auto = STRATEGIES[config.training.strategy].sync_interval
    every = SyncPolicy.from_text(config.training.sync, auto).every
    return f"{config.training.strategy}, {'sync event' if every is None else f'sync {every}'}"


STAGES: tuple[Stage, ...] = (
    Stage("training", lambda _config: "training, fp32", _open_training),
    Stage("mixed", _mixed_title, _open_mixed),
    Stage("loader", lambda _config: "loader alone", LoaderStage),
    Stage("plain", lambda _config: "loader + copy + model", _open_plain),
    Stage("pipeline", _pipeline_title, lambda context: PipelineStage(context, context.config)),
)


def select_stages(names: str | None) -> tuple[Stage, ...]:
    """Return the stages of a list such as "training,loader", in the order of STAGES; all stages for None.

    Raises:
        ConfigError: a stage is unknown.
    """
    known = tuple(stage.name for stage in STAGES)
    wanted = known if names is None else tuple(name.strip() for name in names.split(","))
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"--stages: unknown stage {name!r}{hint}; allowed: {', '.join(known)}")
    return tuple(stage for stage in STAGES if stage.name in wanted)
