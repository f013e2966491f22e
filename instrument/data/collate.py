"""Samples to batches, straight into pinned memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate as collate_by
from torch.utils.data._utils.collate import default_collate_fn_map

from instrument.pinned import PinnedBudget, capacity
from instrument.trees import map_leaves, moves_itself


class PinnedCollator:
    """A `collate_fn` whose batches are in pinned memory, so that their copies need not stop the host.

        DataLoader(dataset, batch_size=32, collate_fn=PinnedCollator(PinnedBudget(1 << 30)))

    Samples are stacked there, without a batch in ordinary memory first. What another `collate` makes of
    them, any nested batch, is copied there. The memory counts against the budget for as long as a batch
    lives. In a loader's worker, and without a GPU, batches stay in ordinary memory: for workers,
    `DataLoader(pin_memory=True)` pins in the process that copies.

    Args:
        budget: the most pinned memory; InstrumentError is raised by the batch that would pass it.
        collate: what makes a batch of samples; torch's `default_collate` where None.
    """

    def __init__(self, budget: PinnedBudget, collate: Callable[[Sequence[Any]], Any] | None = None) -> None:
        self.budget, self.collate = budget, collate

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return one batch of `samples`."""
        if get_worker_info() is not None or not torch.cuda.is_available():
            return (self.collate or default_collate)(list(samples))
        if self.collate is not None:
            return self.pinned(self.collate(samples))
        by_type = {**default_collate_fn_map, torch.Tensor: self._stacked}
        return self.pinned(collate_by(list(samples), collate_fn_map=by_type))

    def pinned(self, tree: Any) -> Any:
        """Return `tree` with what is not in pinned memory copied there."""
        return map_leaves(tree, self._pinned_leaf)

    def _stacked(self, samples: Sequence[torch.Tensor], **how: Any) -> torch.Tensor:
        first = samples[0]
        if any(not _is_plain(sample) or sample.dtype != first.dtype for sample in samples):
            stacked: torch.Tensor = default_collate_fn_map[torch.Tensor](samples, **how)
            return stacked
        return torch.stack(list(samples), out=self._counted((len(samples), *first.shape), first.dtype))

    def _pinned_leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf.pin_memory() if moves_itself(leaf) else leaf
        if leaf.is_cuda or leaf.layout is not torch.strided or leaf.is_pinned():
            return leaf
        size = capacity(leaf.nbytes)
        self.budget.take(size)
        pinned = leaf.pin_memory()
        weakref.finalize(pinned, self.budget.give, size)
        return pinned

    def _counted(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = capacity(torch.Size(shape).numel() * dtype.itemsize)
        self.budget.take(size)
        pinned = torch.empty(shape, dtype=dtype, pin_memory=True)
        weakref.finalize(pinned, self.budget.give, size)
        return pinned


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
    )
