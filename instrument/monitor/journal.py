"""Combines losses and times, which arrive late, into one record per step, and writes windows of steps to sinks."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from instrument.memory import resident_bytes
from instrument.monitor import Sinks
from instrument.monitor.metrics import LOSS, Figures, StepFigures, figures

MAX_RECENT_STEPS = 1000


@dataclass(slots=True)
class Journal:
    """Combines the loss and the times of each step, in the order of the steps.

    Attributes:
        sinks: destinations of the metrics.
        every: steps per record.
        peak: peak FLOP/s of the GPU, for MFU; None if unknown.
        flops: floating-point operations of one step; None if they are not known.
        device: device of the run, whose memory is in each record.
        first: first step of this run.
        losses: all losses since the first step.
        latest: metrics of the last window.
        recent: the last MAX_RECENT_STEPS steps.
    """

    sinks: Sinks
    every: int
    peak: float | None
    flops: int | None
    device: torch.device
    first: int = 0
    losses: array[float] = field(default_factory=lambda: array("d"))
    latest: Figures = field(default_factory=dict)
    recent: deque[StepFigures] = field(default_factory=lambda: deque(maxlen=MAX_RECENT_STEPS))
    _metrics: deque[Mapping[str, float]] = field(default_factory=deque)
    _window: list[StepFigures] = field(default_factory=list)
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
            memory = memory_figures(self.device) if (step.step + 1) % self.every == 0 else {}
            self._add_step(replace(step, loss=loss, metrics=metrics, flops=self.flops, **memory))

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
        """Write the incomplete last window."""
        if self._window:
            self._write_window()

    def _add_step(self, step: StepFigures) -> None:
        self.recent.append(step)
        self._window.append(step)
        if (step.step + 1) % self.every == 0:
            self._write_window()

    def _write_window(self) -> None:
        self.latest = figures(self._window, peak=self.peak)
        self.sinks.write(self._window[-1].step, self.latest)
        self._window = []


def memory_figures(device: torch.device) -> dict[str, Any]:
    """Return the memory in use on the host and, for a GPU, there and in torch's pool of pinned memory.

    The keys are attributes of `StepFigures`.
    """
    values = {"host_rss_bytes": resident_bytes()}
    if device.type != "cuda":
        return values
    values |= {
        "memory_allocated_bytes": torch.cuda.memory_allocated(device),
        "memory_peak_bytes": torch.cuda.max_memory_allocated(device),
        "memory_reserved_bytes": torch.cuda.memory_reserved(device),
    }
    if hasattr(torch.cuda, "host_memory_stats"):  # since torch 2.8
        values["pinned_bytes"] = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    return values
