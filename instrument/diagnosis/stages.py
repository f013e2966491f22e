"""The stages of a diagnosis, in order: each adds something to the ones before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from instrument.config.schema import Config
from instrument.config.settings import did_you_mean
from instrument.config.strategies import STRATEGIES
from instrument.config.training import Precision
from instrument.diagnosis.context import StageContext, StageRun
from instrument.errors import ConfigError, InstrumentError
from instrument.monitor.meter import StepMeter
from instrument.monitor.metrics import StepFigures
from instrument.strategies import strategy_class
from instrument.sync import SyncPolicy


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a run that is measured separately.

    Attributes:
        name: name in `--stages`, in JSON and in the diagnosis.
        title: returns the title for a configuration, at most 28 characters.
        open: builds the stage; raises InstrumentError if it cannot be measured.
        loop: the loop in the part of the model that the stage leaves out, as text; "" for none.
    """

    name: str
    title: Callable[[Config], str]
    open: Callable[[StageContext], StageRun]
    loop: str = ""


class InferenceStage(StageRun):
    """The forward passes of a step, without autograd, on batches that are on the device."""

    launches_only = True

    def __init__(self, context: StageContext) -> None:
        self._learner = context.learner("fp32")
        self._learner.model.eval()
        self._batches = context.on_device()

    def iterate(self) -> None:
        """Run the forward passes."""
        with torch.no_grad():
            for batch in self._batches:
                self._learner.forward(batch)


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
        return {
            "data_load_ms": fmean(loading) if loading else None,
            "copy_ms": fmean(copying) if copying else None,
        }

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


def _open_pipeline(context: StageContext) -> StageRun:
    return PipelineStage(context, context.config)


def _mixed_title(config: Config) -> str:
    precision = config.training.precision
    return f"training, {'mixed precision' if precision == 'fp32' else precision}"


def _pipeline_title(config: Config) -> str:
    auto = STRATEGIES[config.training.strategy].sync_interval
    every = SyncPolicy.from_text(config.training.sync, auto).every
    return f"{config.training.strategy}, {'sync event' if every is None else f'sync {every}'}"


STAGES: tuple[Stage, ...] = (
    Stage("inference", lambda _config: "inference, fp32", InferenceStage),
    Stage("training", lambda _config: "training, fp32", _open_training),
    Stage("mixed", _mixed_title, _open_mixed),
    Stage("loader", lambda _config: "loader alone", LoaderStage),
    Stage("plain", lambda _config: "loader + copy + model", _open_plain),
    Stage("pipeline", _pipeline_title, _open_pipeline),
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
