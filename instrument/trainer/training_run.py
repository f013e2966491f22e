"""Build a run from its configuration (model, data, strategy, loop, monitoring, checkpoints) and train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from instrument.checkpoint.folder import Checkpoints, Resumed, remove_empty
from instrument.checkpoint.resume import Parts, load, saved_position
from instrument.checkpoint.states import random_state_kept, seed_generators
from instrument.config.schema import Config
from instrument.config.strategies import STRATEGIES
from instrument.data import Loader, Position
from instrument.distributed.checkpoints import checkpoint_parts, open_checkpoints
from instrument.distributed.world import World, min_over_ranks, process_group, select_device
from instrument.distributed.wrap import gradient_reduction, wrap
from instrument.errors import ConfigError, InstrumentError, LogFunction
from instrument.modules import annotate_module
from instrument.monitor import Sinks, open_sinks
from instrument.monitor.journal import Journal
from instrument.monitor.loader import LoaderGauge
from instrument.monitor.meter import StepMeter
from instrument.own import StreamLoader, report_equal_batches
from instrument.ranges import annotate_collections
from instrument.strategies import strategy_class
from instrument.strategies.base import Strategy
from instrument.trainer.batch_size import with_batch_size
from instrument.trainer.capture import is_profiled, missing_capture_reason, missing_ranges_reason
from instrument.trainer.hooks import Hooks
from instrument.trainer.interrupts import Interrupts
from instrument.trainer.learner import Batch
from instrument.trainer.loop import StepRange, TrainingLoop
from instrument.trainer.messages import Outcome, start_lines
from instrument.trainer.optimizer import MakeOptimizer
from instrument.trainer.recover import MicroBatches, retry_loader
from instrument.trainer.validation import Report, Validation
from instrument.workload import Workload, named_after, open_workload, own_workload
from traceview.model.peaks import peak_flops


def train(
    config: Config,
    log: LogFunction = print,
    *,
    model: nn.Module | None = None,
    data: Any = None,
    loss: Any = None,
    validation: Any = None,
    optimizer: MakeOptimizer | None = None,
    hooks: Hooks | None = None,
) -> Outcome:
    """Train as configured, in a single process or as one of several ranks.

        train(Config(Training(steps=500)), model=Net(), data=dataset, loss=nn.CrossEntropyLoss())

    Args:
        config: the configuration of the run.
        log: receives one line for each event the user should know, such as a resume or a retry.
        model: a model; it is copied. None for the one that the configuration names.
        data: with `model`: a data set, a DataLoader or another iterable of batches.
        loss: with `model`: see `instrument.own`; None if the model returns its loss.
        validation: with `model`: data for `training.validate_every`.
        optimizer: see `instrument.trainer.optimizer.build_optimizer`; None for the one that the configuration names.
        hooks: what the run calls; None for those that the configuration names.

    Raises:
        InstrumentError: an error the user can correct, in one line.
    """
    if model is not None:
        config = named_after(config, model, data, validation)
    with process_group(config.training.device) as world:
        device = select_device(config, world)
        config = with_device(config, device, world)
        log = log if world.first else _discard
        if is_profiled() and (problem := missing_ranges_reason()):
            log(problem)
        if problem := missing_capture_reason(config.capture, device):
            log(problem)
        made = open_workload(config) if model is None else own_workload(config, model, data, loss, validation)
        made.make_optimizer, made.hooks = optimizer or made.make_optimizer, hooks or made.hooks
        workload = with_batch_size(made, device, world, log, pinned=uses_pinned_batches(config, device))
        return _TrainingRun(workload, world, device, log).run()


def with_device(config: Config, device: torch.device, world: World) -> Config:
    """Return the configuration with the selected device, and check what depends on it."""
    config = replace(config, training=replace(config.training, device=str(device)))
    strategy = config.training.strategy
    if world.size > 1 and not STRATEGIES[strategy].several_processes:
        raise ConfigError(f"strategy {strategy} supports a single process; with torchrun use --strategy prefetch")
    if device.type == "cpu" and config.training.precision == "fp16":
        raise ConfigError("precision fp16 needs a GPU; on the CPU use --precision bf16 or fp32")
    return config


def uses_pinned_batches(config: Config, device: torch.device) -> bool:
    """Return whether the loader pins its batches. Strategies that copy ahead pin other batches themselves."""
    pins = STRATEGIES[config.training.strategy].pins
    return device.type == "cuda" and (pins == "all" or (pins == "kept" and config.data.kept))


def inexact_resume_reason(workload: Workload) -> str | None:
    """Return in one line why a resumed run would train on other samples, and the flags with which it does not."""
    data, training = workload.config.data, workload.config.training
    ahead = training.device != "cpu" and STRATEGIES[training.strategy].copies_ahead
    if not (data.workers or ahead) or not workload.draws_random_numbers():
        return None
    processes = f"in {data.workers} loader process{'es' if data.workers > 1 else ''}"
    where = processes if data.workers else "while the model draws them too"
    flags = "--workers 0 (num_workers=0 of a DataLoader)" + (" with --strategy pinned" if ahead else "")
    return f"samples draw random numbers {where}, so a resumed run gets other ones; {flags} resumes bit for bit"


class _TrainingRun:
    """The components of a run on one rank."""

    def __init__(self, workload: Workload, world: World, device: torch.device, log: LogFunction) -> None:
        config = workload.config
        self.workload, self.config, self.world, self.device, self.log = workload, config, world, device, log
        # The first optimizer imports this for seconds. Import it early, so that a capture does not show the GPU idle.
        import_module("torch._dynamo")
        self._shortest: int | None = None  # batches in an epoch of the rank that has fewest
        self.gauge = LoaderGauge()
        self.loader = self._loader(Position())
        self._shortest = min_over_ranks(len(self.loader), world)
        self._shorten(self.loader)
        self.steps = _step_count(config, len(self.loader))
        seed_generators(config.training.seed)
        model = workload.build_model(device)
        if config.training.annotate_modules:
            annotate_module(model, depth=config.training.annotate_modules)
        wrapped = wrap(model, config.distributed, world, device)
        self.learner = workload.learner(wrapped, config.training, self.steps, device)
        reduced, meter = partial(gradient_reduction, self.learner.model), StepMeter(device, self.gauge)
        self.strategy: Strategy = strategy_class(config.training.strategy)(
            config, self.learner, meter, self._micro_batches(), reduced
        )

    def run(self) -> Outcome:
        """Train, and close everything that was opened. A folder that this run made and left empty is removed."""
        named = self.config.checkpoint.folder
        existed = named is not None and named.exists()
        checkpoints = open_checkpoints(self.config, self.world, self.log)
        try:
            return self._run(checkpoints)
        finally:
            if checkpoints is not None and not existed and checkpoints.latest() is None:
                remove_empty(checkpoints.folder, around=named is None)

    def _run(self, checkpoints: Checkpoints | None) -> Outcome:
        parts = checkpoint_parts(self.learner, self.world, shared=not self.config.writes_shards)
        resumed = self._start(checkpoints, parts)
        span = self._span(resumed)
        with Interrupts() as stopping, annotate_collections(), self._sinks(resumed) as sinks:
            self._report_start(resumed)
            flops, name = self.workload.flops(), ""
            if self.device.type == "cuda":
                name = torch.cuda.get_device_name(self.device)
            peak = peak_flops(name, self.config.training.precision)
            journal = Journal(sinks, self.config.monitor.every, peak, flops, self.device, first=span.first)
            batches = self._batches(span.position)
            validation = None
            if self.config.training.validate_every:
                validation = Validation(self.workload, self.learner, self.world, self._validated(journal))
            loop = TrainingLoop(
                self.strategy, batches, span, journal, self.world,
                checkpoints=checkpoints, parts=parts, flops=flops, validation=validation,
                hooks=self.workload.hooks,
            )  # fmt: skip
            self._report_equal_batches()
            try:
                self.workload.hooks.start(self.learner.model, self.learner.optimizer)
                loop.run(stopping)
            finally:
                self.strategy.close()
                journal.finish()
                if checkpoints is not None:
                    checkpoints.close()
                self.workload.hooks.end(loop.done)
        skips = self.config.training.on_nan == "skip"
        if loop.failure is None and (problem := loop.finite.summary(loop.done - span.first, skips)):
            self.log(problem)
        losses, code = journal.losses.tolist(), stopping.exit_code or int(loop.failure is not None)
        newest = None if checkpoints is None else checkpoints.latest()
        return Outcome(
            span.first, loop.done, self.world.rank, losses, code, journal.last_steps(), loop.failure, self.steps, newest
        )

    def _validated(self, journal: Journal) -> Report:
        def report(done: int, figures: Mapping[str, float | None]) -> None:
            journal.add_validation(done, figures)
            self.workload.hooks.after_validation(done, figures)

        return report

    def _report_start(self, resumed: Resumed | None) -> None:
        for line in start_lines(self.config, self.world):
            self.log(line)
        if self.world.first and (problem := inexact_resume_reason(self.workload)):
            self.log(problem)
        if resumed is not None:
            for line in (f"resuming at step {resumed.step} from {resumed.path}", *resumed.changed):
                self.log(line)

    def _report_equal_batches(self) -> None:
        """Say so if all ranks read the same batches of a loader of the user's own."""
        if self.world.size == 1 or not isinstance(self.loader, StreamLoader):
            return
        config = replace(self.config, data=self.config.data.on_demand())
        with random_state_kept(self.device):
            batch = next(iter(self.workload.build_loader(config, rank=self.world.rank, world=self.world.size)))
        report_equal_batches(batch, self.world, self.log)

    def _loader(self, start: Position) -> Loader | StreamLoader:
        pinned = uses_pinned_batches(self.config, self.device)
        loader = self.workload.build_loader(
            rank=self.world.rank, world=self.world.size, start=start, endless=True, pinned=pinned, gauge=self.gauge
        )
        self._shorten(loader)
        return loader

    def _shorten(self, loader: Loader | StreamLoader) -> None:
        """Let all ranks end their epochs together: a position must mean the same on each."""
        if self._shortest is not None and isinstance(loader, StreamLoader):
            loader.shorten(self._shortest)

    def _batches(self, position: Position) -> Iterator[Batch]:
        def open_at(count: int) -> Iterator[Batch]:
            self.strategy.close()
            if count:
                self.loader = self._loader(position.after(count, len(self.loader)))
            else:
                self.loader.seek(position)
            return self.strategy.batches(self.loader)

        return retry_loader(open_at, retries=self.config.training.retries, log=self.log)

    def _micro_batches(self) -> MicroBatches | None:
        """Return the splitter of batches that do not fit into memory; None if a step cannot be repeated."""
        training = self.config.training
        if self.world.size > 1 or not STRATEGIES[training.strategy].splits_batches:
            return None
        return MicroBatches(self.config.data.batch, retries=training.retries, count=self.workload.count, log=self.log)

    def _start(self, checkpoints: Checkpoints | None, parts: Parts) -> Resumed | None:
        resume = self.config.checkpoint.resume
        if checkpoints is not None:
            return checkpoints.start(resume, parts, self.device)
        return None if resume is None else load(resume, parts, self.device, config=self.config, log=self.log)

    def _span(self, resumed: Resumed | None) -> StepRange:
        per_epoch = len(self.loader)
        samples = self.workload.config.data.batch * self.world.size
        if resumed is None:
            return StepRange(0, self.steps, Position(), per_epoch, samples)
        position, saved = saved_position(resumed.path, resumed.extra), resumed.extra.get("samples", samples)
        if saved != samples:
            position = self._converted(position, saved, samples)
        return StepRange(resumed.step, max(self.steps, resumed.step), position, per_epoch, samples)

    def _converted(self, position: Position, saved: int, samples: int) -> Position:
        """Return a position of batches of `saved` samples in batches of `samples`."""
        done = position.batch * saved
        if isinstance(self.loader, StreamLoader):
            raise InstrumentError(
                "a DataLoader or a stream resumes with the batch size and the number of GPUs of the checkpoint only"
            )
        if done % samples:
            raise InstrumentError(
                f"{done} samples of the epoch are done, and no batch of {samples} samples on all GPUs begins after "
                "them; use the batch size and the number of GPUs of the checkpoint"
            )
        return Position(position.epoch, min(done // samples, len(self.loader))).after(0, len(self.loader))

    def _sinks(self, resumed: Resumed | None) -> Sinks:
        if not self.world.first:
            return Sinks([])
        return open_sinks(self.config, resumed_at=None if resumed is None else resumed.step, total=self.steps)


def _step_count(config: Config, per_epoch: int) -> int:
    training = config.training
    if training.epochs is None:
        return training.steps
    steps = training.epochs * per_epoch // training.accumulation
    if steps < 1:
        raise ConfigError(
            f"{training.epochs} epochs of {per_epoch} batches are less than one step with accumulation "
            f"{training.accumulation}; use a smaller --accumulation or more --epochs"
        )
    return steps


def _discard(_text: str) -> None:
    """Ignore a message that rank 0 prints."""
