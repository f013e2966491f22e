"""How samples become host batches: by a DataLoader with its workers, or once, before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from instrument.collate import PinnedCollator
from instrument.config import Data
from instrument.errors import ConfigError
from instrument.host_memory import available_bytes, in_words
from instrument.order import Order, Position
from instrument.pinned import PinnedBudget, capacity
from instrument.trees import map_tensors, nbytes, tensors

PREFETCH_FACTOR = 2  # torch's, where none is given


class Loaded:
    """Makes batches of lists of indices by one DataLoader, which may keep its workers between epochs.

    Args:
        samples: the data set.
        data: workers, prefetch_factor, persistent_workers, pinned_budget.
        pinned: whether batches are in pinned memory: collated there, or pinned by the DataLoader's own thread
            where workers collate. Raises ConfigError where what the workers run ahead passes the budget.
        seed: the workers' own; torch's global generator is left alone.
    """

    def __init__(self, samples: Dataset[Any], data: Data, *, pinned: bool, seed: int) -> None:
        if pinned and data.workers:
            _check_pinned_workers(samples, data)
        collates_pinned = pinned and not data.workers
        self._asked = _Asked()
        self._loader = DataLoader(
            samples,
            batch_sampler=self._asked,
            num_workers=data.workers,
            prefetch_factor=data.prefetch_factor,
            persistent_workers=data.persistent_workers,
            collate_fn=PinnedCollator(PinnedBudget(data.pinned_budget)) if collates_pinned else None,
            pin_memory=pinned and not collates_pinned,
            generator=torch.Generator().manual_seed(seed % (1 << 64)),
        )

    def __call__(self, indices: Iterator[list[int]]) -> Iterator[Any]:
        """Return the batches of `indices`."""
        self._asked.indices = indices
        return iter(self._loader)


class Kept:
    """All batches of an epoch whose order never changes, made once: a step copies nothing on the host.

    Args:
        samples: the data set.
        order: which samples make which batch; not shuffled.
        data: the workers that help to make them, and the pinned budget.
        pinned: whether they are kept in pinned memory.
        seed: the workers' own.

    Raises:
        ConfigError: the memory or the pinned budget does not hold them.
    """

    def __init__(self, samples: Dataset[Any], order: Order, data: Data, *, pinned: bool, seed: int) -> None:
        _check_memory(samples, order.batches * order.batch)
        if pinned:
            _check_pinned_batches(samples, order.batches, data)
        made = Loaded(samples, data, pinned=False, seed=seed)(order.epoch(Position()))
        if pinned:
            made = map(PinnedCollator(PinnedBudget(data.pinned_budget)).pinned, made)
        firsts = [indices[0] for indices in order.epoch(Position())]
        self._by_first = dict(zip(firsts, made, strict=True))

    def __call__(self, indices: Iterator[list[int]]) -> Iterator[Any]:
        """Return the batches of `indices`: the same objects every epoch."""
        return (self._by_first[batch[0]] for batch in indices)


class InMemory(Dataset[Any]):
    """A data set read once, by as many workers as `data` has.

    Raises ConfigError where the memory does not hold it.
    """

    def __init__(self, samples: Dataset[Any], count: int, data: Data, *, seed: int) -> None:
        _check_memory(samples, count)
        one_by_one = Loaded(samples, data, pinned=False, seed=seed)([index] for index in range(count))
        self._batches_of_one = list(one_by_one)

    def __len__(self) -> int:
        return len(self._batches_of_one)

    def __getitem__(self, index: int) -> Any:
        return map_tensors(self._batches_of_one[index], lambda tensor: tensor[0])


class _Asked:
    """What the DataLoader takes its indices from: those of the iteration that is beginning."""

    def __init__(self) -> None:
        self.indices: Iterator[list[int]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.indices


def _check_memory(samples: Dataset[Any], count: int) -> None:
    size, available = count * nbytes(samples[0]), available_bytes()
    if available is not None and size > available:
        raise ConfigError(
            f"preload: {count} samples take {in_words(size)}, and {in_words(available)} are left: "
            "use fewer samples, or do not preload"
        )


def _check_pinned_batches(samples: Dataset[Any], batches: int, data: Data) -> None:
    size = batches * _pinned_batch(samples, data)
    if size > data.pinned_budget:
        raise ConfigError(
            f"preload: {batches} batches take {in_words(size)} of pinned memory, and the budget is "
            f"{in_words(data.pinned_budget)}: use fewer samples, or raise pinned_budget"
        )


def _check_pinned_workers(samples: Dataset[Any], data: Data) -> None:
    ahead = data.workers * (data.prefetch_factor or PREFETCH_FACTOR)
    size = ahead * _pinned_batch(samples, data)
    if size > data.pinned_budget:
        raise ConfigError(
            f"workers: {ahead} batches ahead take up to {in_words(size)} of pinned memory, and the budget is "
            f"{in_words(data.pinned_budget)}: use fewer workers or a smaller batch, or raise pinned_budget"
        )


def _pinned_batch(samples: Dataset[Any], data: Data) -> int:
    return sum(capacity(data.batch * nbytes(tensor)) for tensor in tensors(samples[0]))
