"""A run, put together from its configuration: model, data, strategy, loop, and what watches and keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch

from instrument import distributed
from instrument.checkpoint.folder import Checkpoints, Resumed
from instrument.checkpoint.resume import saved_position
from instrument.checkpoint.states import seed_generators
from instrument.config.schema import Config
from instrument.data.datasets import Loader, build_loader
from instrument.data.order import Position
from instrument.distributed import Calibration, World
from instrument.errors import ConfigError
from instrument.logging import LogFunction
from instrument.models import build
from instrument.models.batches import IGNORED
from instrument.modules import annotate_module
from instrument.monitor import Sinks, open_sinks
from instrument.monitor.enrich import Known
from instrument.monitor.flops import flops_per_sample
from instrument.monitor.journal import Journal
from instrument.monitor.meter import StepMeter
from instrument.monitor.metrics import Figures
from instrument.monitor.peaks import peak_flops
from instrument.strategies import strategy_class
from instrument.strategies.base import Strategy
from instrument.trainer.capture import is_profiled, unseen_ranges
from instrument.trainer.interrupts import Interrupts
from instrument.trainer.learner import Batch, Learner
from instrument.trainer.loop import Loop, Span
from instrument.trainer.recover import MicroBatches, reopening
from instrument.trees import map_tensors


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        first: its first step.
        done: steps done, those of the runs that it goes on from among them.
        rank: which one this is, 0 where there is one.
        losses: of the steps from `first` on.
        exit_code: 0; 1 after a loss that was not finite; or 128 and the signal that stopped it.
        figures: of the last window of steps (`instrument.monitor.metrics.figures`).
        failure: why the run stopped before its end, one line; None where it did not fail.
    """

    first: int
    done: int
    rank: int
    losses: list[float]
    exit_code: int
    figures: Figures
    failure: str | None = None


def train(config: Config, say: LogFunction) -> Outcome:
    """Run a configuration to its end, alone or as one rank of several.

    Args:
        config: the run's.
        say: told in one line what a user should know: what goes on from where, what was tried again.

    Raises:
        InstrumentError: one line: something that the user can put right.
    """
    with distributed.joined(config.training.device) as world:
        device = distributed.device_of(config, world)
        config = resolved(config, device, world)
        say = say if world.first else _silent
        if is_profiled() and (problem := unseen_ranges()):
            say(problem)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return _Run(config, world, device, say).run()


def resolved(config: Config, device: torch.device, world: World) -> Config:
    """Return the configuration with the device that was found, so that what depends on it is checked again."""
    config = replace(config, training=replace(config.training, device=str(device)))
    strategy = config.training.strategy
    if world.size > 1 and not strategy_class(strategy).several_processes:
        raise ConfigError(f"strategy {strategy} runs in one process: under torchrun use strategy prefetch")
    if device.type == "cpu" and config.training.precision == "fp16":
        raise ConfigError("precision fp16 needs a GPU: on the CPU use precision bf16 or fp32")
    return config


def pins_batches(config: Config, device: torch.device) -> bool:
    """Return whether the loader's batches are in pinned memory; a prefetcher pins the batches that are not kept."""
    pins = strategy_class(config.training.strategy).pins
    return device.type == "cuda" and (pins == "all" or (pins == "kept" and config.data.kept))


