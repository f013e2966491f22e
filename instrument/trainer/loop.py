"""The training loop of all strategies. The host waits for the GPU only where the sync policy asks for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from instrument.checkpoint.folder import Checkpoints, Parts
from instrument.config.strategies import STRATEGIES
from instrument.data import Position
from instrument.distributed.world import StopVote, World, any_rank, min_over_ranks
from instrument.monitor.journal import Journal
from instrument.monitor.metrics import LOSS
from instrument.ranges import CHECKPOINT, annotate, flops_name, iteration_name, mark, phase
from instrument.strategies.base import Strategy
from instrument.sync import Losses, SyncPolicy
from instrument.trainer.capture import open_capture
from instrument.trainer.hooks import Hooks
from instrument.trainer.interrupts import Interrupts
from instrument.trainer.learner import Batch
from instrument.trainer.validation import Validation
from instrument.trees import tensors

_CHECKPOINT = phase(CHECKPOINT)
NEVER = 1 << 62  # a step that no run reaches


@dataclass(slots=True)
class FiniteLosses:
    """Which of the losses that have been read were finite.

    Losses are read some steps late. Until then it is unknown whether the state of the run is good.

    Attributes:
        good: the step after the last finite loss; the run's first step if there is none.
        first_bad: the first step whose loss or gradient was not finite; NEVER if there is none.
        bad: number of such steps.
    """

    good: int
    first_bad: int = NEVER
    bad: int = 0

    def add(self, losses: Losses) -> None:
        """Add (step, loss) in the order of the steps."""
        for step, loss in losses:
            if math.isfinite(loss):
                self.good = step + 1
            else:
                self.first_bad = min(self.first_bad, step)
                self.bad += 1

    def summary(self, steps: int, skipped: bool) -> str | None:
        """Return one line about the non-finite steps of a run of `steps` steps; None if there is none."""
        if not self.bad:
            return None
        effect = "their updates were skipped" if skipped else "their updates were applied"
        return f"non-finite loss or gradient in {self.bad} of {steps} steps (first: step {self.first_bad}); {effect}"


@dataclass(frozen=True, slots=True)
class StepRange:
    """The steps of a run and the position in the data at its start.

    Attributes:
        first: the first step, counted from 0.
        stop: the step after the last one.
        position: position of the first batch of the first step.
        per_epoch: batches per epoch.
        samples: samples that all ranks take in a batch of each.
    """

    first: int
    stop: int
    position: Position
    per_epoch: int
    samples: int


class TrainingLoop:
    """Trains through a range of steps, or until it is requested to stop.

    Args:
        strategy: computes a step of its configuration.
        batches: device batches, starting at the position of `span`.
        span: the steps to run.
        journal: receives losses and times as they arrive.
        world: the ranks, which stop together.
        checkpoints: writes the checkpoints; None for none.
        parts: what a checkpoint contains.
        flops: floating-point operations of a step, which every step writes into a capture; None if unknown.
        validation: measures the loss that `best` and plateau compare; None to compare the training loss.
        hooks: what the run calls.

    Attributes:
        done: number of steps done.
        finite: which losses were finite.
        failure: why the run stopped before its end, in one line; None if it did not fail.
    """

    def __init__(
        self,
        strategy: Strategy,
        batches: Iterator[Batch],
        span: StepRange,
        journal: Journal,
        world: World,
        *,
        checkpoints: Checkpoints | None,
        parts: Parts,
        flops: int | None,
        validation: Validation | None,
        hooks: Hooks | None = None,
    ) -> None:
        self.config, self.strategy, self.span, self.journal = strategy.config, strategy, span, journal
        self.done = span.first
        self.finite = FiniteLosses(span.first)
        self.failure: str | None = None
        self._batches, self._checkpoints, self._parts = batches, checkpoints, parts
        self._validation, self._world, self._vote = validation, world, StopVote(world)
        self._flops_mark = None if flops is None else flops_name(flops)
        training, device = self.config.training, strategy.device
        policy = SyncPolicy.from_text(training.sync, STRATEGIES[training.strategy].sync_interval)
        self._late = policy.metrics(device)
        self._capture = open_capture(self.config.capture, device, world.rank)
        self._hooks = hooks or Hooks()
        self._saved: int | None = None

    def run(self, stopping: Interrupts) -> None:
        """Run all steps. Losses, times and a checkpoint are kept however the run ends."""
        try:
            for step in range(self.span.first, self.span.stop):
                self._capture.before(step)
                with annotate(iteration_name(step)):
                    if self._flops_mark is not None:
                        mark(self._flops_mark)
                    for name in self.strategy.meter.gauge.marks():
                        mark(name)
                    self._run_step(step)
                if self._vote(stopping.requested or self._must_fail()):
                    break
            self._read_all()
        except BaseException as error:
            self._save_after_error(error)
            raise
        finally:
            self._capture.close()
        first_bad = self._first_bad_of_ranks()
        if first_bad == NEVER:
            self._save_last_state(stopping)
        else:
            self.failure = self._save_good_state(first_bad)

    def _run_step(self, step: int) -> None:
        self.strategy.meter.begin(step)
        self._hooks.before_step(step)
        batches = [next(self._batches) for _ in range(self.config.training.accumulation)]
        self.strategy.meter.amount(*count_samples(batches))
        loss = self.strategy.step(batches)
        self.done = step + 1
        waited = self._late.waited_ns
        learner = self.strategy.learner
        arrived = self._late.log(step, {**learner.metrics, LOSS: learner.loss_or_nan(loss)})
        self.strategy.meter.waited(self._late.waited_ns - waited)
        self._add_losses(arrived)
        self._hooks.after_step(step, loss)
        self._run_periodic_tasks(step)

    def _run_periodic_tasks(self, step: int) -> None:
        training, every = self.config.training, self.config.checkpoint.every
        if training.empty_cache and (step + 1) % training.empty_cache == 0 and self.strategy.device.type == "cuda":
            torch.cuda.empty_cache()
        if self._validation is not None:
            self._validation.after(self.done)
        if self._checkpoints is not None and every and (step + 1) % every == 0:
            self._save()

    def _read_all(self) -> None:
        """Read the losses that are still pending and the times of the last step."""
        self.strategy.meter.end()
        arrived = self._late.wait()
        if self.strategy.device.type == "cuda":
            torch.cuda.current_stream(self.strategy.device).synchronize()
        self._add_losses(arrived)

    def _add_losses(self, arrived: Sequence[tuple[int, dict[str, float]]]) -> None:
        """Record figures that have arrived."""
        self.journal.add(arrived, self.strategy.meter.finished())
        self.finite.add([(step, figures[LOSS]) for step, figures in arrived])

    def _must_fail(self) -> bool:
        return self.config.training.on_nan == "stop" and self.finite.bad > 0

    def _first_bad_of_ranks(self) -> int:
        """Return the first step of any rank that is not finite and stops the run; NEVER if there is none."""
        if self.config.training.on_nan != "stop":
            return NEVER
        return min_over_ranks(self.finite.first_bad, self._world)

    def _save(self) -> None:
        assert self._checkpoints is not None
        self._add_losses(self._late.wait())
        if self._first_bad_of_ranks() != NEVER or any_rank(not self._has_finite_weights(), self._world):
            return  # the run stops after this step, or it continues and must not replace checkpoints that are good
        with _CHECKPOINT:
            self._checkpoints.save(
                self.done,
                self._parts,
                loss=self._validation.loss(self.done) if self._validation else self.journal.recent_loss(),
                extra=self._position_entry(self.done),
            )
        self._saved = self.done

    def _save_good_state(self, first_bad: int) -> str:
        """Save the last state with a finite loss; return why the run stops.

        Non-finite updates were skipped, so this state is still present. Only the learning rate has advanced.
        """
        good = min_over_ranks(self.finite.good, self._world)
        problem = f"the loss or gradient of step {first_bad} is not finite"
        remedy = "use a smaller --learning-rate or --on-nan skip"
        if self._checkpoints is None:
            return f"{problem}; no checkpoint was written, because no folder for it can be made; {remedy}"
        if good == self.span.first:
            return f"{problem}, and this run has no earlier step to save; {remedy}"
        self.strategy.learner.schedule.rewind(self.done - good)
        if self._saved != good:
            with _CHECKPOINT:
                self._checkpoints.emergency(good, self._parts, problem, extra=self._position_entry(good))
        return f"{problem}; the state after step {good - 1} is saved in {self._checkpoints.folder}; {remedy}"

    def _save_last_state(self, stopping: Interrupts) -> None:
        if self._checkpoints is None or self._saved == self.done:
            return
        if stopping.received is not None:
            with _CHECKPOINT:
                self._checkpoints.emergency(
                    self.done, self._parts, stopping.received.name, extra=self._position_entry(self.done)
                )
        elif self.config.checkpoint.folder is not None or self.config.data.path is not None:
            self._save()

    def _has_finite_weights(self) -> bool:
        """Return whether all weights on this rank are finite. Waits for the GPU."""
        weights = (getattr(weight, "_local_tensor", weight) for weight in self.strategy.learner.parameters)
        return all(bool(torch.isfinite(weight).all()) for weight in weights)

    def _save_after_error(self, error: BaseException) -> None:
        """Keep the losses that have arrived and write an emergency checkpoint of the last complete step."""
        try:
            self._read_all()
        except Exception:  # after a GPU error no more losses arrive; report the first error
            with suppress(Exception):
                self.journal.add(self._late.completed(), ())
        if self._checkpoints is not None and self.done > self.span.first:
            with _CHECKPOINT:
                self._checkpoints.emergency(self.done, self._parts, error, extra=self._position_entry(self.done))

    def _position_entry(self, done: int) -> dict[str, object]:
        consumed = (done - self.span.first) * self.config.training.accumulation
        position = self.span.position.after(consumed, self.span.per_epoch)
        return {"position": [position.epoch, position.batch], "samples": self.span.samples}


def count_samples(batches: Sequence[Batch]) -> tuple[int, int | None]:
    """Return the number of samples and, for sequences (integers of two dimensions), of positions."""
    samples, tokens = 0, 0
    for batch in batches:
        parts = [tensor for tensor in tensors(batch) if tensor.dim()]
        samples += len(parts[0]) if parts else 1
        sequence = next((part for part in parts if part.dim() == 2 and not part.is_floating_point()), None)
        tokens += 0 if sequence is None else sequence.numel()
    return samples, tokens or None
