"""What all ranks decide and average together, on the host: no GPU waits, and no host waits for its GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from instrument.distributed.world import World


class Stop:
    """Lets all ranks stop after the same step when one of them was asked to.

    Each rank calls it once a step. Every `every` steps they vote; a vote is started at one of them and read at the
    next, so that no host waits for another's unless they are that many steps apart. A run so goes on for
    up to 2 * `every` steps after it was asked.

    Args:
        world: the ranks; alone, a process stops when it is asked.
        every: steps from one vote to the next, at least 1.
    """

    def __init__(self, world: World, every: int = 5) -> None:
        self._alone, self._every = world.size == 1, every
        self._calls, self._asked, self._agreed = 0, False, False
        self._vote = torch.zeros(1, dtype=torch.int32)
        self._work: Any = None

    def __call__(self, asked: bool) -> bool:
        """Return whether all ranks stop here."""
        self._asked |= asked
        if self._alone or self._agreed:
            return self._asked or self._agreed
        if self._calls % self._every == 0:
            self._read()
            self._start()
        self._calls += 1
        return self._agreed

    def _read(self) -> None:
        if self._work is not None:
            self._work.wait()
            self._agreed = bool(self._vote.item())

    def _start(self) -> None:
        if not self._agreed:
            self._vote.fill_(self._asked)
            self._work = dist.all_reduce(self._vote, dist.ReduceOp.MAX, async_op=True)


def stop_together(asked: bool, world: World) -> bool:
    """Return on all ranks whether any was asked, at once: each host waits for the others, and no GPU."""
    if world.size == 1:
        return asked
    vote = torch.tensor([int(asked)], dtype=torch.int32)
    dist.all_reduce(vote, dist.ReduceOp.MAX)
    return bool(vote.item())


def smallest(value: int, world: World) -> int:
    """Return the smallest value of all ranks, on all ranks: each host waits for the others, and no GPU."""
    if world.size == 1:
        return value
    values = torch.tensor([value])
    dist.all_reduce(values, dist.ReduceOp.MIN)
    return int(values.item())


def mean_over_ranks(values: Mapping[str, float | None], world: World) -> dict[str, float | None]:
    """Return the mean of each figure over the ranks that measured it; None where none did.

    All ranks have to call it at the same step and with the same names. Hosts wait for each other, GPUs do not.
    """
    if world.size == 1:
        return dict(values)
    names = sorted(values)
    known = [values[name] for name in names]
    table = torch.tensor(
        [[0.0 if value is None else value for value in known], [float(value is not None) for value in known]],
        dtype=torch.float64,
    )
    dist.all_reduce(table)
    sums, counts = table.tolist()
    return {name: total / count if count else None for name, total, count in zip(names, sums, counts, strict=True)}
