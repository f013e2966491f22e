"""Four streams: the transfer, the next transfer, and two that compute micro-batches in turn.

    transfer       | copy 0 |          | copy 2 |
    next transfer           | copy 1 |          | copy 3 |
    even                    | forward 0 | backward 0 |  | forward 2 | backward 2 |
    odd                                 | forward 1 | backward 1 |  | forward 3 | ...

    copy k ready --> forward k --> backward k --> sum of gradients 0..k --> optimizer --> forward of the next step

PyTorch runs each backward operation on the stream of its forward operation, so a "backward stream" stays
empty; what can overlap is one micro-batch's backward and the next one's forward, which share no result but the
weights. Both are launched at once, too: a second thread calls backward, whose kernels autograd launches
without the interpreter, while the first launches the next forward. Weights change between steps, so this needs
`--accumulation` of 2 or more; with 1 the strategy is prefetch with two copy streams.

Each compute stream has parameters of its own, over the same memory: where one parameter serves two streams,
autograd makes them wait for each other. Gradients are added up in the order of the micro-batches, so losses
and weights are those of every strategy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from instrument.prefetch import PrefetchLoader
from instrument.strategies.base import Strategy, mean
from instrument.streams import Event, Stream, Streams, hand_over
from instrument.trainer.learner import Batch


class Staged(Strategy):
    """Overlaps a micro-batch's backward with the next one's forward, on the GPU and on the host."""

    pins = "kept"
    copies_ahead = True
    blocks_host = True  # a step joins the thread that calls backward
    several_processes = False
    splits_batches = False

    _loader: PrefetchLoader | None = None
    _streams: Streams | None = None
    _backward: ThreadPoolExecutor | None = None
    _twin: nn.Module | None = None

    @property
    def twin(self) -> nn.Module:
        """The model once more: parameters of its own over the same memory."""
        self._twin = self._twin or twin_of(self.learner.model, compiled=self.config.model.compile)
        return self._twin

    @property
    def streams(self) -> Streams:
        """The compute streams; their copies have two of their own."""
        self._streams = self._streams or Streams(self.device, even=0, odd=0)
        return self._streams

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches on the device, two of them copied ahead at least."""
        data = self.config.data
        copies = Streams(self.device, transfer=-1, next_transfer=-1)
        self._loader = PrefetchLoader(
            loader,
            self.device,
            depth=max(data.depth, 2),
            budget_bytes=data.pinned_budget,
            stream=tuple(copies),
            on_copy=self.meter.copied,
        )
        return self.timed(iter(self._loader))

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Train on the micro-batches of one optimizer step; return their mean loss."""
        if len(batches) == 1:
            return super().step(batches)
        current = self.streams.current
        begun = current.record()
        results: list[Future[tuple[list[Tensor], Event]]] = []
        losses = []
        for index, batch in enumerate(batches):
            stream = self.streams["odd" if index % 2 else "even"]
            model = self.twin if index % 2 else self.learner.model
            hand_over(batch, ready=begun, to=stream)
            with stream, self.meter.part("forward"):
                loss = self.learner.forward(batch, model)
            losses.append(loss.detach())
            results.append(self._thread().submit(self._gradients, loss, 1 / len(batches), model, stream))
        gradients = self._sum(results, current)
        for loss in losses:
            hand_over(loss, ready=results[-1].result()[1], to=current)
        with self.meter.part("optimizer"):
            self.learner.update(gradients)
        return mean(losses)

    def close(self) -> None:
        """End the threads that copy and that call backward."""
        if self._loader is not None:
            self._loader.close()
        if self._backward is not None:
            self._backward.shutdown()

    def _thread(self) -> ThreadPoolExecutor:
        # One thread: autograd launches one backward at a time on a GPU anyway, in the order of the calls.
        self._backward = self._backward or ThreadPoolExecutor(1, thread_name_prefix="backward")
        return self._backward

    def _gradients(
        self, loss: Tensor, weight: float, model: nn.Module, stream: Stream
    ) -> tuple[list[Tensor], Event]:
        parameters = [one for one in model.parameters() if one.requires_grad]
        # A thread starts on the first GPU, which is another rank's.
        with torch.cuda.device(self.device) if stream.cuda is not None else nullcontext(), stream:
            with self.meter.part("backward"):
                gradients = self.learner.gradients(loss, weight, parameters)
            return gradients, stream.record()

    def _sum(self, results: Sequence[Future[tuple[list[Tensor], Event]]], current: Stream) -> list[Tensor]:
        """Add up gradients in the order of their micro-batches, on the current stream."""
        total: list[Tensor] = []
        for result in results:
            gradients, done = result.result()
            hand_over(gradients, ready=done, to=current)
            if total:
                torch._foreach_add_(total, gradients)
            else:
                total = gradients
        return total


def twin_of(model: nn.Module, *, compiled: bool = False) -> nn.Module:
    """Return a copy of a module whose parameters and buffers share the memory of its own."""
    shared: dict[int, object] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
    twin = copy.deepcopy(model, shared)
    if compiled:
        twin.compile()
    return twin
