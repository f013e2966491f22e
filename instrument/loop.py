"""The one loop that every strategy runs under: its waits are the sync policy's, and nothing else waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch

from instrument.capture import CaptureRange
from instrument.checkpoint import Checkpoints, Parts
from instrument.config import Config
from instrument.data import Position
from instrument.interrupts import Interrupts
from instrument.journal import Journal
from instrument.learner import Batch
from instrument.meter import StepMeter
from instrument.names import CHECKPOINT, iteration
from instrument.ranges import annotate, phase
from instrument.strategies import Strategy
from instrument.sync import SyncPolicy
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
    ) -> None:
        self.config, self.strategy, self.span, self.journal, self.meter = config, strategy, span, journal, meter
        self.done = span.first
        self._batches, self._checkpoints, self._parts, self._stop = batches, checkpoints, parts or {}, stop
        device = strategy.device
        self._policy = SyncPolicy.of(config.training.sync, config.training.strategy)
        self._late = self._policy.losses(device)
        self._capture = CaptureRange(config.capture, device)
        self._saved: int | None = None

    def run(self, stopping: Interrupts) -> None:
        """Run the span. What was measured and learnt is kept, however it ends."""
        try:
            for step in range(self.span.first, self.span.stop):
                self._capture.before(step)
                with annotate(iteration(step)):
                    self._step(step)
                if self._stop(stopping.asked):
                    break
            self._read_all()
        except BaseException as error:
            self._emergency(error)
            raise
        finally:
            self._capture.close()
        self._keep_last(stopping)

    def _step(self, step: int) -> None:
        self.meter.begin(step)
        batches = [next(self._batches) for _ in range(self.config.training.accumulation)]
        self.meter.amount(*_amount(batches))
        self._late.put(step, self.strategy.step(batches))
        self.done = step + 1
        arrived = self._policy.after(step, self._late)
        self.journal.take(arrived, self.meter.finished())
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
        self.journal.take(arrived, self.meter.finished())

    def _save(self) -> None:
        assert self._checkpoints is not None
        self.journal.take(self._late.wait(), self.meter.finished())
        with _CHECKPOINT:
            self._checkpoints.save(self.done, self._parts, loss=self.journal.recent_loss(), extra=self._extra())
        self._saved = self.done

    def _keep_last(self, stopping: Interrupts) -> None:
        if self._checkpoints is None or self._saved == self.done:
            return
        if stopping.received is not None:
            with _CHECKPOINT:
                self._checkpoints.emergency(self.done, self._parts, stopping.received.name, extra=self._extra())
        else:
            self._save()

    def _emergency(self, error: BaseException) -> None:
        """Keep what there is of a run that fails: losses that arrived, and a checkpoint of the last whole step."""
        try:
            self._read_all()
        except Exception:  # a GPU that failed gives no more losses, and the first error is the one to see
            with suppress(Exception):
                self.journal.take(self._late.ready(), ())
        if self._checkpoints is not None:
            with _CHECKPOINT:
                self._checkpoints.emergency(self.done, self._parts, error, extra=self._extra())

    def _extra(self) -> dict[str, object]:
        consumed = (self.done - self.span.first) * self.config.training.accumulation
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
