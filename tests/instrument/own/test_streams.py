"""Two ranks with streams of other lengths: a run that is saved at the end of an epoch resumes bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from instrument.config.schema import Checkpoint
from instrument.distributed.world import World, select_device
from instrument.trainer import training_run as runs
from instrument.workload import own_workload
from tests.instrument import ranks
from tests.instrument.own import my_code
from tests.instrument.own.test_workload import config

LENGTHS = (4, 5)  # batches in an epoch of each rank


class Stream:
    """Batches that differ by rank, unless `divided` is False. A stream without a length says nothing of its end."""

    def __init__(self, rank: int, divided: bool) -> None:
        self.rank, self.divided = rank, divided

    def __iter__(self) -> Iterator[Any]:
        numbers = torch.Generator().manual_seed(self.rank * self.divided)
        for _ in range(LENGTHS[self.rank]):
            inputs = torch.randn(3, 4, generator=numbers)
            yield inputs, (inputs[:, 0] > 0).long()


class Sized(Stream):
    def __len__(self) -> int:
        return LENGTHS[self.rank]


def losses(world: World, folder: Path, kind: type[Stream], steps: int, *, divided: bool = True) -> Any:
    """Train with a checkpoint after every fourth step; return the losses and the messages."""
    made = replace(config(steps=steps, schedule="constant"), checkpoint=Checkpoint(folder, every=4, resume=None))
    if folder.exists():
        made = replace(made, checkpoint=replace(made.checkpoint, resume="latest"))
    device = select_device(made, world)
    torch.manual_seed(0)
    data, said = kind(world.rank, divided), list[str]()
    workload = own_workload(runs.with_device(made, device, world), my_code.Net(), data, my_code.loss)
    return runs._TrainingRun(workload, world, device, said.append).run().losses, said


def sized(world: World, folder: Path) -> Any:
    return [losses(world, folder / "a", Sized, 11), *(losses(world, folder / "b", Sized, steps) for steps in (8, 11))]


def unsized(world: World, folder: Path) -> Any:
    return [losses(world, folder / "c", Stream, 11), *(losses(world, folder / "d", Stream, steps) for steps in (8, 11))]


def undivided(world: World, folder: Path) -> Any:
    return losses(world, folder / "e", Sized, 2, divided=False)[1]


def test_ranks_resume_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    results = ranks.run((sized, unsized, undivided), tmp_path)
    for kind in ("sized", "unsized"):
        for (whole, said), (_first, _), (second, _) in results[kind]:
            assert second == whole[8:], kind  # the eighth step ends the second epoch of the shorter rank
            assert not any("same first batch" in line for line in said)
    assert any("all 2 processes read the same first batch" in line for line in results["undivided"][0])
