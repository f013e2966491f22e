"""A loader over a DataLoader, or any other iterable of batches, that can start at any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from instrument.checkpoint.states import random_state_kept
from instrument.data.order import Position
from instrument.distributed.agreement import is_equal_on_ranks
from instrument.distributed.world import World
from instrument.errors import ConfigError, InstrumentError
from instrument.logging import LogFunction, log_warning
from instrument.trees import fingerprint

UNKNOWN_LENGTH = 1 << 40  # batches per epoch of a stream without a length: more than a run reads
MIN_REPORTED_SKIP = 100


class StreamLoader:
    """Iterates over the user's batches, epoch after epoch, like `instrument.data.datasets.Loader`.

    The order of a shuffling DataLoader depends on the seed and the epoch only: each epoch seeds the generators of the
    loader and of its samplers, and calls `set_epoch` of the sampler and of the data set if they have it. To start at a
    later batch, the loader reads and drops the batches before it. In a stream without a length, the epoch of a position
    is always 0.

    Args:
        source: a DataLoader, or an iterable that starts anew with each `iter()`.
        seed: the seed of the run.
        start: the first batch.
        endless: whether an iteration continues with the next epoch.
        finish: applied to each batch, such as a function that pins it; None for nothing.
        log: receives one line before many batches are skipped.
    """

    def __init__(
        self,
        source: Iterable[Any],
        *,
        seed: int = 0,
        start: Position | None = None,
        endless: bool = False,
        finish: Callable[[Any], Any] | None = None,
        log: LogFunction = log_warning,
    ) -> None:
        self.source, self.seed, self.endless, self._log = source, seed, endless, log
        self._finish = finish
        self._length = stream_length(source)
        self._limit: int | None = None
        self.position = start or Position()
        self._generator = torch.Generator()

    def __len__(self) -> int:
        """Return the number of batches in an epoch; UNKNOWN_LENGTH if the source has no length."""
        return self._length or UNKNOWN_LENGTH

    def __iter__(self) -> Iterator[Any]:
        start = self.position
        if start.batch >= MIN_REPORTED_SKIP:
            self._log(f"data: reading {start.batch} batches that are already trained on, to resume after them")
        for batch in self._batches(start):
            self.position = self.position.after(1, len(self))
            yield batch if self._finish is None else self._finish(batch)

    def shorten(self, batches: int) -> None:
        """End each epoch after `batches`, the least of all ranks, so that all ranks are in the same epoch."""
        if batches < len(self):
            self._length = self._limit = batches

    def seek(self, position: Position) -> None:
        """Start the next iteration at `position`.

        Raises:
            ConfigError: an epoch has no such batch.
        """
        if position.batch >= len(self):
            raise ConfigError(f"position {position.epoch}, {position.batch}: an epoch has {len(self)} batches here")
        self.position = position

    def _batches(self, start: Position) -> Iterator[Any]:
        epoch, skip = start.epoch, start.batch
        while True:
            self._seed_epoch(epoch)
            count, batches = 0, iter(self.source)
            if skip:
                with random_state_kept():  # the batches that are dropped may be augmented at random
                    count = sum(1 for _batch in islice(batches, skip))
                skip -= count
            for batch in batches:
                count += 1
                yield batch
                if count == self._limit:
                    break
            if not count:
                raise InstrumentError(
                    f"data: epoch {epoch} of {type(self.source).__name__} has no batch; "
                    "give data that can be iterated again, and not more samples a batch than there are"
                )
            if not self.endless:
                return
            epoch += 1

    def _seed_epoch(self, epoch: int) -> None:
        sampler = getattr(self.source, "sampler", None)
        for part in (sampler, getattr(self.source, "dataset", None)):
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        if not isinstance(self.source, DataLoader):
            return
        parts: tuple[Any, ...] = (self.source, sampler, getattr(self.source.batch_sampler, "sampler", None))
        for part in parts:
            if getattr(part, "generator", self) is None:
                part.generator = self._generator
            own = getattr(part, "generator", None)
            if isinstance(own, torch.Generator):
                own.manual_seed((self.seed + epoch) % (1 << 64))


def report_equal_batches(batch: Any, world: World, log: LogFunction) -> None:
    """Say so if all ranks have the same first batch, as they do where a stream is not divided among them."""
    if is_equal_on_ranks(fingerprint(batch), world):
        log(
            f"all {world.size} processes read the same first batch: divide the data by rank, with a "
            "DistributedSampler or datasets.distributed.split_dataset_by_node"
        )


def stream_length(source: Iterable[Any]) -> int | None:
    """Return the number of batches in an epoch of `source`; None if it does not know."""
    try:
        return len(source) or None  # type: ignore[arg-type]
    except TypeError:
        return None
