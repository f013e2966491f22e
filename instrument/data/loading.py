"""Make host batches from samples: with a DataLoader for each step, or once before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from instrument.config.training import Data
from instrument.data.order import Order, Position
from instrument.errors import ConfigError
from instrument.memory import PinnedBudget, available_bytes, format_bytes, pinned_bytes
from instrument.pinned import PinnedCollator
from instrument.trees import map_tensors, nbytes, tensors

PREFETCH_FACTOR = 2  # torch's default


class LoaderBatches:
    """Makes batches with one DataLoader, which can keep its workers between epochs.

    Args:
        samples: the data set.
        data: workers, prefetch_factor, persistent_workers and pinned_budget.
        pinned: whether batches are in pinned memory. Without workers they are collated there; with workers the
            DataLoader's thread pins them.
        seed: seed of the workers. torch's global generator is not used.

    Raises:
        ConfigError: the batches that the workers load ahead exceed the pinned budget.
    """

    def __init__(self, samples: Dataset[Any], data: Data, *, pinned: bool, seed: int) -> None:
        if pinned and data.workers:
            ahead = data.workers * (data.prefetch_factor or PREFETCH_FACTOR)
            _check_pinned(samples, ahead, data, f"workers: {ahead} batches loaded ahead", "use fewer workers")
        collates_pinned = pinned and not data.workers
        self._indices = _CurrentIndices()
        self._loader = DataLoader(
            samples,
            batch_sampler=self._indices,
            num_workers=data.workers,
            prefetch_factor=data.prefetch_factor,
            persistent_workers=data.persistent_workers,
            collate_fn=PinnedCollator(PinnedBudget(data.pinned_budget)) if collates_pinned else None,
            pin_memory=pinned and not collates_pinned,
            generator=torch.Generator().manual_seed(seed % (1 << 64)),
        )

    def __call__(self, indices: Iterator[list[int]]) -> Iterator[Any]:
        """Return an iterator of the batches with these sample indices."""
        self._indices.indices = indices
        return iter(self._loader)


class KeptBatches:
    """Makes the first batches of an epoch once and repeats them. The epoch is not shuffled.

    A step then makes no batch on the host. With `data.preload`, all batches of the epoch are kept. Otherwise
    `data.distinct_batches` are kept, or as many as fit into `data.pinned_budget`, whether they are pinned or not, so
    that every strategy trains on the same batches.

    Args:
        samples: the data set.
        order: the samples of each batch.
        data: number of batches, workers that make them, and the pinned budget.
        pinned: whether the batches are in pinned memory.
        seed: seed of the workers.

    Raises:
        ConfigError: the batches do not fit into memory or into the pinned budget.
    """

    def __init__(self, samples: Dataset[Any], order: Order, data: Data, *, pinned: bool, seed: int) -> None:
        count = order.batches
        if not data.preload:
            count = min(count, data.distinct_batches, max(1, data.pinned_budget // _pinned_batch_bytes(samples, data)))
        _check_memory(samples, count * order.batch, data)
        if pinned:
            _check_pinned(samples, count, data, f"{_keep_setting(data)}: {count} batches", "keep fewer samples")
        made = LoaderBatches(samples, data, pinned=False, seed=seed)(islice(order.epoch(Position()), count))
        if pinned:
            made = map(PinnedCollator(PinnedBudget(data.pinned_budget)).pin, made)
        self._batches = list(made)
        self._stride = order.batch * order.world

    def __call__(self, indices: Iterator[list[int]]) -> Iterator[Any]:
        """Return an iterator of the kept batches with these sample indices, the same objects each time."""
        return (self._batches[batch[0] // self._stride % len(self._batches)] for batch in indices)


class InMemorySamples(Dataset[Any]):
    """A data set that is read into memory once, with `data.workers` workers.

    Raises:
        ConfigError: the samples do not fit into memory.
    """

    def __init__(self, samples: Dataset[Any], count: int, data: Data, *, seed: int) -> None:
        _check_memory(samples, count, data)
        batches_of_one = LoaderBatches(samples, data, pinned=False, seed=seed)([index] for index in range(count))
        self._batches_of_one = list(batches_of_one)

    def __len__(self) -> int:
        return len(self._batches_of_one)

    def __getitem__(self, index: int) -> Any:
        return map_tensors(self._batches_of_one[index], lambda tensor: tensor[0])


class _CurrentIndices:
    """The DataLoader's batch sampler; its indices are replaced before each iteration."""

    def __init__(self) -> None:
        self.indices: Iterator[list[int]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.indices


def _check_memory(samples: Dataset[Any], count: int, data: Data) -> None:
    size, available = count * nbytes(samples[0]), available_bytes()
    if available is not None and size > available:
        raise ConfigError(
            f"{_keep_setting(data)}: {count} samples take {format_bytes(size)}, and "
            f"{format_bytes(available)} are left: keep fewer samples, or none"
        )


def _check_pinned(samples: Dataset[Any], batches: int, data: Data, what: str, remedy: str) -> None:
    size = batches * _pinned_batch_bytes(samples, data)
    if size > data.pinned_budget:
        raise ConfigError(
            f"{what} take {format_bytes(size)} of pinned memory, and the budget is "
            f"{format_bytes(data.pinned_budget)}: {remedy}, make the batch smaller, or raise pinned_budget"
        )


def _keep_setting(data: Data) -> str:
    return "preload" if data.preload else "distinct_batches"


def _pinned_batch_bytes(samples: Dataset[Any], data: Data) -> int:
    return sum(pinned_bytes(data.batch * nbytes(tensor)) for tensor in tensors(samples[0]))
