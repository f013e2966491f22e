r"""The whole step as one CUDA graph: one launch for forward, backward and optimizer.

    copy      | copy N+1 |                 | copy N+2 |
                        \ ready                       \ ready
    compute   into the graph's batch, replay N | into the graph's batch, replay N+1 | ...

The first steps run without a graph, on a side stream, so that the allocator and the libraries reach a steady state.
They are normal training steps. A graph replays the recorded addresses, so each batch is first copied on the GPU into
the graph's batch, which takes tens of microseconds for 100 MB.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from instrument.errors import ConfigError
from instrument.ranges import REPLAY, phase
from instrument.strategies.base import Prefetch
from instrument.streams import Stream, record_stream
from instrument.trainer.learner import Batch
from instrument.trees import map_tensors, tensors

WARM_UP_STEPS = 3
_REPLAY = phase(REPLAY)


class Graph(Prefetch):
    """Records a step once and replays it. All batches must have the same shapes."""

    _graph: torch.cuda.CUDAGraph | None = None
    _side: Stream | None = None
    _steps = 0
    _batch: Batch
    _loss: Tensor

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Train on one batch.

        Raises:
            ConfigError: the shapes of the batch differ from those of the recorded step.
        """
        if self.device.type != "cuda":
            return super().step(batches)
        (batch,) = batches
        self._steps += 1
        if self._steps <= WARM_UP_STEPS:
            return self._warm_up(batch)
        if self._graph is None:
            self._record(batch)
        return self._replay(batch)

    def _warm_up(self, batch: Batch) -> Tensor:
        current = Stream.current(self.device)
        self._side = self._side or Stream.create("side", self.device)
        record_stream(batch, ready=current.record(), to=self._side)
        with self._side:
            loss = self._forward_backward(batch, 1.0)
            with self.meter.part("optimizer"):
                self.learner.update()
        current.wait(self._side)
        return loss

    def _record(self, batch: Batch) -> None:
        assert self._side is not None
        self._batch = map_tensors(batch, torch.Tensor.clone)
        self.learner.clear()
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads, such as the loader's, make CUDA calls during the capture.
        with _without_gc(), torch.cuda.graph(graph, stream=self._side.cuda, capture_error_mode="thread_local"):
            loss = self.learner.forward(self._batch)
            self.learner.backward(loss)
            self.learner.descend()
            self._loss = loss.detach()
        self._graph = graph

    def _replay(self, batch: Batch) -> Tensor:
        for recorded, tensor in zip(tensors(self._batch), tensors(batch), strict=True):
            if recorded.shape != tensor.shape:
                raise ConfigError(
                    f"strategy graph: a tensor is {tuple(tensor.shape)}, but the graph needs {tuple(recorded.shape)}: "
                    "a CUDA graph takes batches of one shape; use strategy prefetch"
                )
            recorded.copy_(tensor, non_blocking=True)
        assert self._graph is not None
        with _REPLAY:
            self._graph.replay()
        self.learner.schedule.step()
        return self._loss


@contextmanager
def _without_gc() -> Iterator[None]:
    """Collect garbage before the block and not in it: freeing GPU memory during a capture ends the capture."""
    gc.collect()
    torch.cuda.synchronize()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
