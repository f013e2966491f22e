"""Losses that are copied to the host asynchronously and read when they have arrived."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from instrument.errors import InstrumentError
from instrument.ranges import SYNCHRONIZE, phase
from instrument.streams import Event

Losses = list[tuple[int, float]]

_SYNC = phase(SYNCHRONIZE)


class LateLosses:
    """A queue of losses on their way from the device to the host, so that logging a loss does not block the host.

        late = LateLosses(torch.device("cuda"), capacity=33)
        for step in range(steps):
            late.put(step, train_step())
            for done, loss in late.ready():
                print(done, loss)
        print(late.wait())

    The GPU copies each loss to pinned memory. Losses keep their precision: each dtype has its own buffer.

    Args:
        device: the device of the losses.
        capacity: the maximum number of losses on their way.
    """

    def __init__(self, device: torch.device, capacity: int) -> None:
        self.capacity = capacity
        self._device = device
        self._buffers: dict[torch.dtype, Tensor] = {}
        self._events: list[Event] = []
        self._pending: deque[tuple[int, int, Tensor]] = deque()
        self._put_count = 0

    def __len__(self) -> int:
        """Return the number of losses that have not been read."""
        return len(self._pending)

    def put(self, step: int, loss: Tensor) -> None:
        """Start the copy of a loss on the current stream; the host does not wait.

        Args:
            step: the step that the loss belongs to.
            loss: a tensor with one element, on `device`.

        Raises:
            ValueError: `capacity` losses are on their way.
            InstrumentError: the loss has more or less than one element.
        """
        if len(self) == self.capacity:
            raise ValueError(f"{self.capacity} losses have not been read: call ready() or wait() first")
        if loss.numel() != 1:
            raise InstrumentError(
                f"the loss of step {step} has shape {tuple(loss.shape)} and must be one number: return its mean()"
            )
        slot = self._put_count % self.capacity
        if slot == len(self._events):
            self._events.append(Event(self._device))
        element = self._buffer(loss.dtype)[slot]
        element.copy_(loss.detach().reshape(()), non_blocking=True)
        self._events[slot].record()
        self._pending.append((step, slot, element))
        self._put_count += 1

    def ready(self) -> Losses:
        """Return (step, loss) of the losses that have arrived, in the order of their steps, without waiting."""
        arrived = []
        while self._pending and self._events[self._pending[0][1]].query():
            step, _slot, element = self._pending.popleft()
            arrived.append((step, float(element)))
        return arrived

    def wait(self, leave: int = 0) -> Losses:
        """Wait until at most `leave` losses are on their way; return (step, loss) of all that have arrived.

        The wait is an NVTX range named "sync".
        """
        if len(self) > leave:
            with _SYNC:
                self._events[self._pending[-1 - leave][1]].synchronize()
        return self.ready()

    def _buffer(self, dtype: torch.dtype) -> Tensor:
        if dtype not in self._buffers:
            pinned = self._device.type == "cuda"
            self._buffers[dtype] = torch.empty(self.capacity, dtype=dtype, pin_memory=pinned)
        return self._buffers[dtype]
