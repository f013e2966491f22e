"""Host batches: seeded or from a file, in an order that any run can go on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from instrument.config.schema import Config, Data, Model
from instrument.data.collate import PinnedCollator
from instrument.data.files import FileSamples, open_samples
from instrument.data.loading import InMemory, Kept, Loaded
from instrument.data.order import Order, Position, generator_for
from instrument.errors import ConfigError
from instrument.models import batches
from instrument.models.batches import Sample

__all__ = ["Loader", "Order", "PinnedCollator", "Position", "Synthetic", "build_loader"]

MakeBatches = Callable[[Iterator[list[int]]], Iterator[Any]]


class Synthetic(Dataset[Sample]):
    """`data.samples` random samples for `model`; the seed and the index determine a sample."""

    def __init__(self, model: Model, data: Data, seed: int) -> None:
        self.model, self.data, self.seed = model, data, seed

    def __len__(self) -> int:
        return self.data.samples

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return batches.sample(self.model, self.data, generator_for(self.seed, index))


Samples = Synthetic | FileSamples


class Loader:
    """Host batches, deterministic, that can go on at any position.

    Each `iter()` goes on at `position`: to the end of its epoch, or on and on where `endless`. One iteration
    at a time. `position` counts what was handed out, and a batch that raised; workers run ahead of it.

    Args:
        order: which samples make which batch.
        make: makes the batches of an iterator of their indices.
        start: where to begin.
        endless: whether an iteration goes on into the next epoch.
    """

    def __init__(self, order: Order, make: MakeBatches, *, start: Position | None = None, endless: bool) -> None:
        self.order, self.endless = order, endless
        self._make = make
        self._position = Position()
        self.seek(start or Position())

    def __len__(self) -> int:
        """The batches of one whole epoch."""
        return self.order.batches

    def __iter__(self) -> Iterator[Any]:
        return _Counted(self, self._make(self._indices(self._position)))

    @property
    def position(self) -> Position:
        """The batch that comes next: for a checkpoint, and as `start` of a loader that goes on."""
        return self._position

    def seek(self, position: Position) -> None:
        """Go on at `position` with the next iteration; raise ConfigError where no epoch has such a batch."""
        if position.epoch < 0 or not 0 <= position.batch < len(self):
            raise ConfigError(
                f"position {position.epoch}, {position.batch}: an epoch has batches 0 to {len(self) - 1} here: go on "
                "with the data, the batch size and the number of GPUs that the checkpoint was made with"
            )
        self._position = position

    def _indices(self, start: Position) -> Iterator[list[int]]:
        yield from self.order.epoch(start)
        while self.endless:
            start = Position(start.epoch + 1)
            yield from self.order.epoch(start)


class _Counted(Iterator[Any]):
    """Goes on after an exception, which a generator would not: the batch that raised is passed over."""

    def __init__(self, loader: Loader, made: Iterator[Any]) -> None:
        self._loader, self._made = loader, made

    def __next__(self) -> Any:
        try:
            batch = next(self._made)
        except StopIteration:
            raise
        except Exception:
            self._advance()
            raise
        self._advance()
        return batch

    def _advance(self) -> None:
        self._loader._position = self._loader.position.after(1, len(self._loader))


def build_loader(
    config: Config,
    *,
    rank: int = 0,
    world: int = 1,
    start: Position | None = None,
    endless: bool | None = None,
    pinned: bool = False,
) -> Loader:
    """Return the loader of host batches that `config` describes.

    Synthetic samples come in their order, a file's in a new order each epoch. `data.samples` counts synthetic samples
    only: a file is used whole. Synthetic data repeats its first `data.distinct_batches` batches, unless that is 0 or
    `data.preload` keeps all of them.

    Args:
        config: its model, data and seed.
        rank: which process it is for, from 0.
        world: how many processes share the samples; each takes others.
        start: where to go on, such as a checkpoint's `Position(*saved)`.
        endless: whether an iteration goes on into the next epoch; None where the run is counted in steps.
        pinned: whether batches are made in pinned memory, within `data.pinned_budget`. Kept batches are pinned once,
            so a step copies nothing on the host.

    Raises:
        ConfigError: the file, the sizes or the position do not fit; or the memory that preloading or
            pinning would take is not there.
    """
    model, data, seed = config.model, config.data, config.training.seed
    samples: Samples = Synthetic(model, data, seed)
    if data.path is not None:
        samples = open_samples(data.path, model, data, seed)
    order = Order(len(samples), data.batch, rank, world, seed, shuffle=data.path is not None)
    pinned = pinned and torch.cuda.is_available()
    endless = config.training.epochs is None if endless is None else endless
    return Loader(order, _maker(samples, order, data, pinned, seed), start=start, endless=endless)


def _maker(samples: Samples, order: Order, data: Data, pinned: bool, seed: int) -> MakeBatches:
    if not data.kept:
        return Loaded(samples, data, pinned=pinned, seed=seed)
    if not order.shuffle:
        return Kept(samples, order, data, pinned=pinned, seed=seed)
    read = InMemory(samples, len(samples), data, seed=seed)
    return Loaded(read, data.on_demand(), pinned=pinned, seed=seed)
