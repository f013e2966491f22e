"""From losses and times that arrive late to records: one per step, a figure per window and per epoch to the sinks."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from instrument.monitor import Sinks
from instrument.monitor.metrics import EPOCH, Figures, StepFigures, figures, totals

RECENT = 1000

Known = Callable[[StepFigures], StepFigures]


@dataclass(slots=True)
class Journal:
    """Joins each step's loss and times in the order of the steps, whichever comes first.

    Attributes:
        sinks: where figures go.
        every: steps per record.
        epoch: steps per epoch.
        peak: FLOP/s that MFU is a fraction of; None where unknown.
        known: adds what the loop knows of a step: FLOPs, memory, power.
        first: the first step of this run.
        losses: every loss from there on.
        latest: figures of the last window.
        recent: the last RECENT steps.
    """

    sinks: Sinks
    every: int
    epoch: int
    peak: float | None
    known: Known
    first: int = 0
    losses: array[float] = field(default_factory=lambda: array("d"))
    latest: Figures = field(default_factory=dict)
    recent: deque[StepFigures] = field(default_factory=lambda: deque(maxlen=RECENT))
    _window: list[StepFigures] = field(default_factory=list)
    _epoch: list[StepFigures] = field(default_factory=list)
    _waiting: list[StepFigures] = field(default_factory=list)

    def take(self, losses: Sequence[tuple[int, float]], steps: Iterable[StepFigures]) -> None:
        """Take what has arrived; write the records that are complete with it."""
        self.losses.extend(loss for _, loss in losses)
        self._waiting += steps
        while self._waiting and self._waiting[0].step - self.first < len(self.losses):
            step = self._waiting.pop(0)
            self._add(self.known(replace(step, loss=self.losses[step.step - self.first])))

    def recent_loss(self) -> float | None:
        """Return the mean of the last `every` losses, None where there is none."""
        last = self.losses[-self.every :]
        return sum(last) / len(last) if last else None

    def finish(self) -> None:
        """Write what is left of a window and of an epoch."""
        if self._window:
            self._write_window()
        if self._epoch:
            self._write_epoch()

    def _add(self, step: StepFigures) -> None:
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
        found: Figures = figures(self._epoch, peak=self.peak, scope=EPOCH) | totals(self._epoch)
        self.sinks.write(last, found | {"epoch": last // self.epoch})
        self._epoch = []
