"""Combines losses and times, which arrive late, into one record per step, and writes windows and epochs to sinks."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from instrument.monitor import Sinks
from instrument.monitor.metrics import EPOCH, LOSS, Figures, StepFigures, figures, totals

MAX_RECENT_STEPS = 1000

Enrich = Callable[[StepFigures], StepFigures]


@dataclass(slots=True)
class Journal:
    """Combines the loss and the times of each step, in the order of the steps.

    Attributes:
        sinks: destinations of the metrics.
        every: steps per record.
        epoch: steps per epoch.
        peak: peak FLOP/s of the GPU, for MFU; None if unknown.
        enrich: adds FLOPs, memory and power to the record of a step.
        first: first step of this run.
        losses: all losses since the first step.
        latest: metrics of the last window.
        recent: the last MAX_RECENT_STEPS steps.
    """

    sinks: Sinks
    every: int
    epoch: int
    peak: float | None
    enrich: Enrich
    first: int = 0
    losses: array[float] = field(default_factory=lambda: array("d"))
    latest: Figures = field(default_factory=dict)
    recent: deque[StepFigures] = field(default_factory=lambda: deque(maxlen=MAX_RECENT_STEPS))
    _metrics: deque[Mapping[str, float]] = field(default_factory=deque)
    _window: list[StepFigures] = field(default_factory=list)
    _epoch: list[StepFigures] = field(default_factory=list)
    _waiting: list[StepFigures] = field(default_factory=list)

    def add(self, arrived: Sequence[tuple[int, Mapping[str, float]]], steps: Iterable[StepFigures]) -> None:
        """Add losses, with further figures, and times that have arrived; write the records that are now complete."""
        for _step, own in arrived:
            self.losses.append(own[LOSS])
            self._metrics.append({name: value for name, value in own.items() if name != LOSS})
        self._waiting += steps
        while self._waiting and self._waiting[0].step - self.first < len(self.losses):
            step = self._waiting.pop(0)
            loss, metrics = self.losses[step.step - self.first], self._metrics.popleft()
            self._add_step(self.enrich(replace(step, loss=loss, metrics=metrics)))

    def add_validation(self, done: int, figures: Mapping[str, float | None]) -> None:
        """Write the figures of a validation after `done` steps."""
        self.sinks.write(done - 1, dict(figures))

    def recent_loss(self) -> float | None:
        """Return the mean of the last `every` losses; None if there is none."""
        last = self.losses[-self.every :]
        return sum(last) / len(last) if last else None

    def last_steps(self) -> Figures:
        """Return the metrics of the last MAX_RECENT_STEPS steps."""
        return figures(self.recent, peak=self.peak)

    def finish(self) -> None:
        """Write the incomplete last window and epoch."""
        if self._window:
            self._write_window()
        if self._epoch:
            self._write_epoch()

    def _add_step(self, step: StepFigures) -> None:
        self.recent.append(step)
        self._window.append(step)
        self._epoch.append(step)
        if (step.step + 1) % self.every == 0:
            self._write_window()
        if (step.step + 1) % self.epoch == 0:
            self._write_epoch()

    def _write_window(self) -> None:
        self.latest = figures(self._window, peak=self.peak)
        self.sinks.write(self._window[-1].step, self.latest)
        self._window = []

    def _write_epoch(self) -> None:
        last = self._epoch[-1].step
        values = figures(self._epoch, peak=self.peak, scope=EPOCH) | totals(self._epoch)
        self.sinks.write(last, values | {"epoch": last // self.epoch})
        self._epoch = []
