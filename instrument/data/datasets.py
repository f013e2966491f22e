"""Loaders of host batches, synthetic or from a file, that can resume at any position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from instrument.config.schema import Config
from instrument.config.training import Data, Model
from instrument.data.loading import InMemorySamples, KeptBatches, LoaderBatches
from instrument.data.order import Order, Position, generator_for
from instrument.errors import ConfigError

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


class MappedFile:
    """A .npy file as a read-only array. Pickling sends the path, so a DataLoader worker maps the file itself.

    Args:
        path: the file.

    Raises:
        ConfigError: the file cannot be read, is empty, or does not contain numbers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.array: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except OSError as error:
            raise ConfigError(f"data {path}: {error.strerror or error}: give a readable file") from error
        except (ValueError, EOFError) as error:
            raise ConfigError(
                f"data {path}: {error}: give an array of numbers (.npy); other data needs a model of your own"
            ) from error
        if self.array.dtype.kind not in "fiub" or not self.array.size:
            raise ConfigError(
                f"data {path}: not trainable: {self.array.size} values of {self.array.dtype}; use numbers"
            )

    def __reduce__(self) -> tuple[type[MappedFile], tuple[Path]]:
        return MappedFile, (self.path,)


class ArrayWindows(Dataset[Sample]):
    """Windows of `data.sequence` rows of a .npy file of shape (rows, features).

    Raises:
        ConfigError: the file cannot be read, has another shape, or has too few rows.
    """

    def __init__(self, model: Model, data: Data) -> None:
        assert data.path is not None
        self.file, self.model, self.sequence = MappedFile(data.path), model, data.sequence
        shape = self.file.array.shape
        if len(shape) != 2 or shape[1] != model.features:
            raise ConfigError(
                f"data {data.path}: the model needs an array of shape (rows, {model.features}), and this is an array "
                f"of shape {shape}: give its second size as features"
            )
        if not len(self):
            raise ConfigError(
                f"data {data.path}: {shape[0]} rows are less than one sequence of {data.sequence}: "
                "use a longer file or a shorter sequence"
            )

    def __len__(self) -> int:
        return len(self.file.array) // self.sequence

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        rows = self.file.array[index * self.sequence : (index + 1) * self.sequence]
        return _sample(torch.from_numpy(rows.astype("float32")), self.model)


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


def package_samples(config: Config) -> Dataset[Sample]:
    """Return the samples of the package's model: those of the file `data.path`, or synthetic ones.

    Raises:
        ConfigError: the file does not fit.
    """
    if config.data.path is not None:
        return ArrayWindows(config.model, config.data)
    return Synthetic(config.model, config.data, config.training.seed)


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
) -> Loader:
    """Return the loader of a data set with an index; see `Workload.build_loader`.

    Synthetic samples repeat their first `data.distinct_batches` batches, unless that is 0 or `data.preload` is set.
    """
    order = Order(len(samples), data.batch, rank, world, seed, shuffle=data.path is not None)
    return Loader(order, _batch_maker(samples, order, data, pinned, seed), start=start, endless=endless)


def _batch_maker(samples: Any, order: Order, data: Data, pinned: bool, seed: int) -> MakeBatches:
    if not data.kept:
        return LoaderBatches(samples, data, pinned=pinned, seed=seed)
    if not order.shuffle:
        return KeptBatches(samples, order, data, pinned=pinned, seed=seed)
    in_memory = InMemorySamples(samples, len(samples), data, seed=seed)
    return LoaderBatches(in_memory, data.on_demand(), pinned=pinned, seed=seed)


def _sample(inputs: Tensor, model: Model) -> Sample:
    """Return inputs (sequence, features) float32 and targets (sequence,) int64.

    The target is the quantile of the first feature under the normal distribution, in steps of 1/vocabulary, so the
    model can learn it.
    """
    quantile = torch.special.ndtr(inputs[:, 0])
    return {"inputs": inputs, "targets": (quantile * model.vocabulary).long().clamp_(0, model.vocabulary - 1)}
