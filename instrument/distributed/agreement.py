"""Decisions and means over all ranks. They run on the hosts, which do not wait for their GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from instrument.distributed.world import World


class StopVote:
    """Stops all ranks after the same step if one of them is requested to stop.

    Each rank calls it once per step. Every `every` steps the ranks start a vote, and they read its result at the next
    vote, so a host waits only if another one is that many steps behind. A run therefore continues for up to
    2 * `every` steps after a request.

    Args:
        world: the ranks; a single process stops immediately.
        every: steps between two votes, at least 1.
    """

    def __init__(self, world: World, every: int = 5) -> None:
        self._alone, self._every = world.size == 1, every
        self._calls, self._requested, self._agreed = 0, False, False
        self._vote = torch.zeros(1, dtype=torch.int32)
        self._work: Any = None

    def __call__(self, requested: bool) -> bool:
        """Return whether all ranks stop after this step."""
        self._requested |= requested
        if self._alone or self._agreed:
            return self._requested or self._agreed
        if self._calls % self._every == 0:
            self._read_vote()
            self._start_vote()
        self._calls += 1
        return self._agreed

    def _read_vote(self) -> None:
        if self._work is not None:
            self._work.wait()
            self._agreed = bool(self._vote.item())

    def _start_vote(self) -> None:
        if not self._agreed:
            self._vote.fill_(self._requested)
            self._work = dist.all_reduce(self._vote, dist.ReduceOp.MAX, async_op=True)


def any_rank(value: bool, world: World) -> bool:
    """Return on all ranks whether `value` is true on any rank. Each host waits for the others."""
    return min_over_ranks(int(not value), world) == 0


def min_over_ranks(value: int, world: World) -> int:
    """Return on all ranks the minimum over the ranks. Each host waits for the others."""
    if world.size == 1:
        return value
    values = torch.tensor([value])
    dist.all_reduce(values, dist.ReduceOp.MIN)
    return int(values.item())


def is_equal_on_ranks(value: int, world: World) -> bool:
    """Return on all ranks whether all of several ranks have the same value; False for a single process."""
    return world.size > 1 and min_over_ranks(value, world) == -min_over_ranks(-value, world)


def mean_over_ranks(values: Mapping[str, float | None], world: World) -> dict[str, float | None]:
    """Return the mean of each value over the ranks that measured it; None if no rank did.

    All ranks must call it at the same step and with the same names. Each host waits for the others.
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
