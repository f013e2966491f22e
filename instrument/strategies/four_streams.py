"""The pipeline of the field's folklore: transfer, forward, backward and optimizer, each on a stream of its own.

    transfer    | copy 1 |             | copy 2 |
    forward     | forward 0 | backward 0 |           | forward 1 | backward 1 |
    backward                              (empty)
    optimizer                             | optimizer 0 |                      | optimizer 1 |

    copy N ready --> forward N --> backward N --> optimizer N --> forward N+1

It is here to be seen and measured. Events alone order the streams; the host waits as `--sync` says, and reads losses
late. PyTorch runs each backward operation on the stream of its forward operation, so the stream for backward stays
empty, and the next forward needs the weights of this step. So the work is that of `prefetch`, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from instrument.strategies.base import Prefetch
from instrument.streams import Streams, record_stream
from instrument.trainer.learner import Batch, Weight


class FourStreams(Prefetch):
    """Runs each phase of a step on its own stream.

    A step begins after all work of the current stream, and that stream continues after the step. So memory that one
    stream allocates and another one uses is safe without more calls.
    """

    def __init__(self, *about: Any, **options: Any) -> None:
        super().__init__(*about, **options)
        self.streams = Streams(self.device, transfer=-1, forward=0, backward=0, optimizer=0)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches on the device, copied ahead on the transfer stream."""
        return self._copied_ahead(loader, self.config.data.depth, self.streams["transfer"])

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Train on the micro-batches of one optimizer step; return their mean loss."""
        current, forward = self.streams.current, self.streams["forward"]
        record_stream(batches, ready=current.record(), to=forward)
        with forward:  # what is computed from losses follows the forward too: their weights and their mean
            loss = super().step(batches)
        current.wait(forward)
        return loss

    def _forward_backward(self, batch: Batch, weight: Weight) -> Tensor:
        forward, backward = self.streams["forward"], self.streams["backward"]
        with self.meter.part("forward"):
            loss = self.learner.forward(batch)
        backward.wait(forward)
        with backward, self.meter.part("backward"):
            self.learner.backward(loss, weight)
        forward.wait(backward)  # the next micro-batch adds to the gradients of this one
        return loss.detach()

    def _update(self) -> None:
        forward, optimizer = self.streams["forward"], self.streams["optimizer"]
        optimizer.wait(forward)  # which has waited for the backward
        with optimizer:
            super()._update()
        forward.wait(optimizer)
