"""How long each part of a step took on the GPU, by events that are read when they are done: nothing waits.

Without a GPU the same, by the host's clock.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from instrument.monitor.metrics import StepFigures
from instrument.streams import Event

PARTS = ("forward", "backward", "optimizer", "copy")
_AFTER_THE_LAST = -1


class _Pair(NamedTuple):
    """A part's name and the events around it; `lent` ones stay their maker's, who may wait for them still."""

    name: str
    start: Event
    end: Event
    lent: bool = False


@dataclass(slots=True)
class _Step:
    """One step under way: the events around its parts, and what the host knows."""

    step: int
    begun: Event
    pairs: list[_Pair] = field(default_factory=list)
    loaded_ns: int = 0
    samples: int | None = None
    tokens: int | None = None
    not_measured: dict[str, str] = field(default_factory=dict)


class StepMeter:
    """Times steps; every method is cheap, and none makes the host wait.

    Args:
        device: whose streams the steps run on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[Event] = []
        self._steps: deque[_Step] = deque()
        self._early: list[_Pair] = []
        self._early_ns = 0

    def begin(self, step: int) -> None:
        """Start a step on the current stream; the step before it ends here."""
        self._steps.append(_Step(step, self._event().record(), self._early, self._early_ns))
        self._early, self._early_ns = [], 0

    def part(self, name: str) -> _Part:
        """Return a context that times "forward", "backward" or "optimizer" on the current stream."""
        return _Part(self, name)

    def copying(self, nbytes: int) -> _Part:
        """Return a context that times a copy of so many bytes on the current stream."""
        return _Part(self, "copy") if nbytes else _Part(self, "")

    def copied(self, start: Event, end: Event, _nbytes: int) -> None:
        """Take the events around a copy that ran on another stream; they are read and left as they are."""
        self._pairs().append(_Pair("copy", start, end, lent=True))

    def loading(self) -> _Loading:
        """Return a context that times how long the host waits for the loader."""
        return _Loading(self)

    def amount(self, samples: int, tokens: int | None) -> None:
        """Say what the step consists of."""
        self._steps[-1].samples, self._steps[-1].tokens = samples, tokens

    def cannot(self, reason: str, *names: str) -> None:
        """Say why parts of this step are not measured."""
        self._steps[-1].not_measured.update(dict.fromkeys((f"{name}_ms" for name in names), reason))

    def end(self) -> None:
        """End the last step, behind which no other begins; again does nothing."""
        if self._steps and self._steps[-1].step != _AFTER_THE_LAST:
            self.begin(_AFTER_THE_LAST)

    def finished(self) -> list[StepFigures]:
        """Return the steps whose work is done and whose successor began, in order."""
        found = []
        while len(self._steps) > 1 and self._steps[1].begun.query() and _done(self._steps[0]):
            step = self._steps.popleft()
            if step.step != _AFTER_THE_LAST:
                found.append(self._figures(step, self._steps[0].begun))
            self._free.append(step.begun)
        return found

    def _figures(self, step: _Step, next_begun: Event) -> StepFigures:
        spent: dict[str, float] = {}
        for name, start, end, lent in step.pairs:
            spent[name] = spent.get(name, 0.0) + end.milliseconds_since(start)
            self._free += () if lent else (start, end)
        return StepFigures(
            step=step.step,
            forward_ms=spent.get("forward"),
            backward_ms=spent.get("backward"),
            optimizer_ms=spent.get("optimizer"),
            copy_ms=spent.get("copy"),
            data_load_ms=step.loaded_ns / 1e6,
            step_ms=next_begun.milliseconds_since(step.begun),
            samples=step.samples,
            tokens=step.tokens,
            not_measured=step.not_measured,
        )

    def _event(self) -> Event:
        try:
            return self._free.pop()  # asking first whether there is one would let another thread take it
        except IndexError:
            return Event(self._device, timing=True)

    def _pairs(self) -> list[_Pair]:
        """Return where pairs go: the step under way, or what comes before the first."""
        return self._steps[-1].pairs if self._steps else self._early


class _Part:
    """Two events around what runs inside it."""

    __slots__ = ("_meter", "_name", "_start")

    def __init__(self, meter: StepMeter, name: str) -> None:
        self._meter, self._name = meter, name

    def __enter__(self) -> None:
        if self._name:
            self._start = self._meter._event().record()

    def __exit__(self, *raised: object) -> None:
        if self._name and raised[0] is None:
            self._meter._pairs().append(_Pair(self._name, self._start, self._meter._event().record()))


class _Loading:
    """The host's clock around what runs inside it."""

    __slots__ = ("_meter", "_start")

    def __init__(self, meter: StepMeter) -> None:
        self._meter = meter

    def __enter__(self) -> None:
        self._start = time.perf_counter_ns()

    def __exit__(self, *_raised: object) -> None:
        spent = time.perf_counter_ns() - self._start
        if self._meter._steps:
            self._meter._steps[-1].loaded_ns += spent
        else:
            self._meter._early_ns += spent


def _done(step: _Step) -> bool:
    return all(pair.end.query() for pair in step.pairs)
