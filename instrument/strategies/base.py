"""The base class of strategies: how host batches reach the device, and how a step runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from instrument.config.schema import Config
from instrument.monitor.meter import StepMeter
from instrument.prefetch import PrefetchLoader
from instrument.ranges import COPY, DATA_LOAD, phase
from instrument.streams import Stream
from instrument.trainer.learner import Batch, Learner, Weight
from instrument.trainer.recover import MicroBatches, shares
from instrument.trees import map_tensors, nbytes

Reduced = Callable[[bool], AbstractContextManager[Any]]

_DATA_LOAD, _COPY = phase(DATA_LOAD), phase(COPY)


class Strategy:
    """Copies and computes on the current stream, one after the other.

    Subclasses override `batches` and `step`; `STRATEGIES` declares their capabilities. All strategies run in the same
    loop with the same sync policy. With the same seed, all give the same losses and weights.

    Args:
        config: the configuration of the run.
        learner: the model, its optimizer and its schedule.
        meter: measures the parts of a step.
        micro: splits batches that do not fit into memory; None to not split.
        reduced: returns a context for the passes of a micro-batch. Its argument is whether the micro-batch is the last
            one of the step, after which ranks reduce gradients.
    """

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
        """The device that batches are copied to."""
        return self.learner.device

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches on the device."""
        for batch in self.timed(iter(loader), _DATA_LOAD):
            with _COPY, self.meter.copying(nbytes(batch)):
                copied = map_tensors(batch, self._copy)
            yield copied

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Train on the micro-batches of one optimizer step; return their mean loss, on the device."""
        weights = shares(batches, self.learner.count)
        if self.micro is not None:
            losses = self.micro.steps(batches, self._forward_backward, self.learner.clear)
        else:
            losses = []
            for batch, weight in zip(batches, weights, strict=True):
                with self.reduced(len(losses) == len(batches) - 1):
                    losses.append(self._forward_backward(batch, weight))
        self._update()
        return mean(losses, weights)

    def close(self) -> None:
        """End the strategy's threads."""

    def timed(self, source: Iterator[Batch], range_: AbstractContextManager[Any] | None = None) -> Iterator[Batch]:
        """Yield the batches of `source`, and measure the time to load each one, inside `range_` if it is given."""
        while True:
            with range_ or nullcontext(), self.meter.loading():
                batch = next(source, None)
            if batch is None:
                return
            yield batch

    def _copy(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

    def _forward_backward(self, batch: Batch, weight: Weight) -> Tensor:
        with self.meter.part("forward"):
            loss = self.learner.forward(batch)
        with self.meter.part("backward"):
            self.learner.backward(loss, weight)
        return loss.detach()

    def _update(self) -> None:
        with self.meter.part("optimizer"):
            self.learner.update()


class Serial(Strategy):
    """The baseline: pageable memory, one stream, and a wait after each step with `--sync every` or `auto`.

    host     load | copy (blocked) | launch forward, backward, optimizer | wait
    stream          ---- copy ----   ------ forward --- backward --- optimizer
    """


class Pinned(Strategy):
    """Copies from pinned memory on one stream. They do not block the host, but run before the kernels of the step.

    host     load, copy, launch forward, backward, optimizer; load, copy, launch ...   (ahead of the GPU)
    stream   copy N | forward N | backward N | optimizer N | copy N+1 | ...
    """

    def _copy(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


class Prefetch(Strategy):
    r"""Pins and copies batches ahead on a background thread and a copy stream; compute waits for an event.

    copy      | copy N+1 |              | copy N+2 |
                        \ ready                    \ ready
    compute   forward N, backward N, optimizer N | forward N+1, ...
    """

    _loader: PrefetchLoader | None = None

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches on the device, copied ahead of their use."""
        return self._copied_ahead(loader, self.config.data.depth)

    def close(self) -> None:
        """End the copy thread."""
        if self._loader is not None:
            self._loader.close()

    def _copied_ahead(
        self, loader: Iterable[Batch], depth: int, streams: Stream | Sequence[Stream] | None = None
    ) -> Iterator[Batch]:
        budget, on_copy = self.config.data.pinned_budget, self.meter.copied
        self._loader = PrefetchLoader(
            loader, self.device, depth=depth, budget_bytes=budget, stream=streams, on_copy=on_copy
        )
        return self.timed(iter(self._loader))


def mean(losses: Sequence[Tensor], weights: Sequence[Weight]) -> Tensor:
    """Return the mean of scalar losses with these weights, without making the host wait."""
    if len(losses) == 1:
        return losses[0]
    if len(set(weights)) == 1:  # equal numbers; tensors differ
        return torch.stack(list(losses)).mean()
    return torch.stack([loss * weight for loss, weight in zip(losses, weights, strict=True)]).sum()
