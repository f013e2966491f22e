"""When the host waits for the GPU, and the losses and other figures that it reads when they have arrived."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from instrument.devices import usable_device
from instrument.errors import ConfigError, InstrumentError
from instrument.ranges import SYNCHRONIZE, phase
from instrument.streams import Event

MAX_STEPS_AHEAD = 32  # under the policy "event"; the batches and gradients of these steps take memory
Figures = TypeVar("Figures", float, dict[str, float])
Losses = list[tuple[int, float]]

_SYNC = phase(SYNCHRONIZE)


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """When the host waits for the GPU: after every N steps, or only when it is too far ahead.

        late = SyncPolicy(every=10).losses("cuda")
        for step in range(steps):
            for done, loss in late.log(step, train_step()):
                print(done, loss)

    Each wait is an NVTX range named "sync". Nothing else in a step has to wait.

    Attributes:
        every: wait after each `every` steps. None: wait only when the host is 32 steps (`MAX_STEPS_AHEAD`) ahead.

    Raises:
        ConfigError: `every` is less than 1.
    """

    every: int | None

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ConfigError(f"sync {self.every}: use 1 step or more between waits")

    @classmethod
    def from_text(cls, text: str, auto: int = 10) -> SyncPolicy:
        """Parse the setting `sync`: "auto", "every" (each step), a number of steps, or "event" (None).

        Args:
            text: the setting.
            auto: the number of steps that "auto" means.

        Raises:
            ConfigError: `text` is none of these.
        """
        if text == "auto":
            return cls(auto)
        if not text.isdecimal() and text not in ("every", "event"):
            raise ConfigError(f"sync {text!r} is unknown: use auto, every, event or a number of steps")
        return cls(None if text == "event" else 1 if text == "every" else int(text))

    def losses(self, device: torch.device | str) -> AsyncMetrics[float]:
        """Return a queue with room for the losses that can be on their way under this policy."""
        return AsyncMetrics(device, self._capacity, self)

    def metrics(self, device: torch.device | str) -> AsyncMetrics[dict[str, float]]:
        """Return such a queue for several figures a step, which it returns as dictionaries."""
        return AsyncMetrics(device, self._capacity, self)

    @property
    def _capacity(self) -> int:
        return max(MAX_STEPS_AHEAD, self.every or 0) + 1

    def after(self, step: int, losses: AsyncMetrics[Figures]) -> list[tuple[int, Figures]]:
        """Wait if this policy requires it after `step`, counted from 0; return (step, loss) of losses that arrived.

        With `every`, it waits when a multiple of `every` steps has ended since the oldest loss on its way. A loop can
        log any of its steps.
        """
        if self.every is None:
            return losses.wait(leave=MAX_STEPS_AHEAD)
        oldest = losses.oldest
        return losses.wait() if oldest is not None and (step + 1) // self.every != oldest // self.every else []


class AsyncMetrics(Generic[Figures]):
    """A queue of losses on their way from the device to the host, so that logging a loss does not block the host.

        late = SyncPolicy(every=10).losses("cuda")
        for step in range(steps):
            for done, loss in late.log(step, train_step()):
                print(done, loss)
        print(late.wait())

    A step may have several figures: `late.log(step, {"loss": loss, "accuracy": accuracy})` returns dictionaries with
    the same names. The GPU copies each figure to pinned memory. Figures keep their precision: each dtype has its own
    buffer.

    Args:
        device: the device of the losses.
        capacity: the maximum number of steps whose losses are on their way.
        policy: when `log` waits; without it, `log` never does.

    Attributes:
        waited_ns: time in which the host has waited in `wait`.
    """

    def __init__(self, device: torch.device | str, capacity: int, policy: SyncPolicy | None = None) -> None:
        self.capacity, self.policy = capacity, policy
        self._device = usable_device(device)
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self._events: list[Event] = []
        self._pending: deque[tuple[int, int, Any]] = deque()
        self._submitted = self.waited_ns = 0

    def __len__(self) -> int:
        """Return the number of steps whose losses have not been read."""
        return len(self._pending)

    @property
    def oldest(self) -> int | None:
        """The first step whose losses have not been read; None if all have."""
        return self._pending[0][0] if self._pending else None

    def log(self, step: int, figures: Tensor | Mapping[str, Tensor | float]) -> list[tuple[int, Figures]]:
        """Start the copy of a step's figures, wait if the policy requires it, and return those that have arrived.

        Raises:
            ValueError, InstrumentError: as `submit`.
        """
        self.submit(step, figures)
        return self.completed() if self.policy is None else self.policy.after(step, self)

    def submit(self, step: int, figures: Tensor | Mapping[str, Tensor | float]) -> None:
        """Start the copy of a loss, or of several figures, on the current stream; the host does not wait.

        Call it outside functions for torch.compile: inside one, it ends the compiled graph.

        Args:
            step: the step that they belong to.
            figures: a tensor with one element, or such tensors and numbers by name.

        Raises:
            ValueError: `capacity` losses are on their way.
            InstrumentError: a tensor has more or less than one element.
        """
        if len(self) == self.capacity:
            raise ValueError(f"{self.capacity} losses have not been read: call completed() or wait() first")
        named = figures if isinstance(figures, Mapping) else {"loss": figures}
        for name, value in named.items():
            if isinstance(value, Tensor) and value.numel() != 1:
                text = f"the {name} of step {step} has shape {tuple(value.shape)} and must be one number"
                raise InstrumentError(f"{text}: return its mean()")
        slot = self._submitted % self.capacity
        if slot == len(self._events):
            self._events.append(Event(self._device))
        copied = {name: self._copy(name, slot, value) for name, value in named.items()}
        self._events[slot].record()
        self._pending.append((step, slot, copied if isinstance(figures, Mapping) else copied["loss"]))
        self._submitted += 1

    def completed(self) -> list[tuple[int, Figures]]:
        """Return (step, figures) of the losses that have arrived, in the order of their steps, without waiting."""
        arrived = []
        while self._pending and self._events[self._pending[0][1]].query():
            step, _slot, copied = self._pending.popleft()
            arrived.append((step, _numbers(copied)))
        return arrived

    def wait(self, leave: int = 0) -> list[tuple[int, Figures]]:
        """Wait until at most `leave` losses are on their way; return (step, figures) of all that have arrived.

        The wait is an NVTX range named "sync".
        """
        if len(self) > leave:
            start = time.perf_counter_ns()
            with _SYNC:
                self._events[self._pending[-1 - leave][1]].synchronize()
            self.waited_ns += time.perf_counter_ns() - start
        return self.completed()

    def _copy(self, name: str, slot: int, value: Tensor | float) -> Tensor | float:
        """Start the copy of a tensor into its place for `slot`, and return the place; return a number unchanged."""
        if not isinstance(value, Tensor):
            return value
        key = (name, value.dtype)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(self.capacity, dtype=value.dtype, pin_memory=self._device.type == "cuda")
        return self._buffers[key][slot].copy_(value.detach().reshape(()), non_blocking=True)


def _numbers(copied: Any) -> Any:
    return {name: float(value) for name, value in copied.items()} if isinstance(copied, dict) else float(copied)
