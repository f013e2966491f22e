"""Pinned memory on one stream: the copy no longer blocks the host, but still runs before the step's kernels.

    host     load, copy, launch forward, backward, optimizer; load, copy, launch ...   (ahead of the GPU)
    stream   copy N | forward N | backward N | optimizer N | copy N+1 | ...
"""

from __future__ import annotations

from torch import Tensor

from instrument.strategies.base import Strategy


class Pinned(Strategy):
    """Batches are made in pinned memory; their copies share the stream of the compute."""

    pins = "all"

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)
