r"""The whole step as one CUDA graph: one launch for forward, backward and optimizer.

    copy      | copy N+1 |                 | copy N+2 |
                        \ ready                       \ ready
    compute   into the graph's batch, replay N | into the graph's batch, replay N+1 | ...

The first steps run as ever, on a side stream, and are real steps: the allocator and the libraries settle.
A graph replays what was recorded with the addresses it had, so each batch is first copied into the graph's
own, on the GPU: tens of microseconds for a hundred megabytes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from instrument.errors import ConfigError
from instrument.ranges import REPLAY, phase
from instrument.strategies.base import mean
from instrument.strategies.prefetch import Prefetch
from instrument.streams import Stream, hand_over
from instrument.trainer.learner import Batch

SETTLING = 3
_REPLAY = phase(REPLAY)
INSIDE = "the step is one CUDA graph, which is timed as a whole"


class Graph(Prefetch):
    """Replays a step that was recorded once; batches of one shape only."""

    captures_step = True
    several_processes = False
    splits_batches = False

    _graph: torch.cuda.CUDAGraph | None = None
    _side: Stream | None = None
    _steps = 0
    _batch: Batch
    _loss: Tensor

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Train on one batch; raises ConfigError where its shapes are not those of the batch before."""
        if self.device.type != "cuda":
            return super().step(batches)
        (batch,) = batches
        self._steps += 1
        if self._steps <= SETTLING:
            return self._settle(batch)
        if self._graph is None:
            self._record(batch)
        return self._replay(batch)

    def _settle(self, batch: Batch) -> Tensor:
        current = Stream.current(self.device)
        self._side = self._side or Stream.create("side", self.device)
        hand_over(batch, ready=current.record(), to=self._side)
        with self._side:
            loss = self._forward_backward(batch, 1.0)
            with self.meter.part("optimizer"):
                self.learner.update()
        current.wait(self._side)
        return mean([loss])

    def _record(self, batch: Batch) -> None:
        assert self._side is not None
        self._batch = {name: tensor.clone() for name, tensor in batch.items()}
        self.learner.clear()
        graph = torch.cuda.CUDAGraph()
        # Other threads go on with their own CUDA calls, the loader's among them, while this one records.
        with _no_collection(), torch.cuda.graph(graph, stream=self._side.cuda, capture_error_mode="thread_local"):
            loss = self.learner.forward(self._batch)
            self.learner.backward(loss)
            self.learner.descend()
            self._loss = loss.detach()
        self._graph = graph

    def _replay(self, batch: Batch) -> Tensor:
        for name, tensor in batch.items():
            held = self._batch[name]
            if held.shape != tensor.shape:
                raise ConfigError(
                    f"strategy graph: {name} is {tuple(tensor.shape)} and the graph holds {tuple(held.shape)}: "
                    "a CUDA graph takes batches of one shape; use strategy prefetch"
                )
            held.copy_(tensor, non_blocking=True)
        assert self._graph is not None
        self.meter.cannot(INSIDE, "forward", "backward", "optimizer")
        with _REPLAY:
            self._graph.replay()
        self.learner.schedule.step()
        return self._loss


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage now and not while recording: memory that is freed on the GPU then ends the recording."""
    gc.collect()
    torch.cuda.synchronize()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
