"""Times the parts of a step with CUDA events, which are read after they complete. The host never waits.

Without a GPU the host's clock is used.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from instrument.monitor.loader import LoaderGauge
from instrument.monitor.metrics import LoaderCounts, StepFigures
from instrument.streams import Event

PARTS = ("forward", "backward", "optimizer", "copy")
_AFTER_THE_LAST = -1


class _Pair(NamedTuple):
    """The name of a part and the events around it. Borrowed events stay with their owner and are not reused."""

    name: str
    start: Event
    end: Event
    borrowed: bool = False


@dataclass(slots=True)
class _OpenStep:
    """A step in progress: the events around its parts, and values from the host."""

    step: int
    begun: Event
    pairs: list[_Pair] = field(default_factory=list)
    loaded_ns: int = 0
    waited_ns: int = 0
    samples: int | None = None
    tokens: int | None = None
    counts: LoaderCounts = field(default_factory=LoaderCounts)


class StepMeter:
    """Times steps. Every method is cheap and none makes the host wait.

    Args:
        device: the device that runs the steps.
        gauge: counts what the loader does; None for no figures of it.
    """

    def __init__(self, device: torch.device | str, gauge: LoaderGauge | None = None) -> None:
        self._device, self.gauge = device, gauge or LoaderGauge()
        self._free: list[Event] = []
        self._steps: deque[_OpenStep] = deque()
        self._early: list[_Pair] = []
        self._early_ns = 0

    def begin(self, step: int) -> None:
        """Start a step on the current stream and end the previous one."""
        begun = self._event().record()
        self._steps.append(_OpenStep(step, begun, self._early, self._early_ns, counts=self.gauge.counts))
        self._early, self._early_ns = [], 0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a block of "forward", "backward", "optimizer" or "copy" on the current stream, unless it fails."""
        start = self._event().record()
        yield
        self._pairs().append(_Pair(name, start, self._event().record()))

    def copying(self, nbytes: int) -> AbstractContextManager[None]:
        """Return a context manager that times a copy of `nbytes` bytes on the current stream."""
        return self.part("copy") if nbytes else nullcontext()

    def copied(self, start: Event, end: Event, _nbytes: int) -> None:
        """Record the events around a copy on another stream. The events stay with their owner."""
        self._pairs().append(_Pair("copy", start, end, borrowed=True))

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Time a block in which the host waits for the loader."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            spent = time.perf_counter_ns() - start
            if self._steps:
                self._steps[-1].loaded_ns += spent
            else:
                self._early_ns += spent

    def amount(self, samples: int, tokens: int | None) -> None:
        """Set the number of samples and tokens of the current step."""
        self._steps[-1].samples, self._steps[-1].tokens = samples, tokens

    def waited(self, nanoseconds: int) -> None:
        """Add time in which the host waited for the GPU to the current step."""
        if self._steps:
            self._steps[-1].waited_ns += nanoseconds

    def end(self) -> None:
        """End the last step of the run. Further calls do nothing."""
        if self._steps and self._steps[-1].step != _AFTER_THE_LAST:
            self.begin(_AFTER_THE_LAST)

    def finished(self) -> list[StepFigures]:
        """Return the completed steps, in order: their work is done and the next step has started."""
        completed = []
        while len(self._steps) > 1 and self._steps[1].begun.query() and _is_done(self._steps[0]):
            step = self._steps.popleft()
            if step.step != _AFTER_THE_LAST:
                completed.append(self._figures(step, self._steps[0]))
            self._free.append(step.begun)
        return completed

    def _figures(self, step: _OpenStep, following: _OpenStep) -> StepFigures:
        spent: dict[str, float] = {}
        for name, start, end, borrowed in step.pairs:
            spent[name] = spent.get(name, 0.0) + end.milliseconds_since(start)
            self._free += () if borrowed else (start, end)
        return StepFigures(
            step=step.step,
            forward_ms=spent.get("forward"),
            backward_ms=spent.get("backward"),
            optimizer_ms=spent.get("optimizer"),
            copy_ms=spent.get("copy"),
            data_load_ms=step.loaded_ns / 1e6,
            sync_ms=step.waited_ns / 1e6,
            step_ms=following.begun.milliseconds_since(step.begun),
            samples=step.samples,
            tokens=step.tokens,
            loader=following.counts.plus(step.counts, -1),
        )

    def _event(self) -> Event:
        try:
            return self._free.pop()  # checking first would race with other threads
        except IndexError:
            return Event(self._device, timing=True)

    def _pairs(self) -> list[_Pair]:
        """Return the pairs of the current step, or those before the first step."""
        return self._steps[-1].pairs if self._steps else self._early


def _is_done(step: _OpenStep) -> bool:
    return all(pair.end.query() for pair in step.pairs)
