"""Copies from pinned memory on one stream. They do not block the host, but run before the kernels of the step.

host     load, copy, launch forward, backward, optimizer; load, copy, launch ...   (ahead of the GPU)
stream   copy N | forward N | backward N | optimizer N | copy N+1 | ...
"""

from __future__ import annotations

from torch import Tensor

from instrument.strategies.base import Strategy


class Pinned(Strategy):
    """Makes batches in pinned memory and copies them on the compute stream."""

    def _copy(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)
