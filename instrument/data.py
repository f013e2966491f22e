"""Host batches that a run can resume at any position: the order of the samples, how batches are made, and loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from instrument.config.sections import Data, Model
from instrument.errors import ConfigError
from instrument.memory import format_bytes, pinned_bytes
from instrument.monitor.loader import LoaderGauge
from instrument.pinned import pin
from instrument.trees import nbytes, tensors


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A batch of a run: its epoch and its index within the epoch, both counted from 0."""

    epoch: int = 0
    batch: int = 0

    def after(self, batches: int, per_epoch: int) -> Position:
        """Return the position `batches` later, in epochs of `per_epoch` batches."""
        return Position(*divmod(self.epoch * per_epoch + self.batch + batches, per_epoch))


@dataclass(frozen=True, slots=True)
class Order:
    """The batches of one rank in each epoch.

    All ranks have the same number of batches, and no sample occurs twice in an epoch. Samples left over at the end of
    an epoch are not used; with `shuffle` they differ between epochs.

    Attributes:
        samples: number of samples.
        batch: samples per batch and rank.
        rank: this rank, from 0.
        world: number of ranks.
        seed: seed of the permutations, the same on all ranks.
        shuffle: whether each epoch has its own permutation of the samples.

    Raises:
        ConfigError: there are too few samples for one batch on every rank, or `rank` is not in [0, `world`).
    """

    samples: int
    batch: int
    rank: int = 0
    world: int = 1
    seed: int = 0
    shuffle: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"invalid rank {self.rank} of {self.world}: ranks are 0 to {self.world - 1}")
        if self.batches < 1:
            each = f" on each of {self.world} GPUs" if self.world > 1 else ""
            raise ConfigError(f"batch {self.batch}{each} is more than all {self.samples} samples: use a smaller batch")

    @property
    def batches(self) -> int:
        """Batches per epoch, the same on every rank."""
        return self.samples // (self.batch * self.world)

    def epoch(self, start: Position) -> Iterator[list[int]]:
        """Yield the sample indices of each batch, from `start` to the end of its epoch."""
        order = torch.arange(self.samples)
        if self.shuffle:
            order = torch.randperm(self.samples, generator=generator_for(self.seed, start.epoch))
        for batch in range(start.batch, self.batches):
            first = (batch * self.world + self.rank) * self.batch
            yield order[first : first + self.batch].tolist()


def generator_for(seed: int, index: int) -> torch.Generator:
    """Return a generator seeded by (seed, index); neighbouring indices give unrelated numbers."""
    return torch.Generator().manual_seed(mixed_seed(seed, index))


def mixed_seed(seed: int, *indices: int) -> int:
    """Return a seed of 64 bits for (seed, *indices); neighbouring indices give unrelated seeds."""
    # SeedSequence takes no negative numbers. torch also uses the low 64 bits of a seed.
    (state,) = np.random.SeedSequence([seed % (1 << 64), *indices]).generate_state(1, np.uint64)
    return int(state)


PREFETCH_FACTOR = 2  # torch's default


