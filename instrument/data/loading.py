"""How samples become host batches: by a DataLoader with its workers, or once, before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from instrument.config.schema import Data
from instrument.data.collate import PinnedCollator
from instrument.data.host_memory import available_bytes, in_words
from instrument.data.order import Order, Position
from instrument.errors import ConfigError
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
    """The first batches of an epoch whose order never changes, made once and repeated.

    A step copies nothing on the host. With `data.preload` all batches of the epoch are kept, otherwise as many of
    `data.distinct_batches` as `data.pinned_budget` holds, pinned or not: every strategy trains on the same batches.

    Args:
        samples: the data set.
        order: which samples make which batch; not shuffled.
        data: how many batches, the workers that make them, and the pinned budget.
        pinned: whether the batches are in pinned memory.
        seed: the workers' seed.

    Raises:
        ConfigError: the memory or the pinned budget does not hold the batches.
    """

    def __init__(self, samples: Dataset[Any], order: Order, data: Data, *, pinned: bool, seed: int) -> None:
        count = order.batches
        if not data.preload:
            count = min(count, data.distinct_batches, max(1, data.pinned_budget // _pinned_batch(samples, data)))
        _check_memory(samples, count * order.batch, data)
        if pinned:
            _check_pinned_batches(samples, count, data)
        made = Loaded(samples, data, pinned=False, seed=seed)(islice(order.epoch(Position()), count))
        if pinned:
            made = map(PinnedCollator(PinnedBudget(data.pinned_budget)).pinned, made)
        self._batches = list(made)
        self._stride = order.batch * order.world

    def __call__(self, indices: Iterator[list[int]]) -> Iterator[Any]:
        """Return the batches of `indices`: the same objects again and again."""
        return (self._batches[batch[0] // self._stride % len(self._batches)] for batch in indices)


class InMemory(Dataset[Any]):
    """A data set read once, by as many workers as `data` has.

    Raises ConfigError where the memory does not hold it.
    """

    def __init__(self, samples: Dataset[Any], count: int, data: Data, *, seed: int) -> None:
        _check_memory(samples, count, data)
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


def _check_memory(samples: Dataset[Any], count: int, data: Data) -> None:
    size, available = count * nbytes(samples[0]), available_bytes()
    if available is not None and size > available:
        raise ConfigError(
            f"{_setting_that_keeps(data)}: {count} samples take {in_words(size)}, and {in_words(available)} are left: "
            "keep fewer samples, or none"
        )


def _check_pinned_batches(samples: Dataset[Any], batches: int, data: Data) -> None:
    size = batches * _pinned_batch(samples, data)
    if size > data.pinned_budget:
        raise ConfigError(
            f"{_setting_that_keeps(data)}: {batches} batches take {in_words(size)} of pinned memory, and the budget is "
            f"{in_words(data.pinned_budget)}: keep fewer samples, use a smaller batch, or raise pinned_budget"
        )


def _setting_that_keeps(data: Data) -> str:
    return "preload" if data.preload else "distinct_batches"


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
