"""Which samples make which batch: by seed, epoch and rank alone, so that any run can go on anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from instrument.errors import ConfigError


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The next batch: so many epochs are done, and so many batches of this one, both counted from 0."""

    epoch: int = 0
    batch: int = 0

    def after(self, batches: int, per_epoch: int) -> Position:
        """Return the position so many batches on, in epochs of `per_epoch` batches."""
        return Position(*divmod(self.epoch * per_epoch + self.batch + batches, per_epoch))


@dataclass(frozen=True, slots=True)
class Order:
    """The batches of each epoch for one of several ranks.

    All ranks take the same number of batches, each sample goes to one rank at most once an epoch, and what
    is left at the end is left out: with another permutation every epoch, it is other samples each time.

    Attributes:
        samples: how many there are.
        batch: samples per batch and rank.
        rank: which rank these are for, of `world`.
        seed: what the permutations come from; the same on all ranks.
        shuffle: whether there are any; else the samples come as they are, in every epoch.

    Raises:
        ConfigError: there are too few samples for one batch on every rank, or the rank is none of the world's.
    """

    samples: int
    batch: int
    rank: int = 0
    world: int = 1
    seed: int = 0
    shuffle: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank {self.rank} is none of {self.world} ranks: they are counted from 0")
        if self.batches < 1:
            of = f" on each of {self.world} GPUs" if self.world > 1 else ""
            raise ConfigError(f"batch {self.batch}{of} is more than all {self.samples} samples: use a smaller batch")

    @property
    def batches(self) -> int:
        """Batches per epoch, the same on every rank."""
        return self.samples // (self.batch * self.world)

    def epoch(self, start: Position) -> Iterator[list[int]]:
        """Yield the indices of each batch from `start` to the end of its epoch."""
        order = torch.arange(self.samples)
        if self.shuffle:
            order = torch.randperm(self.samples, generator=generator_for(self.seed, start.epoch))
        for batch in range(start.batch, self.batches):
            first = (batch * self.world + self.rank) * self.batch
            yield order[first : first + self.batch].tolist()


def generator_for(seed: int, index: int) -> torch.Generator:
    """Return a generator whose numbers depend on (seed, index) alone, and hardly look alike for neighbours."""
    # SeedSequence takes no negative numbers; a seed's low 64 bits are what torch would use of it too.
    (state,) = np.random.SeedSequence([seed % (1 << 64), index]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state))
