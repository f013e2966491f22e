"""The one loop that every strategy runs under: its waits are the sync policy's, and nothing else waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch

from instrument.checkpoint.folder import Checkpoints, Parts
from instrument.config.schema import Config
from instrument.data.order import Position
from instrument.losses import Losses
from instrument.monitor.journal import Journal
from instrument.monitor.meter import StepMeter
from instrument.ranges import CHECKPOINT, annotate, iteration_name, phase
from instrument.strategies.base import Strategy
from instrument.sync import SyncPolicy
from instrument.trainer.capture import CaptureRange
from instrument.trainer.finite import NEVER, FiniteLosses
from instrument.trainer.interrupts import Interrupts
from instrument.trainer.learner import Batch
from instrument.trees import tensors

_CHECKPOINT = phase(CHECKPOINT)


@dataclass(frozen=True, slots=True)
class Span:
    """Which steps are run, and where the data is then.

    Attributes:
        first: the first step, counted from 0.
        stop: the first step that is not run.
        position: of the first step's first batch.
        per_epoch: batches per epoch.
    """

    first: int
    stop: int
    position: Position
    per_epoch: int


class Loop:
    """Trains from the first step of a span to its end, or until asked to stop.

    Args:
        config: the run's.
        strategy: how a step runs.
        batches: device batches, from the span's position on.
        span: which steps.
        journal: told losses and times as they arrive.
        meter: the strategy's.
        checkpoints: where the run is kept; None for nowhere.
        parts: what is kept.
        stop: whether to stop after this step, given whether this process was asked to: for all ranks alike.
        smallest: the smallest value of all ranks.

    Attributes:
        done: steps done.
        finite: which of their losses were.
        failure: why the run stopped before its end, one line; None where it did not fail.
    """

    def __init__(
        self,
        config: Config,
        strategy: Strategy,
        batches: Iterator[Batch],
        span: Span,
        journal: Journal,
        meter: StepMeter,
        *,
        checkpoints: Checkpoints | None = None,
        parts: Parts | None = None,
        stop: Callable[[bool], bool] = bool,
        smallest: Callable[[int], int] = int,
    ) -> None:
        self.config, self.strategy, self.span, self.journal, self.meter = config, strategy, span, journal, meter
        self.done = span.first
        self.finite = FiniteLosses(span.first)
        self.failure: str | None = None
        self._batches, self._checkpoints, self._parts = batches, checkpoints, parts or {}
        self._stop, self._smallest = stop, smallest
        device = strategy.device
        self._policy = SyncPolicy.from_text(config.training.sync, strategy.sync_interval)
        self._late = self._policy.losses(device)
        self._capture = CaptureRange(config.capture, device)
        self._saved: int | None = None
        self._unproven: int | None = None

    def run(self, stopping: Interrupts) -> None:
        """Run the span. What was measured and learnt is kept, however it ends."""
        try:
            for step in range(self.span.first, self.span.stop):
                self._capture.before(step)
                with annotate(iteration_name(step)):
                    self._step(step)
                if self._stop(stopping.asked or self._fails()):
                    break
            self._read_all()
        except BaseException as error:
            self._emergency(error)
            raise
        finally:
            self._capture.close()
        first_bad = self._agreed_first_bad()
        if first_bad == NEVER:
            self._keep_last(stopping)
        else:
            self.failure = self._fail(first_bad)

    def _step(self, step: int) -> None:
        self.meter.begin(step)
        batches = [next(self._batches) for _ in range(self.config.training.accumulation)]
        self.meter.amount(*_amount(batches))
        loss = self.strategy.step(batches)
        self._late.put(step, self.strategy.learner.judged(loss))
        self.done = step + 1
        self._take(self._policy.after(step, self._late))
        self._now_and_then(step)

    def _now_and_then(self, step: int) -> None:
        training, every = self.config.training, self.config.checkpoint.every
        if training.empty_cache and (step + 1) % training.empty_cache == 0 and self.strategy.device.type == "cuda":
            torch.cuda.empty_cache()
        if self._checkpoints is not None and every and (step + 1) % every == 0:
            self._save()

    def _read_all(self) -> None:
        """Read the losses that are still on their way, and the last step's times."""
        self.meter.end()
        arrived = self._late.wait()
        if self.strategy.device.type == "cuda":
            torch.cuda.current_stream(self.strategy.device).synchronize()
        self._take(arrived)

    def _take(self, arrived: Losses) -> None:
        """Take losses that have arrived; one that is finite proves the checkpoint that its step began with."""
        self.journal.take(arrived, self.meter.finished())
        self.finite.take(arrived)
        for step, loss in arrived:
            if step == self._unproven and math.isfinite(loss):
                self._confirm()

    def _confirm(self) -> None:
        if self._checkpoints is not None and self._unproven is not None:
            self._checkpoints.confirm(self._unproven)
        self._unproven = None

    def _fails(self) -> bool:
        return self.config.training.on_nan == "stop" and self.finite.bad > 0

    def _agreed_first_bad(self) -> int:
        """Return the first step that is not finite on any rank and stops the run, NEVER where there is none."""
        if self.config.training.on_nan != "stop":
            return NEVER
        return self._smallest(self.finite.first_bad)

    def _save(self) -> None:
        assert self._checkpoints is not None
        self._take(self._late.wait())
        if self._agreed_first_bad() != NEVER:
            return  # the run is about to stop
        with _CHECKPOINT:
            self._checkpoints.save(
                self.done, self._parts, loss=self.journal.recent_loss(), extra=self._extra(self.done), provisional=True
            )
        self._saved = self._unproven = self.done

    def _fail(self, first_bad: int) -> str:
        """Keep the last state whose loss was finite; return why the run stops.

        Updates that are not finite were left out, so the state is still there: only the learning rate went on.
        """
        good = self._smallest(self.finite.good)
        problem = f"the loss or gradient of step {first_bad} is not finite"
        remedy = "use a smaller --learning-rate, or --on-nan skip"
        if self._checkpoints is None:
            return f"{problem}; nothing is kept without --checkpoint-folder; {remedy}"
        if good == self.span.first:
            return f"{problem}, and no step before it in this run; {remedy}"
        self.strategy.learner.schedule.go_back(self.done - good)
        if self._saved != good:
            with _CHECKPOINT:
                self._checkpoints.emergency(good, self._parts, problem, extra=self._extra(good))
        return f"{problem}; the state after step {good - 1} is in {self._checkpoints.folder}; {remedy}"

    def _keep_last(self, stopping: Interrupts) -> None:
        if self._checkpoints is None:
            return
        if self._saved != self.done and stopping.received is not None:
            with _CHECKPOINT:
                self._checkpoints.emergency(
                    self.done, self._parts, stopping.received.name, extra=self._extra(self.done)
                )
            return
        if self._saved != self.done:
            self._save()
        if self._unproven == self.finite.good == self.done and self._has_finite_weights():
            self._confirm()  # no loss will follow

    def _has_finite_weights(self) -> bool:
        """Return whether the weights on this rank are finite; waits for the GPU."""
        weights = (getattr(weight, "_local_tensor", weight) for weight in self.strategy.learner.parameters)
        return all(bool(torch.isfinite(weight).all()) for weight in weights)

    def _emergency(self, error: BaseException) -> None:
        """Keep what there is of a run that fails: losses that arrived, and a checkpoint of the last whole step."""
        try:
            self._read_all()
        except Exception:  # a GPU that failed gives no more losses, and the first error is the one to see
            with suppress(Exception):
                self.journal.take(self._late.ready(), ())
        if self._checkpoints is not None:
            with _CHECKPOINT:
                self._checkpoints.emergency(self.done, self._parts, error, extra=self._extra(self.done))

    def _extra(self, done: int) -> dict[str, object]:
        consumed = (done - self.span.first) * self.config.training.accumulation
        position = self.span.position.after(consumed, self.span.per_epoch)
        return {"position": [position.epoch, position.batch]}


def _amount(batches: list[Batch]) -> tuple[int, int | None]:
    """Return samples, and positions where a sample is a sequence."""
    samples, tokens = 0, 0
    for batch in batches:
        first = next(tensors(batch))
        samples += first.shape[0]
        sequence = batch.get("tokens", batch.get("targets"))
        tokens += 0 if sequence is None else sequence.numel()
    return samples, tokens or None
