"""When the host waits for the GPU, and how losses are read late without losing any."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from instrument.errors import ConfigError, InstrumentError
from instrument.ranges import SYNCHRONIZE, phase
from instrument.streams import Event

AHEAD = 32  # steps that the host may be ahead under `event`: their batches and gradients take memory
_WAIT = phase(SYNCHRONIZE)

Losses = list[tuple[int, float]]


class LateLosses:
    """Losses on their way to the host: each is copied to pinned memory by the GPU and read when that is done.

    Args:
        device: where the losses are made.
        capacity: the most that are on their way at once.
    """

    def __init__(self, device: torch.device, capacity: int) -> None:
        self.capacity = capacity
        self._device = device
        # A room for each type of number: a float32 loss after a bfloat16 one keeps its digits.
        self._slots: dict[torch.dtype, Tensor] = {}
        self._events: list[Event] = []
        self._pending: deque[tuple[int, int, Tensor]] = deque()
        self._put = 0

    def __len__(self) -> int:
        """How many have not been read."""
        return len(self._pending)

    def put(self, step: int, loss: Tensor) -> None:
        """Send a loss of one element on its way; the host does not wait.

        Raises ValueError where `capacity` are on their way, InstrumentError where the loss is not one number.
        """
        if len(self) == self.capacity:
            raise ValueError(f"{self.capacity} losses are on their way already: read some first")
        if loss.numel() != 1:
            raise InstrumentError(
                f"the loss of step {step} has shape {tuple(loss.shape)} and must be one number: return its mean()"
            )
        slot = self._put % self.capacity
        if slot == len(self._events):
            self._events.append(Event(self._device))
        room = self._room(loss.dtype)[slot]
        room.copy_(loss.detach().reshape(()), non_blocking=True)
        self._events[slot].record()
        self._pending.append((step, slot, room))
        self._put += 1

    def ready(self) -> Losses:
        """Return (step, loss) of those that have arrived, in the order of their steps, without waiting."""
        arrived = []
        while self._pending and self._events[self._pending[0][1]].query():
            arrived.append(self._read())
        return arrived

    def wait(self, leave: int = 0) -> Losses:
        """Wait until at most `leave` are on their way; return (step, loss) of all that have arrived."""
        if len(self) > leave:
            with _WAIT:
                self._events[self._pending[-1 - leave][1]].synchronize()
        return self.ready()

    def _read(self) -> tuple[int, float]:
        step, _slot, room = self._pending.popleft()
        return step, float(room)

    def _room(self, dtype: torch.dtype) -> Tensor:
        if dtype not in self._slots:
            pinned = self._device.type == "cuda"
            self._slots[dtype] = torch.empty(self.capacity, dtype=dtype, pin_memory=pinned)
        return self._slots[dtype]


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """When the host waits: after each `every` steps, or, where that is None, only when it is too far ahead.

    Each wait is a range named "sync". Nothing else in a step waits.

    Raises:
        ConfigError: `every` is less than one step.
    """

    every: int | None

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ConfigError(f"sync {self.every}: the host cannot wait each {self.every} steps: use 1 or more")

    @classmethod
    def from_text(cls, text: str, auto: int = 10) -> SyncPolicy:
        """Read "auto", "every", a number of steps, or "event"; "auto" waits after each `auto` steps.

        Raises:
            ConfigError: it is none of these.
        """
        if text == "auto":
            return cls(auto)
        if not text.isdecimal() and text not in ("every", "event"):
            raise ConfigError(f"sync {text!r} is unknown: use auto, every, event or a number of steps")
        return cls(None if text == "event" else 1 if text == "every" else int(text))

    def losses(self, device: torch.device) -> LateLosses:
        """Return room for the losses that can be on their way under this policy."""
        return LateLosses(device, max(AHEAD, self.every or 0) + 1)

    def after(self, step: int, losses: LateLosses) -> Losses:
        """Wait after a step (counted from 0) where the policy says so; return the losses that have arrived."""
        if self.every is None:
            return losses.wait(leave=AHEAD)
        return losses.wait() if (step + 1) % self.every == 0 else []