class LoaderBatches:
    """Makes batches with one DataLoader, which can keep its workers between epochs.

    Args:
        samples: the data set.
        data: workers, prefetch_factor, persistent_workers and pinned_budget.
        pinned: whether batches are in pinned memory.
        seed: seed of the workers. torch's global generator is not used.
        gauge: counts what the loader does.

    Raises:
        ConfigError: the batches that the workers load ahead exceed the pinned budget.
    """

    def __init__(
        self, samples: Dataset[Any], data: Data, *, pinned: bool, seed: int, gauge: LoaderGauge | None = None
    ) -> None:
        if pinned and data.workers:
            ahead = data.workers * (data.prefetch_factor or PREFETCH_FACTOR)
            _check_pinned(samples, ahead, data, f"workers: {ahead} batches loaded ahead", "use fewer workers")
        self._gauge = gauge or LoaderGauge()
        self._indices = _CurrentIndices()
        self._loader = DataLoader(
            samples,
            batch_sampler=self._indices,
            num_workers=data.workers,
            prefetch_factor=data.prefetch_factor,
            persistent_workers=data.persistent_workers,
            pin_memory=pinned,
            generator=torch.Generator().manual_seed(seed % (1 << 64)),
        )

    def __call__(self, indices: Iterator[list[int]]) -> Iterator[Any]:
        """Return an iterator of the batches with these sample indices."""
        self._indices.indices = indices
        return self._gauge.watched(self._loader)


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
        ConfigError: the batches do not fit into the pinned budget.
    """

    def __init__(self, samples: Dataset[Any], order: Order, data: Data, *, pinned: bool, seed: int) -> None:
        count = order.batches
        if not data.preload:
            count = min(count, data.distinct_batches, max(1, data.pinned_budget // _pinned_batch_bytes(samples, data)))
        if pinned:
            _check_pinned(samples, count, data, f"{_keep_setting(data)}: {count} batches", "keep fewer samples")
        made = LoaderBatches(samples, data, pinned=False, seed=seed)(islice(order.epoch(Position()), count))
        if pinned:
            made = map(pin, made)
        self._batches = list(made)
        self._stride = order.batch * order.world

    def __call__(self, indices: Iterator[list[int]]) -> Iterator[Any]:
        """Return an iterator of the kept batches with these sample indices, the same objects each time."""
        return (self._batches[batch[0] // self._stride % len(self._batches)] for batch in indices)


class _CurrentIndices:
    """The DataLoader's batch sampler; its indices are replaced before each iteration."""

    def __init__(self) -> None:
        self.indices: Iterator[list[int]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.indices


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


MakeBatches = Callable[[Iterator[list[int]]], Iterator[Any]]
Sample = dict[str, Tensor]


class Synthetic(Dataset[Sample]):
    """`data.samples` random samples for `model`. A sample depends on the seed and its index only."""

    def __init__(self, model: Model, data: Data, seed: int) -> None:
        self.model, self.data, self.seed = model, data, seed

    def __len__(self) -> int:
        return self.data.samples

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        size, generator = (self.data.sequence, self.model.features), generator_for(self.seed, index)
        return _sample(torch.randn(size, generator=generator), self.model)


class Loader:
    """A deterministic iterable of host batches that can start at any position.

    Each `iter()` continues at `position`, to the end of the epoch, or without end if `endless`. Only one iteration can
    run at a time. `position` counts the batches returned, and batches that raised, but not those loaded ahead.

    Args:
        order: the samples of each batch.
        make: returns an iterator of batches for an iterator of lists of sample indices.
        start: the first batch; None for the first batch of epoch 0.
        endless: whether an iteration continues with the next epoch.

    Attributes:
        position: the next batch. Save it in a checkpoint and pass it as `start` to resume.
    """

    def __init__(self, order: Order, make: MakeBatches, *, start: Position | None = None, endless: bool) -> None:
        self.order, self.endless = order, endless
        self._make = make
        self.seek(start or Position())

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self.order.batches

    def __iter__(self) -> Iterator[Any]:
        return _CountedBatches(self, self._make(self._indices(self.position)))

    def seek(self, position: Position) -> None:
        """Start the next iteration at `position`.

        Raises:
            ConfigError: an epoch has no such batch.
        """
        if position.epoch < 0 or not 0 <= position.batch < len(self):
            raise ConfigError(
                f"position {position.epoch}, {position.batch}: an epoch has batches 0 to {len(self) - 1} here: use "
                "the data, the batch size and the number of GPUs that the checkpoint was made with"
            )
        self.position = position

    def _indices(self, start: Position) -> Iterator[list[int]]:
        yield from self.order.epoch(start)
        while self.endless:
            start = Position(start.epoch + 1)
            yield from self.order.epoch(start)


class _CountedBatches(Iterator[Any]):
    """Advances the loader's position. Unlike a generator it continues after an exception, with the next batch."""

    def __init__(self, loader: Loader, batches: Iterator[Any]) -> None:
        self._loader, self._batches = loader, batches

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            self._advance()
            raise
        self._advance()
        return batch

    def _advance(self) -> None:
        self._loader.position = self._loader.position.after(1, len(self._loader))


def map_style_loader(
    samples: Any,
    data: Data,
    seed: int,
    *,
    rank: int,
    world: int,
    start: Position | None,
    endless: bool,
    pinned: bool,
    gauge: LoaderGauge | None = None,
) -> Loader:
    """Return the loader of a data set with an index; see `Workload.build_loader`.

    Synthetic samples repeat their first `data.distinct_batches` batches, unless that is 0 or `data.preload` is set.
    """
    order = Order(len(samples), data.batch, rank, world, seed, shuffle=data.path is not None)
    make: MakeBatches
    if data.kept:
        make = KeptBatches(samples, order, data, pinned=pinned, seed=seed)
    else:
        make = LoaderBatches(samples, data, pinned=pinned, seed=seed, gauge=gauge)
    return Loader(order, make, start=start, endless=endless)


def _sample(inputs: Tensor, model: Model) -> Sample:
    """Return inputs (sequence, features) float32 and targets (sequence,) int64.

    The target is the quantile of the first feature under the normal distribution, in steps of 1/vocabulary, so the
    model can learn it.
    """
    quantile = torch.special.ndtr(inputs[:, 0])
    return {"inputs": inputs, "targets": (quantile * model.vocabulary).long().clamp_(0, model.vocabulary - 1)}
