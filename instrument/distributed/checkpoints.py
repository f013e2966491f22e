"""Checkpoints that rank 0 writes for all ranks. Every rank makes the same calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from instrument.checkpoint import file
from instrument.checkpoint.folder import Checkpoints, default_folder, wait_for_device
from instrument.checkpoint.resume import Parts
from instrument.config.schema import Config
from instrument.distributed.agreement import any_rank
from instrument.distributed.parts import GatheredModel, GatheredOptimizer, RankRandomState
from instrument.distributed.sharded_checkpoints import ShardedCheckpoints
from instrument.distributed.world import World
from instrument.errors import InstrumentError
from instrument.logging import LogFunction


def shared_checkpoints(config: Config, world: World, log: LogFunction) -> Checkpoints:
    """Return the checkpoint writer of a run. All ranks must be able to access its folder.

    Raises:
        InstrumentError: no folder is configured, or it cannot be written to.
    """
    settings = config.checkpoint
    if settings.folder is None:
        raise InstrumentError("no folder for checkpoints; use --checkpoint-folder")
    about: dict[str, Any] = {"keep": settings.keep, "best": settings.best, "config": config, "log": log}
    if settings.sharded:
        return ShardedCheckpoints(settings.folder, world=world, **about)
    if world.size == 1:
        return Checkpoints(settings.folder, **about)
    return SharedCheckpoints(settings.folder, world=world, **about)


def open_checkpoints(config: Config, world: World, log: LogFunction) -> Checkpoints | None:
    """Return the checkpoint writer of a run, in `default_folder` if the configuration names none.

    Returns None if that one cannot be written to; then a run that stops is lost.

    Raises:
        InstrumentError: the folder of the configuration cannot be written to.
    """
    if config.checkpoint.folder is not None:
        return shared_checkpoints(config, world, log)
    folder = Path(_broadcast_from_first([str(default_folder())])[0]) if world.size > 1 else default_folder()
    try:
        file.refuse_unwritable(folder)
        problem = None
    except InstrumentError as error:
        problem = str(error)
    if any_rank(problem is not None, world):
        log(f"{problem or folder}; a run that stops is lost; use --checkpoint-folder")
        return None
    return shared_checkpoints(replace(config, checkpoint=replace(config.checkpoint, folder=folder)), world, log)


class SharedCheckpoints(Checkpoints):
    """`Checkpoints` for several ranks: the states of all ranks are gathered, and rank 0 writes.

    Every rank must call `start`, `save` and `load`, and `emergency` with a text. If one rank calls `save` where
    another calls `emergency`, the call of rank 0 counts. `emergency` with an exception runs on one rank alone and
    writes the state of that rank; with sharded weights it writes nothing.

    Args:
        folder: folder that all ranks can access.
        world: the ranks.
        **about: the other arguments of `Checkpoints`.
    """

    def __init__(self, folder: Path | str, *, world: World, **about: Any) -> None:
        super().__init__(folder, **about)
        self._world, self._manages = world, world.first
        any_rank(False, world)  # wait until every rank has checked the folder, before one starts to write

    def _write(self, step: int, parts: Parts, *, alone: bool = False, **entries: Any) -> Path:
        """Gather every part and write on rank 0: return the path, or raise the error, on all ranks."""
        if alone:
            if any(isinstance(part, GatheredModel | GatheredOptimizer) for part in parts.values()):
                raise InstrumentError("the model is sharded, so no rank has all weights")
            own = {name: part for name, part in parts.items() if not isinstance(part, RankRandomState)}
            return super()._write(step, own, **entries)
        wait_for_device()
        gathered = {name: part.state_dict() for name, part in parts.items()}
        written = ""
        if self._world.first:
            try:
                written = str(self._write_states(step, gathered, entries))
            except BaseException as error:
                _broadcast_from_first([None, str(error) or type(error).__name__])
                raise
        path, problem = _broadcast_from_first([written, None])
        if problem is not None:
            raise InstrumentError(problem)
        return Path(path)

    def _chosen(self, where: str | Path) -> Path:
        """Return what rank 0 selects."""
        path = super()._chosen(self.latest() or where if where == "latest" else where)
        return Path(*_broadcast_from_first([str(path)]))


def _broadcast_from_first(values: list[Any]) -> list[Any]:
    """Return the values of rank 0 on all ranks, exchanged between the hosts."""
    dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
    return values
