"""Four streams: two copy streams and two compute streams, which take micro-batches in turn.

    transfer       | copy 0 |          | copy 2 |
    next transfer           | copy 1 |          | copy 3 |
    even                    | forward 0 | backward 0 |  | forward 2 | backward 2 |
    odd                                 | forward 1 | backward 1 |  | forward 3 | ...

    copy k ready --> forward k --> backward k --> sum of gradients 0..k --> optimizer --> forward of the next step

PyTorch runs each backward operation on the stream of its forward operation, so a separate backward stream would stay
empty. The backward of a micro-batch and the forward of the next one can overlap, because they share only the weights.
They are also launched at the same time: a second thread calls backward, and autograd launches its kernels without the
interpreter lock, while the first thread launches the next forward. Weights change between steps, so this needs
`--accumulation` of 2 or more. With 1, the strategy is prefetch with two copy streams.

Each compute stream has its own parameters over the same memory. If two streams used the same parameter, autograd would
make them wait for each other. Buffers that a forward changes, and recomputation in the backward of a model of the
user's own, are refused. Gradients are summed in the order of the micro-batches, so losses and weights equal those
of the other strategies.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from instrument.config.schema import Config
from instrument.config.sections import Model
from instrument.config.settings import is_reference
from instrument.devices import current_device
from instrument.errors import ConfigError
from instrument.models import compile_model
from instrument.strategies.base import Prefetch, mean
from instrument.streams import Event, Stream, Streams, record_stream
from instrument.trainer.learner import Batch, Learner, Weight
from instrument.trainer.recover import shares


class Staged(Prefetch):
    """Overlaps the backward of a micro-batch with the forward of the next one, on the GPU and on the host."""

    def __init__(self, config: Config, learner: Learner, *about: Any, **options: Any) -> None:
        super().__init__(config, learner, *about, **options)
        if config.training.accumulation > 1 and (shared := _saved_buffers(learner.model)):
            raise ConfigError(
                f"strategy staged runs two forwards at once, and both would change {shared[0]}, a buffer of the model; "
                "use --strategy prefetch"
            )

    _streams: Streams | None = None
    _backward: ThreadPoolExecutor | None = None
    _twin: nn.Module | None = None
    _checked = False

    @property
    def twin(self) -> nn.Module:
        """A copy of the model with its own parameters over the same memory."""
        self._twin = self._twin or twin_of(self.learner.model, self.config.model)
        return self._twin

    @property
    def streams(self) -> Streams:
        """The two compute streams."""
        self._streams = self._streams or Streams(self.device, even=0, odd=0)
        return self._streams

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches on the device, at least two copied ahead."""
        copies = Streams(self.device, transfer=-1, next_transfer=-1)
        return self._copied_ahead(loader, max(self.config.data.depth, 2), tuple(copies))

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Train on the micro-batches of one optimizer step; return their mean loss."""
        if len(batches) == 1:
            return super().step(batches)
        if not self._checked and is_reference(self.config.model.name):
            self._checked = True
            with _without_recomputation():
                return self.step(batches)
        current, weights = self.streams.current, shares(batches, self.learner.count)
        started = current.record()
        results: list[Future[tuple[list[Tensor], Event]]] = []
        losses = []
        for index, batch in enumerate(batches):
            stream = self.streams["odd" if index % 2 else "even"]
            model = self.twin if index % 2 else self.learner.model
            record_stream(batch, ready=started, to=stream)
            with stream, self.meter.part("forward"):
                loss = self.learner.forward(batch, model)
            losses.append(loss.detach())
            results.append(self._backward_thread().submit(self._gradients, loss, weights[index], model, stream))
        gradients = self._sum_gradients(results, current)
        for loss in losses:
            record_stream(loss, ready=results[-1].result()[1], to=current)
        with self.meter.part("optimizer"):
            self.learner.update(gradients)
        return mean(losses, weights)

    def close(self) -> None:
        """End the copy thread and the backward thread."""
        super().close()
        if self._backward is not None:
            self._backward.shutdown()

    def _backward_thread(self) -> ThreadPoolExecutor:
        # One thread is enough: autograd runs one backward at a time per GPU, in the order of the calls.
        self._backward = self._backward or ThreadPoolExecutor(1, thread_name_prefix="backward")
        return self._backward

    def _gradients(self, loss: Tensor, weight: Weight, model: nn.Module, stream: Stream) -> tuple[list[Tensor], Event]:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with current_device(self.device), stream:
            with self.meter.part("backward"):
                gradients = self.learner.gradients(loss, weight, parameters)
            return gradients, stream.record()

    def _sum_gradients(self, results: Sequence[Future[tuple[list[Tensor], Event]]], current: Stream) -> list[Tensor]:
        """Sum gradients in the order of their micro-batches, on the current stream."""
        total: list[Tensor] = []
        for result in results:
            gradients, done = result.result()
            record_stream(gradients, ready=done, to=current)
            if total:
                torch._foreach_add_(total, gradients)
            else:
                total = gradients
        return total


def twin_of(model: nn.Module, settings: Model | None = None) -> nn.Module:
    """Return a copy of `model` whose parameters and buffers share its memory, compiled as `settings` say."""
    shared: dict[int, object] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
    twin = copy.deepcopy(model, shared)
    if settings is not None:
        compile_model(twin, settings)
    return twin


def _saved_buffers(model: nn.Module) -> list[str]:
    state = model.state_dict()
    return [name for name, _buffer in model.named_buffers() if name in state]


@contextmanager
def _without_recomputation() -> Iterator[None]:
    """Raise ConfigError in a backward that runs a module again: dropout would draw from the forward's generator."""
    forward_thread = threading.get_ident()

    def check(module: nn.Module, _args: Any) -> None:
        if threading.get_ident() != forward_thread:
            raise ConfigError(
                f"strategy staged cannot recompute {type(module).__name__} in the backward, which runs beside the next "
                "forward and shares its random numbers; use --strategy prefetch with torch.utils.checkpoint"
            )

    handle = nn.modules.module.register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()