class _Run:
    """The parts of one run on one rank."""

    def __init__(self, config: Config, world: World, device: torch.device, say: LogFunction) -> None:
        self.config, self.world, self.device, self.say = config, world, device, say
        # torch.optim imports this when an optimizer is made: in a capture the GPU would be idle for seconds.
        import_module("torch._dynamo")
        self.loader = self._loader(Position())
        self.steps = _steps(config, len(self.loader))
        seed_generators(config.training.seed)
        model = build(config.model, config.data, device, precision=config.training.precision)
        if config.training.annotate_modules:
            annotate_module(model, depth=config.training.annotate_modules)
        wrapped = distributed.wrap(model, config.distributed, world, device)
        self.learner = Learner(wrapped, config.training, self.steps, device)
        self.meter = StepMeter(device)
        self.strategy: Strategy = strategy_class(config.training.strategy)(
            config, self.learner, self.meter, self._micro_batches(), self._reduced
        )

    def run(self) -> Outcome:
        """Train, and close all that was opened."""
        parts = distributed.parts_of(self.learner, self.world)
        checkpoints = self._checkpoints()
        resumed = self._start(checkpoints, parts)
        span = self._span(resumed)
        if resumed is not None:
            for line in (f"goes on at step {resumed.step} from {resumed.path}", *resumed.changed):
                self.say(line)
        with Interrupts() as stopping, self._sinks(resumed) as sinks, Known.of(self.config, self.device) as known:
            journal = self._journal(sinks, known, span)
            batches = self._batches(span.position)
            loop = Loop(
                self.config, self.strategy, batches, span, journal, self.meter,
                checkpoints=checkpoints, parts=parts, stop=distributed.Stop(self.world),
                smallest=partial(distributed.smallest, world=self.world),
            )  # fmt: skip
            calibration = self._calibration()
            try:
                loop.run(stopping)
            finally:
                self.strategy.close()
                journal.finish()
        self._report(journal, calibration)
        skips = self.config.training.on_nan == "skip"
        if loop.failure is None and (problem := loop.finite.summary(loop.done - span.first, skips)):
            self.say(problem)
        losses, code = journal.losses.tolist(), stopping.exit_code or int(loop.failure is not None)
        return Outcome(span.first, loop.done, self.world.rank, losses, code, journal.latest, loop.failure)

    def _calibration(self) -> Calibration | None:
        """Measure, where there are several ranks, one's own passes and the reductions alone."""
        if self.world.size == 1:
            return None
        config = replace(self.config, data=self.config.data.on_demand())
        batch = next(iter(build_loader(config, rank=self.world.rank, world=self.world.size)))
        batch = map_tensors(batch, lambda tensor: tensor.to(self.device))
        return distributed.calibrate(self.learner, batch, self.config, self.world)

    def _report(self, journal: Journal, calibration: Calibration | None) -> None:
        """Say whether the ranks together were faster, and which knob was too small."""
        if self.world.size == 1 or not journal.recent:
            return
        together = distributed.share(list(journal.recent), calibration, self.config, self.world)
        for line in () if together is None else distributed.lines(together):
            self.say(line)

    def _loader(self, start: Position) -> Loader:
        return build_loader(
            self.config,
            rank=self.world.rank,
            world=self.world.size,
            start=start,
            endless=True,
            pinned=pins_batches(self.config, self.device),
        )

    def _batches(self, position: Position) -> Iterator[Batch]:
        def opened(given: int) -> Iterator[Batch]:
            self.strategy.close()
            if given:
                self.loader = self._loader(position.after(given, len(self.loader)))
            else:
                self.loader.seek(position)
            return self.strategy.batches(self.loader)

        return reopening(opened, retries=self.config.training.retries, say=self.say)

    def _micro_batches(self) -> MicroBatches | None:
        """Return what splits a batch that does not fit; several ranks and recorded steps cannot repeat one."""
        training = self.config.training
        if self.world.size > 1 or not strategy_class(training.strategy).splits_batches:
            return None
        return MicroBatches(
            self.config.data.batch,
            retries=training.retries,
            count=_terms if self.config.model.name == "mlm" else None,
            say=self.say,
        )

    def _reduced(self, last: bool) -> AbstractContextManager[Any]:
        return distributed.reduced(self.learner.model, last or not self.config.distributed.no_sync)

    def _checkpoints(self) -> Checkpoints | None:
        kept = self.config.checkpoint
        if kept.folder is None:
            return None
        return distributed.shared_checkpoints(self.config, self.world, self.say)

    def _start(self, checkpoints: Checkpoints | None, parts: distributed.Parts) -> Resumed | None:
        resume = self.config.checkpoint.resume
        if checkpoints is not None:
            return checkpoints.start(resume, parts, self.device)
        return None if resume is None else distributed.load(resume, parts, self.device, self.config)

    def _span(self, resumed: Resumed | None) -> Span:
        per_epoch = len(self.loader)
        if resumed is None:
            return Span(0, self.steps, Position(), per_epoch)
        position = saved_position(resumed.path, resumed.extra)
        return Span(resumed.step, max(self.steps, resumed.step), position, per_epoch)

    def _sinks(self, resumed: Resumed | None) -> Sinks:
        if not self.world.first:
            return Sinks([])
        return open_sinks(self.config, resumed_at=None if resumed is None else resumed.step)

    def _journal(self, sinks: Sinks, known: Known, span: Span) -> Journal:
        training = self.config.training
        known.flops = flops_per_sample(self.config) * self.config.data.batch * training.accumulation
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        epoch = max(span.per_epoch // training.accumulation, 1)
        peak = peak_flops(name, training.precision)
        return Journal(sinks, self.config.monitor.every, epoch, peak, known, first=span.first)


def _steps(config: Config, per_epoch: int) -> int:
    training = config.training
    if training.epochs is None:
        return training.steps
    steps = training.epochs * per_epoch // training.accumulation
    if steps < 1:
        raise ConfigError(
            f"accumulation {training.accumulation}: {training.epochs} epochs have {per_epoch} batches each, "
            "which is not one step: accumulate less, or train for more epochs"
        )
    return steps


def _terms(batch: Batch) -> torch.Tensor:
    return (batch["labels"] != IGNORED).sum()


def _silent(_text: str) -> None:
    """Say nothing: another rank says it."""
