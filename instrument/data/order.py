"""The samples of each batch, determined by seed, epoch and rank, so that a run can resume at any batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from instrument.errors import ConfigError


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
