"""What a strategy is: how host batches reach the device, and on which streams a step runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from instrument.config.schema import Config
from instrument.monitor.meter import StepMeter
from instrument.ranges import COPY, DATA_LOAD, phase
from instrument.trainer.learner import Batch, Learner
from instrument.trainer.recover import MicroBatches
from instrument.trees import map_tensors, nbytes

Reduced = Callable[[bool], AbstractContextManager[Any]]

_DATA_LOAD, _COPY = phase(DATA_LOAD), phase(COPY)


class Strategy:
    """The plain strategy: everything on the current stream, one thing after the other.

    Strategies differ in `batches` and `step` alone and compare under one loop and one sync policy. With one
    seed all give the same losses and end in the same weights.

    Args:
        config: the run's.
        learner: what is trained.
        meter: told when each part of a step begins and ends.
        micro: splits batches that do not fit; None for none.
        reduced: a context for a micro-batch's passes, told whether it is the step's last: where ranks reduce gradients.

    Attributes:
        pins: which host batches the loader makes in pinned memory: none, those kept for several steps, or all.
        copies_ahead: whether the next batch is loaded and copied while one computes.
        captures_step: whether a step is one CUDA graph.
        blocks_host: whether the host waits inside each step, whatever the sync policy.
        several_processes: whether it runs under torchrun with several processes.
        splits_batches: whether a batch that does not fit into memory can be run again in parts.
        sync_interval: how many steps the sync policy "auto" waits after.
    """

    pins: ClassVar[Literal["none", "kept", "all"]] = "none"
    copies_ahead: ClassVar[bool] = False
    captures_step: ClassVar[bool] = False
    blocks_host: ClassVar[bool] = False
    several_processes: ClassVar[bool] = True
    splits_batches: ClassVar[bool] = True
    sync_interval: ClassVar[int] = 10

    def __init__(
        self,
        config: Config,
        learner: Learner,
        meter: StepMeter,
        micro: MicroBatches | None = None,
        reduced: Reduced = nullcontext,
    ) -> None:
        self.config, self.learner, self.meter, self.micro, self.reduced = config, learner, meter, micro, reduced

    @property
    def device(self) -> torch.device:
        """Where the batches go."""
        return self.learner.device

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches on the device."""
        for batch in self.timed(iter(loader), _DATA_LOAD):
            with _COPY, self.meter.copying(nbytes(batch)):
                moved = map_tensors(batch, self._moved)
            yield moved

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Train on the micro-batches of one optimizer step; return their mean loss, on the device."""
        if self.micro is not None:
            losses = self.micro.steps(batches, self._forward_backward, self.learner.clear)
        else:
            losses = [self._one(batch, index, len(batches)) for index, batch in enumerate(batches)]
        with self.meter.part("optimizer"):
            self.learner.update()
        return mean(losses)

    def close(self) -> None:
        """End what runs beside the training."""

    def timed(self, source: Iterator[Batch], marked: AbstractContextManager[Any] | None = None) -> Iterator[Batch]:
        """Yield what a source yields, and tell the meter how long each took, inside the range `marked`."""
        while True:
            with marked or nullcontext(), self.meter.loading():
                batch = next(source, None)
            if batch is None:
                return
            yield batch

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

    def _one(self, batch: Batch, index: int, count: int) -> Tensor:
        with self.reduced(index == count - 1):
            return self._forward_backward(batch, 1 / count)

    def _forward_backward(self, batch: Batch, weight: float) -> Tensor:
        with self.meter.part("forward"):
            loss = self.learner.forward(batch)
        with self.meter.part("backward"):
            self.learner.backward(loss, weight)
        return loss.detach()


def mean(losses: Sequence[Tensor]) -> Tensor:
    """Return the mean of scalar losses, without waiting for any."""
    return losses[0] if len(losses) == 1 else torch.stack(list(losses)).mean()
